"""The program of a reward worker: answers chunks of rows until its parent is gone. Started by `_pool`.

A limit of computing time is a timer of the process (ITIMER_PROF) whose signal the kernel answers by ending it: also
where Python is inside a library that never comes back. The parent watches the rest.
"""

import contextlib
import gc
import inspect
import math
import os
import pickle
import resource
import signal
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any

from verl_algos.rewards import _supervisor, results, scoring
from verl_algos.rewards._wire import Progress, Results, Slots, frame, write_all
from verl_algos.rewards.types import RewardError, RewardFunction, RewardRow, RewardTimeoutError, Score

#: What is done is told at least this often, so that little is lost when the worker ends.
FLUSH_SECONDS = 0.05


class _Worker:
    def __init__(self, function: RewardFunction, settings: Mapping[str, Any], progress: Progress, out: int) -> None:
        self._function = function
        self._call = scoring.bound(function, settings["kwargs"])
        self._cpu_seconds: float = settings["cpu_seconds"]
        self._wall_seconds: float = settings["wall_seconds"]
        self._max_concurrency: int = settings["max_concurrency"]
        self._first_seconds: float = settings["start_seconds"]  # the first row imports what the function needs
        self._progress = progress
        self._out = out
        self._arm_at = -math.inf
        self._flushed = 0.0
        self._forked = False
        os.register_at_fork(after_in_child=self._note_fork)
        self._done = Results()

    def _note_fork(self) -> None:
        self._forked = True

    def serve(self, indices: Sequence[int], columns: tuple[list[Any], ...]) -> None:
        """Score a chunk and tell the results."""
        pending: dict[int, Awaitable[object]] = {}
        self._flushed = begun = time.monotonic()
        self._progress.begin_chunk()
        # Names of this function's own are found faster, which shows where rows cost five microseconds.
        call, clock, progress, plain = self._call, time.monotonic, self._progress.view, results.PLAIN
        add_index, add_result = self._done.indices.append, self._done.results.append
        due = -math.inf
        for index, data_source, solution_str, ground_truth, extra_info in zip(indices, *columns, strict=True):
            if (now := clock()) > due:  # both are for few rows only: they would cost more than many a row
                if now - self._flushed > FLUSH_SECONDS:
                    self._flush()
                self._arm(now)
                due = min(self._arm_at, self._flushed + FLUSH_SECONDS)
            progress[0] = index
            try:
                result = call(
                    data_source=data_source,
                    solution_str=solution_str,
                    ground_truth=ground_truth,
                    extra_info=extra_info,
                )
                if type(result) is dict:
                    for value in result.values():
                        if type(value) not in plain:
                            break
                    else:
                        add_index(index)
                        add_result(result.copy())  # it may change it afterwards
                        continue
                row = RewardRow(data_source, solution_str, ground_truth, extra_info)
                self._take(index, row, result, pending)
            except RewardError as error:
                self._done.failures[index] = scoring.as_failure(error)
            except BaseException as error:  # noqa: BLE001 (a user's function may raise anything, and call sys.exit)
                row = RewardRow(data_source, solution_str, ground_truth, extra_info)
                self._done.failures[index] = scoring.as_failure(scoring.error_of(self._function, index, row, error))
            finally:
                if self._forked:  # the function has forked, and this is the child
                    os._exit(0)
        self._end()
        if pending:
            self._settle(dict(zip(indices, map(RewardRow, *columns), strict=True)), pending)
        self._flush(time.monotonic() - begun)

    def _take(self, index: int, row: RewardRow, result: object, pending: dict[int, Awaitable[object]]) -> None:
        """Take what is no dict of plain values: to be checked here, before the function can change it, or awaited."""
        if inspect.isawaitable(result):
            pending[index] = self._tracked(index, row, result)
        else:
            self._done.add(index, scoring.checked(self._function, index, row, result))

    def _settle(self, rows: Mapping[int, RewardRow], pending: Mapping[int, Awaitable[object]]) -> None:
        def scored(index: int, score: Score) -> None:
            self._done.add(index, score)
            self._flush()

        def failed(index: int, error: RewardError | RewardTimeoutError) -> None:
            self._done.failures[index] = scoring.as_failure(error)
            self._flush()

        scoring.settle(
            self._function,
            rows,
            pending,
            scored,
            failed,
            max_concurrency=self._max_concurrency,
            wall_seconds=self._wall_seconds,
        )

    async def _tracked(self, index: int, row: RewardRow, awaitable: Awaitable[object]) -> object:
        """Await, and tell whose code runs whenever it does: the limits are those of code that holds the loop."""
        try:
            return await _Steps(awaitable, lambda: self._begin(index), self._end)
        except KeyboardInterrupt as error:  # the function's own: no interrupt reaches a worker
            raise scoring.error_of(self._function, index, row, error) from error

    def _begin(self, index: int) -> None:
        self._arm(time.monotonic())
        self._progress.begin(index)

    def _arm(self, now: float) -> None:
        """Set the limit of computing time anew, unless that was just done."""
        if now > self._arm_at:
            # The hundredth is what the rows until the next time may have used of it.
            signal.setitimer(signal.ITIMER_PROF, self._cpu_seconds * 1.01 + self._first_seconds)
            self._arm_at = now + self._cpu_seconds / 100
            self._first_seconds = 0.0

    def _end(self) -> None:
        self._progress.end()
        signal.setitimer(signal.ITIMER_PROF, 0)
        self._arm_at = -math.inf

    def _flush(self, chunk_seconds: float | None = None) -> None:
        """Tell what is done; with the time that the chunk took, at its end."""
        self._flushed = time.monotonic()
        write_all(self._out, frame(self._done.take(chunk_seconds)))


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


def main(commands: int, out: int, life: int, shared: int, runner: int) -> None:
    """Serve until the pipe `commands` ends, in a child of this process."""
    _supervisor.supervise(life, runner, shared, (commands, out))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    slots = Slots(shared)
    start = slots.read(commands)
    if start is None:
        return
    settings = pickle.loads(start)
    if settings["memory_mb"] is not None:
        size = settings["memory_mb"] << 20
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        size = size if hard == resource.RLIM_INFINITY else min(size, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
            resource.setrlimit(resource.RLIMIT_DATA, (size, hard))
    try:
        function = pickle.loads(settings["function"])
        settings["kwargs"] = pickle.loads(settings["kwargs"])
    except BaseException as error:  # noqa: BLE001 (importing a user's module may raise anything)
        write_all(out, frame(pickle.dumps(("broken", f"{type(error).__name__}: {error}"))))
        return
    worker = _Worker(function, settings, Progress(shared), out)
    gc.freeze()  # what is loaded now stays, and need not be looked through again and again
    write_all(out, frame(pickle.dumps(("ready", os.getpid()))))
    while (command := slots.read(commands)) is not None:
        worker.serve(*pickle.loads(command))
