"""What a reward worker and its parent tell each other: frames on pipes and in shared memory, rows and results in them.

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

_LENGTH = struct.Struct("<Q")
_IN_MEMORY, _IN_SECOND_SLOT = 1 << 63, 1 << 62  # in a length on the pipe: where the frame is, if not behind it

#: No row is being scored.
IDLE = -1

_TEXT = frozenset({str})


def frame(content: bytes) -> bytes:
    """`content` with its length before it."""
    return _LENGTH.pack(len(content)) + content


def split_frames(buffer: bytearray) -> list[bytes]:
    """Take the complete frames from the beginning of `buffer`."""
    frames = []
    while len(buffer) >= _LENGTH.size:
        end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
        if len(buffer) < end:
            break
        frames.append(bytes(buffer[_LENGTH.size : end]))
        del buffer[:end]
    return frames


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def read_all(descriptor: int, count: int) -> memoryview | None:
    """The next `count` bytes; None if the pipe ends before."""
    wanted = rest = memoryview(bytearray(count))
    while rest:
        if (got := os.readv(descriptor, [rest])) == 0:
            return None
        rest = rest[got:]
    return wanted


class Slots:
    """Memory in which a parent gives frames to its worker: a pipe would copy each twice, and through fresh pages.

    There are two, taken in turn: the parent writes one while the worker reads the other, and gives no third frame
    before the worker is done with the first.
    """

    BYTES = 1 << 20
    """Of each."""

    def __init__(self, descriptor: int) -> None:
        self._memory = memoryview(mmap.mmap(descriptor, SHARED_BYTES))[-2 * self.BYTES :]
        self._second = False

    def give(self, content: bytes) -> list[memoryview]:
        """Write a frame (parent); what is to be written to the pipe for it, which is all of one that is too large."""
        if len(content) > self.BYTES:
            return [memoryview(_LENGTH.pack(len(content))), memoryview(content)]
        self._second = not self._second
        begin = self.BYTES * self._second
        self._memory[begin : begin + len(content)] = content
        return [memoryview(_LENGTH.pack(_IN_MEMORY | _IN_SECOND_SLOT * self._second | len(content)))]

    def read(self, descriptor: int) -> memoryview | None:
        """The next frame (worker), which holds until the one after the next; None at the end of the pipe."""
        if (head := read_all(descriptor, _LENGTH.size)) is None:
            return None
        (count,) = _LENGTH.unpack(head)
        if not count & _IN_MEMORY:
            return read_all(descriptor, count)
        begin = self.BYTES * bool(count & _IN_SECOND_SLOT)
        return self._memory[begin : begin + (count & ~(_IN_MEMORY | _IN_SECOND_SLOT))]


class Progress:
    """Memory that worker, supervisor and parent share: which row is being scored, how often that was said, the end."""

    BYTES = 24

    def __init__(self, descriptor: int) -> None:
        self.view = memoryview(mmap.mmap(descriptor, self.BYTES)).cast("q")
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


#: What a descriptor of shared memory has to hold: `Progress` at its beginning, and `Slots` at its end.
SHARED_BYTES = Progress.BYTES + 2 * Slots.BYTES


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
    sources, responses, truths, extra_infos = map(list, zip(*chosen, strict=True))
    columns = (sources, responses, _own_values(truths), _own_values(extra_infos))
    return range(first, last + 1) if in_order else indices, columns


def _own_values(values: list[Any]) -> list[Any]:
    """`own` of each: where all are of one kind, by loops in C."""
    types = {*map(type, values)}
    if types <= PLAIN:
        return values
    if types == {dict} and PLAIN.issuperset(map(type, chain.from_iterable(map(dict.values, values)))):
        return list(map(dict.copy, values))
    return list(map(own, values))


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
