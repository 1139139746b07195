"""What a reward worker and its parent tell each other: frames on pipes, rows and results in them, and shared memory.

Rows may cost as little as ten microseconds, so what is done here for each of them is done by loops in C where that is
possible, and nothing is copied that need not be.
"""

import marshal
import mmap
import os
import pickle
import struct
from collections.abc import Sequence
from copy import deepcopy
from itertools import chain
from typing import Any

from verl_algos.rewards.results import PLAIN, describe
from verl_algos.rewards.types import Failure, RewardRow, Score

LENGTH = struct.Struct("<Q")

_KEPT_BYTES = 1 << 20

#: No row is being scored.
IDLE = -1

_TEXT = frozenset({str})


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
    """Memory that worker, supervisor and parent share: which row is being scored, how often that was said, the end."""

    SIZE = 24

    def __init__(self, descriptor: int) -> None:
        self.view = memoryview(mmap.mmap(descriptor, self.SIZE)).cast("q")
        """The row, which a worker writes here for the next one of a chunk, and the number of chunks and calls."""

    def begin_chunk(self) -> None:
        """Rows are being scored from now on, each once (worker)."""
        self.view[1] += 1

    def begin(self, index: int) -> None:
        """A row is being scored from now on (worker)."""
        self.view[1] += 1
        self.view[0] = index

    def end(self) -> None:
        """No row is being scored (worker)."""
        self.begin(IDLE)

    def look(self) -> tuple[int, int]:
        """The row and the number (parent): one of them has changed if something was begun since."""
        return self.view[0], self.view[1]

    def ended_with(self, status: int) -> None:
        """The worker has ended (supervisor).

        Args:
            status: as `os.waitpid` gives it.
        """
        self.view[2] = status + 1

    @property
    def status(self) -> int | None:
        """How the worker has ended, as `os.waitpid` gives it (parent); None if that is not known."""
        return self.view[2] - 1 if self.view[2] else None


def own(value: Any) -> Any:
    """A copy, into which a function may write although the responses to a prompt share what it is made of; what cannot
    be copied is returned as it is."""
    if type(value) in PLAIN:
        return value
    if type(value) is dict and PLAIN.issuperset(map(type, value.values())):
        return value.copy()
    try:
        return deepcopy(value)
    except Exception:  # noqa: BLE001 (whatever a value of the user's raises)
        return value


def chunk_of(rows: Sequence[RewardRow], indices: Sequence[int]) -> tuple[Sequence[int], tuple[list[Any], ...]]:
    """Rows as a worker gets them: their numbers, and columns, which cost less than objects."""
    first, last = indices[0], indices[-1]
    in_order = last - first == len(indices) - 1  # as a chunk has its rows
    chosen = rows[first : last + 1] if in_order else [rows[index] for index in indices]
    *columns, extra_infos = map(list, zip(*chosen, strict=True))
    columns[2] = list(map(own, columns[2]))
    columns.append(list(map(own, extra_infos)))
    return range(first, last + 1) if in_order else indices, tuple(columns)


class Results:
    """Results on their way from a worker to its parent."""

    def __init__(self) -> None:
        self.indices: list[int] = []
        """Of the rows of `results`, to be added to."""
        self.results: list[dict[str, Any]] = []
        """Copies of dicts that the function returned, all of `results.PLAIN` values, which the parent checks; to be
        added to.
        """
        self.failures: dict[int, Failure] = {}
        """Of rows by index, to be added to."""
        self._scores: list[tuple[int, float, dict[str, Any]]] = []

    def add(self, index: int, score: Score) -> None:
        """Take the score of a row."""
        self._scores.append((index, score.score, {name: _sendable(value) for name, value in score.extra.items()}))

    def take(self, chunk_seconds: float | None) -> bytes:
        """Make a message of them and begin anew.

        Args:
            chunk_seconds: at the end of a chunk, the time that it took.
        """
        results = self.results
        if not _TEXT.issuperset(map(type, chain.from_iterable(results))):  # the parent may not know the type of a name
            results = [{str(name): value for name, value in result.items()} for result in results]
        failures = {index: tuple(failure) for index, failure in self.failures.items()}
        plain = marshal.dumps(results)  # in half the time of pickle; it would take anything with a buffer for bytes
        message = ("results", _compact(self.indices), plain, self._scores, failures, chunk_seconds)
        content = pickle.dumps(message, protocol=5)
        for taken in (self.indices, self.results, self._scores, self.failures):
            taken.clear()
        return content


def _compact(indices: list[int]) -> list[int] | range:
    """The same indices, as a range where they follow each other."""
    if indices and indices == list(range(indices[0], indices[0] + len(indices))):
        return range(indices[0], indices[0] + len(indices))
    return indices


def _sendable(value: Any) -> Any:
    """The value, or text in its place if it does not survive the way to the parent."""
    if type(value) in PLAIN:
        return value
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:  # noqa: BLE001 (whatever a value of the function's own raises)
        try:
            return describe(value)
        except Exception:  # noqa: BLE001 (also when it is asked what it is)
            return f"a value that cannot be shown ({type(value).__name__})"
    return value
