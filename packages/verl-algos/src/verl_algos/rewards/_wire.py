"""What a reward worker and its parent tell each other: frames on pipes, rows and results in them, and shared memory.

Rows may cost as little as ten microseconds, so what is done here for each of them is done by loops in C where that is
possible, and nothing is copied that need not be.
"""

import mmap
import os
import pickle
import struct
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import partial
from typing import Any, cast

from verl_algos.rewards.results import describe
from verl_algos.rewards.types import Failure, RewardRow, Score

LENGTH = struct.Struct("<Q")

_KEPT_BYTES = 1 << 20

#: No row is being scored.
IDLE = -1

# What Score(*pair) does, without a call of Python code for each.
_score = cast(Callable[[Iterable[Any]], Score], partial(tuple.__new__, Score))


def frame(content: bytes) -> bytes:
    """`content` with its length before it."""
    return LENGTH.pack(len(content)) + content


def split_frames(buffer: bytearray) -> list[bytes]:
    """Take the complete frames from the beginning of `buffer`."""
    frames = []
    while len(buffer) >= LENGTH.size:
        end = LENGTH.size + LENGTH.unpack_from(buffer)[0]
        if len(buffer) < end:
            break
        frames.append(bytes(buffer[LENGTH.size : end]))
        del buffer[:end]
    return frames


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class FrameReader:
    """Reads frames from a pipe into memory that it keeps: fresh memory costs a page fault for every 4 KiB."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._memory = bytearray(_KEPT_BYTES)

    def read(self) -> memoryview | None:
        """The next frame, which holds until the next call; None at the end of the pipe."""
        head = self._fill(LENGTH.size)
        return None if head is None else self._fill(LENGTH.unpack(head)[0])

    def _fill(self, count: int) -> memoryview | None:
        memory = self._memory if count <= _KEPT_BYTES else bytearray(count)
        wanted = rest = memoryview(memory)[:count]
        while rest:
            if (got := os.readv(self._descriptor, [rest])) == 0:
                return None
            rest = rest[got:]
        return wanted


class Progress:
    """Memory that worker and parent share: which row is being scored, and how many were begun."""

    SIZE = 16

    def __init__(self, descriptor: int) -> None:
        self._view = memoryview(mmap.mmap(descriptor, self.SIZE)).cast("q")

    def begin(self, index: int) -> None:
        """A row is being scored from now on (worker)."""
        view = self._view
        view[1] += 1
        view[0] = index

    def end(self) -> None:
        """No row is being scored (worker)."""
        self.begin(IDLE)

    def look(self) -> tuple[int, int]:
        """The row and the number of changes so far (parent)."""
        return self._view[0], self._view[1]


def chunk_of(rows: Sequence[RewardRow], indices: Sequence[int]) -> tuple[Sequence[int], tuple[list[Any], ...]]:
    """Rows as a worker gets them: their numbers, and columns, which cost less than objects."""
    first, last = indices[0], indices[-1]
    in_order = last - first == len(indices) - 1  # as a chunk has its rows
    chosen = rows[first : last + 1] if in_order else [rows[index] for index in indices]
    *columns, extra_infos = map(list, zip(*chosen, strict=True))
    # A function may write into its row's own, which the responses to a prompt share.
    columns.append([extra if extra is None else copy(extra) for extra in extra_infos])
    return range(first, last + 1) if in_order else indices, tuple(columns)


class Results:
    """Results on their way from a worker to its parent."""

    def __init__(self) -> None:
        self._indices: list[int] = []
        self._results: list[dict[str, Any]] = []
        self.failures: dict[int, Failure] = {}
        """Of rows by index, to be added to."""

    def add_plain(self, index: int, result: dict[str, Any]) -> None:
        """Take what the function returned for a row, if it `scoring.is_plain`; it may change afterwards."""
        self._indices.append(index)
        self._results.append(result.copy())

    def add(self, index: int, score: Score) -> None:
        """Take the score of a row."""
        self._indices.append(index)
        self._results.append({**{name: _sendable(value) for name, value in score.extra.items()}, "score": score.score})

    def take(self, chunk_seconds: float | None) -> bytes:
        """Make a message of them and begin anew.

        Args:
            chunk_seconds: at the end of a chunk, the time that it took.
        """
        extras = self._results
        scores = [extra.pop("score") for extra in extras]
        failures = {index: tuple(failure) for index, failure in self.failures.items()}
        message = _results(self._indices, scores, extras, failures, chunk_seconds)
        self._indices.clear()
        self._results.clear()
        self.failures.clear()
        return message


def _results(indices: list[int], *rest: object) -> bytes:
    return pickle.dumps(("results", _compact(indices), *rest), protocol=5)


def scores_of(scores: list[float], extras: list[dict[str, Any]]) -> list[Score]:
    """The scores that a worker sent."""
    return list(map(_score, zip(scores, extras, strict=True)))


def _compact(indices: list[int]) -> list[int] | range:
    """The same indices, as a range where they follow each other."""
    if indices and indices == list(range(indices[0], indices[0] + len(indices))):
        return range(indices[0], indices[0] + len(indices))
    return indices


def _sendable(value: Any) -> Any:
    """The value, or text in its place if it does not survive the way to the parent."""
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # noqa: BLE001 (whatever a value of the function's own raises)
        try:
            return describe(value)
        except Exception:  # noqa: BLE001 (also when it is asked what it is)
            return f"a value that cannot be shown ({type(value).__name__})"
    return value
