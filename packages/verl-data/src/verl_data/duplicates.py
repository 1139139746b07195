"""Rows that are copies of earlier ones, found in eight bytes per row."""

import hashlib
import marshal
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_NOTHING = 0


class Duplicates:
    """Remembers a 64-bit hash of what each row says; in a million rows, two that differ share one once in 10^7 runs."""

    def __init__(self) -> None:
        self._hashes = array("Q")

    def __len__(self) -> int:
        """How often `add` was called."""
        return len(self._hashes)

    def add(self, row: Mapping[str, Any] | None, columns: Sequence[str]) -> None:
        """Take the next row, whose `columns` are what counts; None for one that does not count."""
        self._hashes.append(_NOTHING if row is None else _hash([row.get(name) for name in columns]))

    def find(self, most: int) -> tuple[int, list[tuple[int, int]]]:
        """Return how many rows are copies, and of the first few the row's number and that of the one it copies.

        Numbers count the calls of `add`, from 0.
        """
        hashes = np.frombuffer(self._hashes, dtype=np.uint64)
        order = np.argsort(hashes, kind="stable")
        ordered = hashes[order]
        again = np.flatnonzero((ordered[1:] == ordered[:-1]) & (ordered[1:] != _NOTHING)) + 1
        first = np.sort(order[again])[:most]
        pairs = [(int(copy), int(np.flatnonzero(hashes == hashes[copy])[0])) for copy in first]
        return len(again), pairs


def _hash(values: list[Any]) -> int:
    try:
        content = marshal.dumps(values, 0)  # version 0 writes equal values alike, whether or not they are one object
    except ValueError:  # dates and the like
        content = repr(values).encode("utf-8", "backslashreplace")
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") or 1
