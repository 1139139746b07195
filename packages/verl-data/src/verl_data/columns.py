"""The columns of a batch: what each may hold, and how they are cut and joined."""

from collections.abc import Mapping, Sequence
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
    if array.ndim != 1 or array.dtype.kind not in "iu" or not array.size or array[0] != 0 or (np.diff(array) < 0).any():
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


def lay_end_to_end(arrays: Sequence[Array], dtype: str | None) -> Array:
    """Lay arrays end to end; an empty one takes the type and the further dimensions of the others."""
    filled = [array for array in arrays if len(array)]
    if filled:
        joined = np.concatenate(filled)
        return joined if dtype is None else joined.astype(dtype, copy=False)
    shaped = next((array for array in arrays if array.ndim > 1), None)
    return np.zeros(0, dtype or np.float32) if shaped is None else shaped.astype(dtype or shaped.dtype)


def same(a: Any, b: Any) -> bool:
    """Whether two columns are equal in type and content; NaN equals NaN."""
    if isinstance(a, Ragged) and isinstance(b, Ragged):
        return same(a.values, b.values) and same(a.offsets, b.offsets)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
    return type(a) is type(b) and bool(a == b)
