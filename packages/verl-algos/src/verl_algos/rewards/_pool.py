"""Worker processes that score rows, and what watches them."""

import marshal
import os
import pickle
import selectors
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from verl_algos.rewards import _shipping, scoring
from verl_algos.rewards._job import Job
from verl_algos.rewards._process import WorkerProcess
from verl_algos.rewards._wire import chunk_of
from verl_algos.rewards.types import Failure, RewardError, RewardFunction, RewardLoadError, RewardRow, Score

_TICK_SECONDS = 0.05
_CHUNK_SECONDS, _LEAST_CHUNK_SECONDS = 0.03, 1e-3  # what a chunk should take, and the last ones at least
_FIRST_CHUNK, _CHUNK_FOR_IDLE, _LARGEST_CHUNK = 4, 64, 512
_CHEAP_SECONDS = 1e-3
_CLOSE_SECONDS = 2.0  # for workers that have nothing to do, to end by themselves


class WorkerStartError(RuntimeError):
    """A worker died or hung before it could score anything."""


class Pool:
    """Workers of one function. Not for several threads at once."""

    def __init__(self, function: RewardFunction, kwargs: Mapping[str, Any], num_workers: int, **limits: Any) -> None:
        self._function = function
        self._start = _start_message(function, kwargs, limits)
        self._num_workers = num_workers
        self._wall_seconds: float = limits["wall_seconds"]
        self._start_seconds: float = limits["start_seconds"]
        self._workers: list[WorkerProcess] = []
        self._process = os.getpid()
        self._seconds_per_row: float | None = None
        self._seconds_to_start: float | None = None  # until the first chunk was done
        self.replaced = 0
        """Workers that died or were ended, since the beginning."""
        self._finalizer = weakref.finalize(self, _end_all, self._workers, self._process)

    def run(self, job: Job, *, together: bool) -> None:
        """Settle every row of a job.

        Args:
            job: nothing of it is settled yet.
            together: all rows in one worker at once, for async functions.

        Raises:
            RewardError: the function hangs.
            RewardLoadError: a worker cannot load the function.
            WorkerStartError: a worker died while it started.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                "The reward runner belongs to the process that made it, not to a fork of that: make one in each."
            )
        if together:
            job.probes_first(alone=False)
        wanted = 1 if together else min(self._num_workers, job.left)
        watch_at = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.answers, selectors.EVENT_READ, worker)
            try:
                while job.left:
                    while len(self._workers) < wanted and self._needs_another(job):
                        self._workers.append(worker := WorkerProcess(self._start))
                        selector.register(worker.answers, selectors.EVENT_READ, worker)
                    self._give_all(self._workers[:wanted], job, job.left if together else None)
                    for worker in self._workers:
                        if not worker.pump() and worker.commands not in selector.get_map():
                            selector.register(worker.commands, selectors.EVENT_WRITE, worker)
                    for key, _ in selector.select(_TICK_SECONDS):
                        if key.fd == key.data.answers:
                            self._receive(key.data, job)
                        elif key.data.pump():
                            selector.unregister(key.fd)
                    for worker in list(self._workers):
                        if worker.is_dead():
                            self._receive(worker, job)  # what it said before
                            for descriptor in {worker.answers, worker.commands} & selector.get_map().keys():
                                selector.unregister(descriptor)
                            self._workers.remove(worker)
                            self._bury(worker, job)
                    if time.monotonic() >= watch_at:
                        for worker in self._workers:
                            worker.watch(self._wall_seconds, self._start_seconds)
                        watch_at = time.monotonic() + _TICK_SECONDS
            except BaseException:
                for worker in [w for w in self._workers if w.busy or not w.ready]:
                    self._workers.remove(worker)
                    worker.end()
                raise

    def close(self) -> None:
        """End the workers; those that wait for work close what they hold."""
        self._finalizer()

    def _needs_another(self, job: Job) -> bool:
        """Whether rows wait for a worker; after a death, only if the others would take longer than one more to start.

        The rows behind those that end their workers are often few, and a worker imports for seconds what they need.
        """
        if len(job.waiting) <= sum(not worker.busy for worker in self._workers):
            return False
        if not job.deaths or self._seconds_per_row is None or self._seconds_to_start is None:
            return True
        getting_on = sum(worker.ready and not worker.is_stuck() for worker in self._workers)
        return len(job.waiting) * self._seconds_per_row > getting_on * self._seconds_to_start

    def _give_all(self, workers: Sequence[WorkerProcess], job: Job, size: int | None) -> None:
        """Give a chunk to each worker that has none. Of cheap rows, a second one waits at the worker, so that this does
        not wait for us; but not while another worker has none, and none of the last rows, fewer than workers: they go
        to whoever is free first, and not behind a row that may hang.
        """
        for most in (1, 2):
            for worker in workers:
                if job.waiting and worker.ready and len(worker.chunk_sizes) < most:
                    self._give(worker, job, size)
            cheap = (self._seconds_per_row or 1.0) < _CHEAP_SECONDS
            few = len(job.waiting) < len(workers)
            if job.alone or not cheap or few or not all(worker.busy for worker in workers):
                return

    def _give(self, worker: WorkerProcess, job: Job, size: int | None) -> None:
        if size is None:
            share = -(-len(job.waiting) // self._num_workers)
            if self._seconds_per_row is None:
                size = min(share, _FIRST_CHUNK)
            else:  # ever fewer rows, so that all workers end together
                least = int(_LEAST_CHUNK_SECONDS / self._seconds_per_row)
                most = min(int(_CHUNK_SECONDS / self._seconds_per_row), _LARGEST_CHUNK)
                size = max(1, min(share, max(least, min(most, -(-share // 2)))))
                # It waits while a first chunk is being made; a second one is to be there when it is done with that.
                size = min(size, 4 * worker.chunk_sizes[-1] if worker.busy else _CHUNK_FOR_IDLE)
        chunk = job.take(size)
        while chunk:
            try:
                message = _chunk_message(job.rows, chunk)
            except Exception as error:  # noqa: BLE001 (whatever a value of the user's raises)
                if len(chunk) == 1:
                    text = f"{type(error).__name__}: {error}"
                    job.settle(chunk[0], Failure("exception", f"the row cannot be sent to a worker: {text}"))
                    return
                half = len(chunk) // 2
                job.put_back(chunk[half:])
                chunk = chunk[:half]
            else:
                worker.give(chunk, message)
                return

    def _receive(self, worker: WorkerProcess, job: Job) -> None:
        for kind, *content in worker.receive():
            if kind == "ready":
                worker.begins(*content)
            elif kind == "broken":
                raise RewardLoadError(
                    f"A reward worker could not load the function: {content[0]}. Put it into a file that can be "
                    "imported alone, or set num_workers=0."
                )
            else:
                self._take(worker, job, *content)

    def _take(
        self,
        worker: WorkerProcess,
        job: Job,
        indices: Sequence[int],
        marshalled: bytes,
        scores: Sequence[tuple[int, float, dict[str, Any]]],
        failures: Mapping[int, tuple[Any, str]],
        chunk_seconds: float | None,
    ) -> None:
        worker.outstanding.difference_update(indices, (index for index, _, _ in scores), failures)
        results = marshal.loads(marshalled)
        if (plain := scoring.plain_scores(results)) is not None:
            job.settle_scores(indices, plain)
        else:
            for index, result in zip(indices, results, strict=True):
                job.settle(index, self._checked(job, index, result))
        for index, score, extra in scores:
            job.settle(index, Score(score, extra))
        for index, failure in failures.items():
            job.settle(index, Failure(*failure))
        if chunk_seconds is not None:
            if worker.first_chunk:
                worker.first_chunk = False
                self._seconds_to_start = time.monotonic() - worker.started
            per_row = max(chunk_seconds / worker.chunk_sizes.popleft(), 1e-7)
            before = self._seconds_per_row
            self._seconds_per_row = per_row if before is None or per_row < before else (before + per_row) / 2

    def _checked(self, job: Job, index: int, result: object) -> Score | Failure:
        try:
            return scoring.checked(self._function, index, job.rows[index], result)
        except RewardError as error:
            return scoring.as_failure(error)

    def _bury(self, worker: WorkerProcess, job: Job) -> None:
        """Say which row ended the worker, and put the others back."""
        worker.release()
        self.replaced += 1
        job.deaths += 1
        if not worker.ready:
            raise WorkerStartError(
                f"A reward worker {worker.how_it_ended()} before it could score anything. What it printed says why; "
                "with num_workers=0 rewards are computed in this process."
            )
        left = sorted(worker.outstanding)
        culprit = worker.running()
        if culprit not in worker.outstanding and len(left) == 1:
            culprit = left[0]
        if culprit not in worker.outstanding:
            job.alone.update(left)
            job.put_back(left)
            return
        left.remove(culprit)
        job.put_back(left)
        failure = worker.failure()
        job.settle(culprit, failure)
        if failure.kind == "timeout":  # the next ones are to tell whether all of them hang
            job.probes_first(alone=True)


def _end_all(workers: list[WorkerProcess], process: int) -> None:
    if os.getpid() != process:  # a fork has no children of its own yet
        return
    for worker in workers:
        worker.ask_to_end()
    until = time.monotonic() + _CLOSE_SECONDS
    while workers:
        workers.pop().end(until)


def _start_message(function: RewardFunction, kwargs: Mapping[str, Any], limits: Mapping[str, Any]) -> bytes:
    try:
        sent = {"function": _shipping.dumps(function), "kwargs": _shipping.dumps(dict(kwargs))}
    except Exception as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise RewardLoadError(
            f"The reward function {name} cannot be sent to worker processes: {type(error).__name__}: {error}. Do not "
            "let it hold open files, locks or connections when it is given to the runner, or set num_workers=0."
        ) from error
    return pickle.dumps(sent | dict(limits))


def _chunk_message(rows: Sequence[RewardRow], indices: Sequence[int]) -> bytes:
    chunk = chunk_of(rows, indices)
    try:
        return pickle.dumps(chunk, protocol=5)
    except Exception:  # noqa: BLE001 (values whose classes live in a script)
        return _shipping.dumps(chunk)
