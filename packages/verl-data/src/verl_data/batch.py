"""The one batch: columns over packed sequences, without padding."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from os import PathLike
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verl_data.columns import (
    RESERVED_NAMES,
    STANDARD_TOKEN_DTYPES,
    Array,
    Handle,
    Ragged,
    SequenceColumn,
    as_offsets,
    as_rows,
    gather,
    join_offsets,
    lay_end_to_end,
    numeric,
    same,
)
from verl_data.packing import attention_work, balance

if TYPE_CHECKING:
    import torch

SCHEMA_VERSION = 1


class PackedBatch:
    """An immutable batch of N sequences with T tokens in all; sequence i is tokens ``cu_seqlens[i]:cu_seqlens[i + 1]``.

    A token column at t speaks about token t given the tokens before it: the log-prob of token t, the value of the state
    in which token t was chosen; the first token of a sequence has 0. Arrays are held as read-only views, without a copy
    where they are contiguous; whoever passes an array in does not write to it afterwards. Under pickle protocol 5
    numeric columns leave as out-of-band buffers without a copy and arrive read-only. Every operation returns rows in
    the order asked for. Methods raise ValueError when the columns do not fit together, naming the column.
    """

    __slots__ = ("_cu_seqlens", "_ragged", "_sequences", "_tokens")

    def __init__(
        self,
        cu_seqlens: ArrayLike,
        tokens: Mapping[str, ArrayLike] | None = None,
        sequences: Mapping[str, SequenceColumn] | None = None,
        ragged: Mapping[str, Ragged] | None = None,
    ) -> None:
        """Hold columns and validate them.

        Args:
            cu_seqlens: (N + 1,) integers, from 0 up to T.
            tokens: columns (T, ...) of numbers or booleans.
            sequences: columns (N, ...), as an array of numbers or booleans or as a list of N values of any type.
            ragged: columns with any number of values per sequence.
        """
        self._cu_seqlens = as_offsets("cu_seqlens", cu_seqlens)
        self._tokens = {name: numeric(name, column) for name, column in (tokens or {}).items()}
        self._sequences: dict[str, SequenceColumn] = {
            name: list(column) if isinstance(column, (list, tuple)) else numeric(name, column)
            for name, column in (sequences or {}).items()
        }
        self._ragged = {
            name: Ragged(numeric(name, values), as_offsets(name, offsets))
            for name, (values, offsets) in (ragged or {}).items()
        }
        self.validate()

    @classmethod
    def from_sequences(
        cls,
        tokens: Mapping[str, Sequence[ArrayLike]],
        sequences: Mapping[str, SequenceColumn] | None = None,
        ragged: Mapping[str, Ragged] | None = None,
    ) -> "PackedBatch":
        """Pack token columns given as one array-like per sequence; standard columns get their usual type.

        Nothing is cast that would change: ids are integers, masks are booleans or 0 and 1, and what has a float type
        is rounded to it. Other values raise ValueError.
        """
        if not tokens:
            raise ValueError("A batch made from sequences needs at least one token column; it gives their lengths.")
        cu_seqlens: Array | None = None
        packed: dict[str, Array] = {}
        for name, rows in tokens.items():
            dtype = STANDARD_TOKEN_DTYPES.get(name, (None,))[0]
            arrays = as_rows(name, rows)
            own = np.cumsum([0, *(len(array) for array in arrays)], dtype=np.int64)
            if cu_seqlens is None:
                cu_seqlens = own
            elif not np.array_equal(cu_seqlens, own):
                first = next(iter(tokens))
                raise ValueError(f"Token columns {first!r} and {name!r} differ in the lengths of their sequences.")
            packed[name] = lay_end_to_end(name, arrays, dtype)
        assert cu_seqlens is not None  # tokens is not empty
        return cls(cu_seqlens, packed, sequences, ragged)

    # What it holds.

    @property
    def schema_version(self) -> int:
        """The version of this layout; what is stored or sent carries it, and another version is refused."""
        return SCHEMA_VERSION

    @property
    def cu_seqlens(self) -> Array:
        """(N + 1,) int64: where each sequence begins, and T."""
        return self._cu_seqlens

    @property
    def tokens(self) -> Mapping[str, Array]:
        """Token columns (T, ...)."""
        return MappingProxyType(self._tokens)

    @property
    def sequences(self) -> Mapping[str, SequenceColumn]:
        """Sequence columns: arrays (N, ...) or lists of N values."""
        return MappingProxyType(self._sequences)

    @property
    def ragged(self) -> Mapping[str, Ragged]:
        """Columns with any number of values per sequence."""
        return MappingProxyType(self._ragged)

    @property
    def num_tokens(self) -> int:
        """T, the tokens of all sequences."""
        return int(self._cu_seqlens[-1])

    @property
    def lengths(self) -> Array:
        """(N,) int64: tokens of each sequence."""
        return np.diff(self._cu_seqlens)

    @property
    def nbytes(self) -> int:
        """Bytes of all numeric columns, which is what a transfer moves besides lists."""
        arrays = chain(
            [self._cu_seqlens],
            self._tokens.values(),
            (column for column in self._sequences.values() if isinstance(column, np.ndarray)),
            *self._ragged.values(),
        )
        return sum(array.nbytes for array in arrays)

    def __len__(self) -> int:
        """N, the sequences."""
        return len(self._cu_seqlens) - 1

    def _names(self) -> Iterator[str]:
        return chain(self._tokens, self._sequences, self._ragged)

    def __contains__(self, name: object) -> bool:
        return name in self._tokens or name in self._sequences or name in self._ragged

    def __getitem__(self, name: str) -> Any:
        """The column `name`: an array, a list or a `Ragged`."""
        for columns in (self._tokens, self._sequences, self._ragged):
            if name in columns:
                return columns[name]
        raise KeyError(f"no column {name!r}; there are {', '.join(sorted(self._names())) or 'none'}")

    def __repr__(self) -> str:
        names = ", ".join(self._names())
        return f"PackedBatch({len(self)} sequences, {self.num_tokens} tokens: {names})"

    def __eq__(self, other: object) -> bool:
        """Same sequences, same columns of the same types, same values; NaN equals NaN."""
        if not isinstance(other, PackedBatch):
            return NotImplemented
        return (
            np.array_equal(self._cu_seqlens, other._cu_seqlens)
            and set(self._names()) == set(other._names())
            and all(same(self[name], other[name]) for name in self._names())
        )

    __hash__ = None  # type: ignore[assignment]  # equal by content, as arrays and lists are

    # Other batches from it.

    def with_columns(
        self,
        *,
        tokens: Mapping[str, ArrayLike] | None = None,
        sequences: Mapping[str, SequenceColumn] | None = None,
        ragged: Mapping[str, Ragged] | None = None,
    ) -> "PackedBatch":
        """Return this batch with columns added, or replaced where the name exists."""
        new = {*(tokens or ()), *(sequences or ()), *(ragged or ())}
        kept = self.without(*(name for name in self._names() if name in new))
        return PackedBatch(
            self._cu_seqlens,
            {**kept._tokens, **(tokens or {})},
            {**kept._sequences, **(sequences or {})},
            {**kept._ragged, **(ragged or {})},
        )

    def without(self, *names: str) -> "PackedBatch":
        """Return this batch without some columns, each of which must exist."""
        for name in names:
            if name not in self:
                self[name]  # raises the KeyError that lists what exists
        return PackedBatch(
            self._cu_seqlens,
            {name: column for name, column in self._tokens.items() if name not in names},
            {name: column for name, column in self._sequences.items() if name not in names},
            {name: column for name, column in self._ragged.items() if name not in names},
        )

    def select(self, rows: Sequence[int] | NDArray[np.integer]) -> "PackedBatch":
        """Return the sequences `rows`, in that order; a row may repeat. IndexError for a row outside 0 to N - 1."""
        index = np.asarray(rows)
        if index.ndim != 1 or (index.size and index.dtype.kind not in "iu"):
            raise TypeError(f"rows must be a list of row numbers, not {index.dtype} of shape {index.shape}")
        index = index.astype(np.int64)
        outside = index[(index < 0) | (index >= len(self))]
        if outside.size:
            raise IndexError(f"row {outside[0]} does not exist in a batch of {len(self)} sequences")
        cu_seqlens, positions = gather(self._cu_seqlens, index)
        ragged = {}
        for name, (values, offsets) in self._ragged.items():
            new_offsets, value_positions = gather(offsets, index)
            ragged[name] = Ragged(values[value_positions], new_offsets)
        return PackedBatch(
            cu_seqlens,
            {name: column[positions] for name, column in self._tokens.items()},
            {
                name: column[index] if isinstance(column, np.ndarray) else [column[row] for row in index]
                for name, column in self._sequences.items()
            },
            ragged,
        )

    def split(self, k: int) -> list[NDArray[np.int64]]:
        """Return `k` arrays of row numbers, balanced by work (24576 L + L^2 for L tokens), each ascending."""
        return balance(attention_work(self.lengths), k)

    @staticmethod
    def concat(batches: Iterable["PackedBatch"]) -> "PackedBatch":
        """Join batches with the same columns, one after the other."""
        parts = list(batches)
        if not parts:
            raise ValueError("There is no batch to concatenate.")
        first = parts[0]
        for number, part in enumerate(parts[1:], 1):
            _require_same_layout(first, part, number)
        sequences: dict[str, SequenceColumn] = {}
        for name, column in first._sequences.items():
            columns = [part._sequences[name] for part in parts]
            sequences[name] = np.concatenate(columns) if isinstance(column, np.ndarray) else list(chain(*columns))
        return PackedBatch(
            join_offsets([part._cu_seqlens for part in parts]),
            {name: np.concatenate([part._tokens[name] for part in parts]) for name in first._tokens},
            sequences,
            {
                name: Ragged(
                    np.concatenate([part._ragged[name].values for part in parts]),
                    join_offsets([part._ragged[name].offsets for part in parts]),
                )
                for name in first._ragged
            },
        )

    def union(self, other: "PackedBatch") -> "PackedBatch":
        """Return the columns of both batches, which hold the same sequences; a shared column must be equal."""
        if not np.array_equal(self._cu_seqlens, other._cu_seqlens):
            raise ValueError(f"Batches of different sequences cannot be united: {self!r} and {other!r}.")
        for name in other._names():
            if name in self and not same(self[name], other[name]):
                raise ValueError(f"Column {name!r} is in both batches and differs; use with_columns to replace it.")
        return self.with_columns(tokens=other._tokens, sequences=other._sequences, ragged=other._ragged)

    def resolve(self, *, tokens: Sequence[str] = (), ragged: Sequence[str] = ()) -> "PackedBatch":
        """Return this batch with list columns of `Handle` replaced by the values that these stand for.

        Args:
            tokens: columns whose handles resolve to one value per token; they become token columns.
            ragged: columns whose handles resolve to any number of values; they become ragged columns.
        """
        found: dict[str, list[Array]] = {}
        for name in (*tokens, *ragged):
            handles = self._sequences.get(name)
            if not isinstance(handles, list) or not all(isinstance(handle, Handle) for handle in handles):
                raise ValueError(f"Column {name!r} is no list of handles, so there is nothing to resolve.")
            found[name] = as_rows(name, (handle.fetch() for handle in handles))
        for name in tokens:
            lengths = [len(values) for values in found[name]]
            if lengths != self.lengths.tolist():
                row = next(i for i, length in enumerate(lengths) if length != self.lengths[i])
                raise ValueError(
                    f"Column {name!r}, row {row}, resolves to {lengths[row]} values for {self.lengths[row]} tokens."
                )
        return self.with_columns(
            tokens={
                name: lay_end_to_end(name, found[name], STANDARD_TOKEN_DTYPES.get(name, (None,))[0]) for name in tokens
            },
            ragged={
                name: Ragged(
                    lay_end_to_end(name, found[name], None),
                    np.cumsum([0, *(len(values) for values in found[name])], dtype=np.int64),
                )
                for name in ragged
            },
        )

    def per_sequence(self, name: str) -> list[Array]:
        """Return the token column `name` as N views, one per sequence."""
        if name not in self._tokens:
            raise KeyError(f"no token column {name!r}; there are {', '.join(sorted(self._tokens)) or 'none'}")
        column = self._tokens[name]
        return [column[a:b] for a, b in zip(self._cu_seqlens[:-1], self._cu_seqlens[1:], strict=True)]

    def validate(self) -> None:
        """Raise ValueError unless names are unique and every column fits the sequences in shape and type."""
        total = len(self._tokens) + len(self._sequences) + len(self._ragged)
        if len(set(self._names())) != total or RESERVED_NAMES & set(self._names()):
            raise ValueError(
                f"Column names must be unique over token, sequence and ragged columns and none of "
                f"{', '.join(sorted(RESERVED_NAMES))}, but they are {', '.join(sorted(self._names()))}."
            )
        for name, column in self._tokens.items():
            if column.shape[:1] != (self.num_tokens,):
                raise ValueError(
                    f"Token column {name!r} has shape {column.shape}, but the batch holds {self.num_tokens} tokens."
                )
            allowed = STANDARD_TOKEN_DTYPES.get(name)
            if allowed and column.dtype.name not in allowed:
                raise ValueError(f"Token column {name!r} is {column.dtype}; it must be {' or '.join(allowed)}.")
        for name, values in self._sequences.items():
            if len(values) != len(self):
                raise ValueError(
                    f"Sequence column {name!r} has {len(values)} entries, but the batch holds {len(self)} sequences."
                )
        for name, (numbers, offsets) in self._ragged.items():
            if len(offsets) != len(self) + 1 or offsets[-1] != len(numbers):
                raise ValueError(
                    f"Ragged column {name!r} has {len(offsets)} offsets up to {offsets[-1]} for {len(numbers)} values; "
                    f"{len(self)} sequences need {len(self) + 1} offsets, the last equal to the number of values."
                )

    # Leaving this process.

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (SCHEMA_VERSION, self._cu_seqlens, self._tokens, self._sequences, self._ragged)

    def to_torch(self, device: "str | torch.device" = "cpu") -> "dict[str, torch.Tensor]":
        """Copy `cu_seqlens` and the numeric token and sequence columns to tensors on `device`, once."""
        import torch

        columns = {"cu_seqlens": self._cu_seqlens, **self._tokens}
        columns |= {name: column for name, column in self._sequences.items() if isinstance(column, np.ndarray)}
        return {name: torch.tensor(column, device=device) for name, column in columns.items()}

    def to_parquet(self, path: str | PathLike[str]) -> None:
        """Store the batch, one row per sequence, token columns as lists; the file appears whole or not at all."""
        from verl_data.batch_parquet import write

        write(self, path)

    @classmethod
    def from_parquet(cls, path: str | PathLike[str]) -> "PackedBatch":
        """Load what `to_parquet` stored; DataError for any other file."""
        from verl_data.batch_parquet import read

        return read(path)


def _unpickle(schema_version: int, *columns: Any) -> PackedBatch:
    if schema_version != SCHEMA_VERSION:
        raise ValueError(
            f"A batch of schema version {schema_version} arrived, but this process knows version {SCHEMA_VERSION}. "
            "Install the same version of verl-data on every machine."
        )
    return PackedBatch(*columns)


def _layout(batch: PackedBatch) -> dict[str, str]:
    def of(column: Any) -> str:
        return "list" if isinstance(column, list) else f"{column.dtype}{list(column.shape[1:])}"

    return (
        {name: f"tokens {of(column)}" for name, column in batch.tokens.items()}
        | {name: f"sequences {of(column)}" for name, column in batch.sequences.items()}
        | {name: f"ragged {of(column.values)}" for name, column in batch.ragged.items()}
    )


def _require_same_layout(first: PackedBatch, other: PackedBatch, number: int) -> None:
    a, b = _layout(first), _layout(other)
    for name in sorted({*a, *b}):
        if a.get(name) != b.get(name):
            raise ValueError(
                f"Batches 0 and {number} cannot be concatenated: column {name!r} is {a.get(name, 'missing')} in the "
                f"first and {b.get(name, 'missing')} in the other."
            )
