"""The program of a reward worker: answers chunks of rows until its parent is gone. Started by `_pool`.

A limit of computing time is a timer of the process (ITIMER_PROF) whose signal the kernel answers by ending it: also
where Python is inside a library that never comes back. The parent watches the rest.
"""

import contextlib
import fcntl
import gc
import mmap
import os
import pickle
import resource
import signal
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from functools import partial
from typing import Any

from verl_algos.rewards import scoring
from verl_algos.rewards.results import describe
from verl_algos.rewards.types import Failure, RewardError, RewardFunction, RewardRow, Score

_LENGTH = struct.Struct("<Q")

#: What is done is told at least this often, so that little is lost when the worker ends.
FLUSH_SECONDS = 0.05

#: No row is being scored.
IDLE = -1


def read_frame(descriptor: int) -> bytes | None:
    """One length and its bytes; None at the end of the pipe."""
    head = _read(descriptor, _LENGTH.size)
    return None if head is None else _read(descriptor, _LENGTH.unpack(head)[0])


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


def _read(descriptor: int, count: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < count:
        data = os.read(descriptor, min(count - len(parts), 1 << 20))
        if not data:
            return None
        parts += data
    return bytes(parts)


class Progress:
    """Memory that worker and parent share: which row is being scored, and how many were begun."""

    SIZE = 16

    def __init__(self, descriptor: int) -> None:
        self._view = memoryview(mmap.mmap(descriptor, self.SIZE)).cast("q")

    def begin(self, index: int) -> None:
        """A row is being scored from now on (worker)."""
        self._view[1] += 1
        self._view[0] = index

    def end(self) -> None:
        """No row is being scored (worker)."""
        self._view[1] += 1
        self._view[0] = IDLE

    def look(self) -> tuple[int, int]:
        """The row and the number of changes so far (parent)."""
        return self._view[0], self._view[1]


class _Worker:
    def __init__(self, function: RewardFunction, settings: Mapping[str, Any], progress: Progress, out: int) -> None:
        self._function = function
        self._kwargs: Mapping[str, Any] = settings["kwargs"]
        self._cpu_seconds: float = settings["cpu_seconds"]
        self._wall_seconds: float = settings["wall_seconds"]
        self._max_concurrency: int = settings["max_concurrency"]
        self._first_seconds: float = settings["start_seconds"]  # the first row imports what the function needs
        self._progress = progress
        self._out = out
        self._armed = -1.0
        self._now = self._flushed = 0.0
        self._forked = False
        os.register_at_fork(after_in_child=self._note_fork)
        self._done = _Done()

    def _note_fork(self) -> None:
        self._forked = True

    def serve(self, indices: list[int], columns: tuple[list[Any], ...]) -> None:
        """Score a chunk and tell the results."""
        rows = list(map(RewardRow, *columns))
        pending: dict[int, Awaitable[object]] = {}
        self._flushed = begun = time.monotonic()
        function, kwargs = self._function, self._kwargs
        for place, (index, row) in enumerate(zip(indices, rows, strict=True)):
            self._begin(index)
            try:
                result: Score | Failure | Awaitable[object] = scoring.call(function, index, row, kwargs)
            except RewardError as error:
                result = scoring.as_failure(error)
            if self._forked:  # the function has forked, and this is the child
                os._exit(0)
            if isinstance(result, (Score, Failure)):
                self._done.add(index, result)
                if self._now - self._flushed > FLUSH_SECONDS:
                    self._flush()
            else:
                pending[place] = self._tracked(index, result)
        self._end()
        if pending:
            self._settle(indices, rows, pending)
        self._flush(time.monotonic() - begun)

    def _settle(self, indices: list[int], rows: list[RewardRow], pending: Mapping[int, Awaitable[object]]) -> None:
        def finish(place: int, outcome: Score | Failure) -> None:
            self._done.add(indices[place], outcome)
            self._flush()

        scoring.settle(
            self._function,
            rows,
            pending,
            finish,
            lambda place, error: finish(place, scoring.as_failure(error)),
            max_concurrency=self._max_concurrency,
            wall_seconds=self._wall_seconds,
        )

    async def _tracked(self, index: int, awaitable: Awaitable[object]) -> object:
        """Await, and tell whose code runs whenever it does: the limits are those of code that holds the loop."""
        return await _Steps(awaitable, lambda: self._begin(index), self._end)

    def _begin(self, index: int) -> None:
        now = self._now = time.monotonic()
        if now - self._armed > self._cpu_seconds / 100 or self._first_seconds:
            # Not for each row: that would cost more than many a row. The hundredth is what others may have used of it.
            signal.setitimer(signal.ITIMER_PROF, self._cpu_seconds * 1.01 + self._first_seconds)
            self._armed = now
            self._first_seconds = 0.0
        self._progress.begin(index)

    def _end(self) -> None:
        self._progress.end()
        signal.setitimer(signal.ITIMER_PROF, 0)
        self._armed = -1.0

    def _flush(self, chunk_seconds: float | None = None) -> None:
        """Tell what is done; with the time that the chunk took, at its end."""
        done, self._done = self._done, _Done()
        self._flushed = time.monotonic()
        write_all(self._out, frame(done.dumped(chunk_seconds)))


class _Done:
    """Results on their way to the parent: columns, which cost less than objects on both sides."""

    def __init__(self) -> None:
        self.indices: list[int] = []
        self.scores: list[float] = []
        self.extras: list[dict[str, Any]] = []
        self.failures: dict[int, tuple[str, str]] = {}

    def add(self, index: int, outcome: Score | Failure) -> None:
        """The result of a row."""
        if isinstance(outcome, Failure):
            self.failures[index] = (outcome.kind, outcome.message)
        else:
            self.indices.append(index)
            self.scores.append(outcome[0])
            self.extras.append(outcome[1])

    def dumped(self, chunk_seconds: float | None) -> bytes:
        """As a message; an entry that cannot be sent becomes text."""
        indices = _compact(self.indices)
        try:
            extras = _columns(self.extras)
            return pickle.dumps(("results", indices, self.scores, extras, self.failures, chunk_seconds), protocol=5)
        except Exception:  # noqa: BLE001 (whatever an entry of the function's own raises)
            plain = [{name: _sendable(value) for name, value in extra.items()} for extra in self.extras]
            return pickle.dumps(("results", indices, self.scores, plain, self.failures, chunk_seconds), protocol=5)


def _compact(indices: list[int]) -> list[int] | range:
    """The same indices, as a range where they follow each other."""
    if indices and indices == list(range(indices[0], indices[0] + len(indices))):
        return range(indices[0], indices[0] + len(indices))
    return indices


def _columns(extras: list[dict[str, Any]]) -> Any:
    """Names and a column for each, where all have the same names in the same order; the list itself otherwise."""
    if not extras or not (names := tuple(extras[0])) or any(tuple(extra) != names for extra in extras):
        return extras
    return names, list(zip(*map(dict.values, extras), strict=True))


def extras_of(sent: Any) -> list[dict[str, Any]]:
    """The extras that were sent as columns."""
    if isinstance(sent, list):
        return sent
    names, columns = sent
    return [dict(zip(names, values)) for values in zip(*columns)]  # noqa: B905 (equal lengths; strict costs a third)


class _Steps:
    """Awaits something, with a call before and after each step that it takes on the loop."""

    def __init__(self, awaitable: Awaitable[object], before: Callable[[], None], after: Callable[[], None]) -> None:
        self._steps = _coroutine(awaitable)
        self._before, self._after = before, after

    def __await__(self) -> Generator[Any, Any, object]:
        resume: Callable[[], Any] = partial(self._steps.send, None)
        while True:
            self._before()
            try:
                waits_for = resume()
            except StopIteration as end:
                return end.value
            finally:
                self._after()
            try:
                resume = partial(self._steps.send, (yield waits_for))
            except BaseException as error:  # noqa: BLE001 (a cancellation, which the steps are told)
                resume = partial(self._steps.throw, error)


async def _coroutine(awaitable: Awaitable[object]) -> object:
    return await awaitable


def _sendable(value: Any) -> Any:
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 (see above)
        return describe(value)
    return value


def _end_with_parent(life: int) -> None:
    """End this process and its children when the parent's end of `life` closes, whatever they are doing."""
    os.set_blocking(life, False)
    if sys.platform == "linux":  # by the kernel, also while a library holds the interpreter
        fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(life, 10, signal.SIGKILL)  # F_SETSIG
        fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    with contextlib.suppress(BlockingIOError):
        if not os.read(life, 1):
            os._exit(1)  # it is gone already
    if sys.platform != "linux":
        os.set_blocking(life, True)

        def watch() -> None:
            os.read(life, 1)
            os.killpg(0, signal.SIGKILL)

        threading.Thread(target=watch, daemon=True).start()


def main(commands: int, out: int, life: int, progress: int) -> None:
    """Serve until the pipe `commands` ends."""
    _end_with_parent(life)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt ends
    start = read_frame(commands)
    if start is None:
        return
    settings = pickle.loads(start)
    if settings["memory_mb"] is not None:
        size = settings["memory_mb"] << 20
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        size = size if hard == resource.RLIM_INFINITY else min(size, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
            resource.setrlimit(resource.RLIMIT_DATA, (size, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        function = pickle.loads(settings["function"])
        settings["kwargs"] = pickle.loads(settings["kwargs"])
    except BaseException as error:  # noqa: BLE001 (importing a user's module may raise anything)
        write_all(out, frame(pickle.dumps(("broken", f"{type(error).__name__}: {error}"))))
        return
    worker = _Worker(function, settings, Progress(progress), out)
    gc.freeze()  # what is loaded now stays, and need not be looked through again and again
    write_all(out, frame(pickle.dumps(("ready",))))
    while (command := read_frame(commands)) is not None:
        worker.serve(*pickle.loads(command))
