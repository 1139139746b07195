"""The columns of a batch: what each may hold, and how they are cut and joined."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

_FLOATS = ("float32", "float64")
#: The token columns that every part of the system knows, and the types they may have; the first is what is usual.
STANDARD_TOKEN_DTYPES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "input_ids": ("int64",),
        "sampled_mask": ("bool",),
        "loss_mask": ("bool",),
        "rollout_logprobs": _FLOATS,
        "old_logprobs": _FLOATS,
        "ref_logprobs": _FLOATS,
        "values": _FLOATS,
        "token_rewards": _FLOATS,
        "advantages": _FLOATS,
        "returns": _FLOATS,
        "weight_version": ("int32",),
    }
)
#: Names that no column may have: the batch's own.
RESERVED_NAMES = frozenset({"cu_seqlens", "num_tokens"})

Array = NDArray[Any]
SequenceColumn = Array | list[Any]


@runtime_checkable
class Handle(Protocol):
    """One sequence's entry of a list column whose values stay where they were made, until who needs them fetches them.

    It is what travels instead of a large column (images, expert routes): a reference to an object store, a path. The
    process that holds the whole batch selects, splits and joins handles like any other value.
    """

    def fetch(self) -> ArrayLike:
        """Return the sequence's values (M, ...)."""
        ...


class Ragged(NamedTuple):
    """A column of any number of values per sequence: sequence i owns ``values[offsets[i]:offsets[i + 1]]``."""

    values: Array
    """(M, ...) numbers."""
    offsets: Array
    """(N + 1,) int64, from 0 to M."""


def numeric(name: str, column: ArrayLike) -> Array:
    """Return `column` as a read-only view that pickle-5 sends without a copy; ValueError unless it holds numbers."""
    array = np.asarray(column)
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8 or array.ndim == 0:
        raise ValueError(
            f"Column {name!r} is {array.dtype} of shape {array.shape}; an array column holds numbers or booleans with "
            "one entry per token or sequence. Pass other values as a list in a sequence column; cast bfloat16 to "
            "float32 and what is wider than 8 bytes to float64."
        )
    view = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")).view()
    view.flags.writeable = False
    return view


def as_offsets(name: str, offsets: ArrayLike) -> Array:
    """Return `offsets` as a read-only int64 view; ValueError unless they start at 0 and never fall."""
    array = np.asarray(offsets)
    integers = array.ndim == 1 and array.size > 0 and array.dtype.kind in "iu"
    # Compared as they came: differences of unsigned numbers would wrap around, and so would a cast of 2**63.
    if not integers or array[0] != 0 or (array[1:] < array[:-1]).any() or array[-1] > np.iinfo(np.int64).max:
        raise ValueError(f"The offsets of {name!r} must be integers that start at 0 and never fall, but are {array}.")
    view = np.ascontiguousarray(array, dtype=np.int64).view()
    view.flags.writeable = False
    return view


def gather(offsets: Array, rows: Array) -> tuple[Array, Array]:
    """Return the offsets of `rows` laid end to end, and the position that each of their entries had before."""
    lengths = np.diff(offsets)[rows]
    new = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    positions = np.arange(new[-1]) + np.repeat(offsets[:-1][rows] - new[:-1], lengths)
    return new, positions


def join_offsets(offsets: Sequence[Array]) -> Array:
    """Return the offsets of columns laid end to end."""
    return np.concatenate([[0], np.cumsum(np.concatenate([np.diff(part) for part in offsets]))]).astype(np.int64)


def as_rows(name: str, rows: Iterable[ArrayLike]) -> list[Array]:
    """Return the values of each sequence as an array of the type they have; ValueError for what is no list of them."""
    arrays = []
    for row, values in enumerate(rows):
        try:
            array = np.asarray(values)
        except ValueError as error:  # lists of unequal lengths
            raise ValueError(f"Column {name!r}, row {row}, makes no array: {error}") from error
        if array.ndim == 0:
            raise ValueError(f"Column {name!r}, row {row}, is {values!r}; give the values of each sequence as a list.")
        arrays.append(array)
    return arrays


def lay_end_to_end(name: str, arrays: Sequence[Array], dtype: str | None) -> Array:
    """Lay arrays end to end; an empty one takes the type and the further dimensions of the others.

    Raises ValueError where `dtype` is given and a value is not of its kind or does not fit it: integers stay what they
    are, booleans may come as 0 and 1, and only floats are rounded.
    """
    filled = [array for array in arrays if len(array)]
    if filled:
        if dtype is not None:
            _require_fit(name, arrays, np.dtype(dtype))
        return np.concatenate(filled, dtype=dtype, casting="same_kind" if dtype is None else "unsafe")
    shaped = next((array for array in arrays if array.ndim > 1), None)
    return np.zeros(0, dtype or np.float32) if shaped is None else shaped.astype(dtype or shaped.dtype)


#: By the kind of a standard type: the kinds that may be cast to it, and what its values are called.
_CASTS = {
    "i": ("iu", "integers that fit {}"),
    "b": ("biuf", "booleans, or 0 and 1"),
    "f": ("iuf", "numbers that fit {}"),
}


def _require_fit(name: str, arrays: Sequence[Array], target: np.dtype[Any]) -> None:
    kinds, called = _CASTS[target.kind]
    wanted = called.format(target)
    for source in dict.fromkeys(array.dtype for array in arrays if len(array)):
        if source.kind in kinds and np.can_cast(source, target, "safe"):
            continue
        rows = [row for row, array in enumerate(arrays) if len(array) and array.dtype == source]
        if source.kind not in kinds:
            raise ValueError(f"Column {name!r}, row {rows[0]}, is {source}; it must hold {wanted}.")
        values = np.concatenate([arrays[row] for row in rows])
        with np.errstate(over="ignore"):  # it is looked for below
            cast = values.astype(target)
        wrong = np.isfinite(values) & ~np.isfinite(cast) if target.kind == "f" else cast != values
        if wrong.any():
            position = np.nonzero(wrong)[0][0]
            row = rows[int(np.searchsorted(np.cumsum([len(arrays[row]) for row in rows]), position, "right"))]
            raise ValueError(f"Column {name!r}, row {row}, holds {values[wrong][0]}; it must hold {wanted}.")


def same(a: Any, b: Any) -> bool:
    """Whether two columns are equal in type and content, arrays inside of lists included; NaN equals NaN."""
    if a is b:
        return True
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and a.dtype.kind != "O":
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind in "fcmM")
    if isinstance(a, (list, tuple)) or isinstance(b, (list, tuple)):  # a Ragged too
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) or isinstance(b, dict):
        return type(a) is type(b) and a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    if isinstance(a, np.generic) or isinstance(b, np.generic):
        return np.ndim(a) == np.ndim(b) == 0 and bool(a == b or (a != a and b != b))
    if hasattr(a, "__array__") or hasattr(b, "__array__"):  # arrays of other libraries, and arrays of objects
        if type(a) is not type(b):
            return False
        x, y = np.asarray(a), np.asarray(b)
        return x.shape == y.shape and (same(x.tolist(), y.tolist()) if x.dtype.kind == "O" else same(x, y))
    return bool(a == b or (a != a and b != b))
