"""Scoring rows in worker processes, with limits: one bad answer costs itself and nothing else."""

import math
import os
import threading
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from verl_algos.import_path import is_async
from verl_algos.rewards import scoring
from verl_algos.rewards._job import Job
from verl_algos.rewards._pool import Pool, WorkerStartError
from verl_algos.rewards._wire import own
from verl_algos.rewards.types import (
    Failure,
    RewardCountError,
    RewardError,
    RewardFunction,
    RewardModel,
    RewardRow,
    RewardTimeoutError,
    Score,
)

__all__ = ["RewardRunner", "RunnerResult", "WorkerStartError"]


@dataclass(frozen=True)
class RunnerResult:
    """The scores of some rows, and what went wrong with which."""

    scores: list[Score]
    """One per row, in order; that of a failed row is `RewardRunner.failed_score`, with nothing beside it."""
    failures: Mapping[int, Failure]
    """Of the rows that have no reward of their own, by index."""
    unparsable: tuple[int, ...]
    """Rows that were scored although no answer could be parsed: ``pred`` is None, or ``no_answer`` true."""
    workers_replaced: int = 0
    """Workers that died or were ended by a limit."""

    @property
    def metrics(self) -> dict[str, float]:
        """Counts: reward/timeout, reward/exception, reward/unparsable and reward/workers_replaced."""
        kinds = [failure.kind for failure in self.failures.values()]
        return {
            "reward/timeout": float(kinds.count("timeout")),
            "reward/exception": float(kinds.count("exception")),
            "reward/unparsable": float(len(self.unparsable)),
            "reward/workers_replaced": float(self.workers_replaced),
        }


@dataclass(eq=False)
class RewardRunner:
    """Scores rows with one function or model. A context manager; `close` ends its workers.

    Results are the same, and in the order of the rows, for any number of workers. A row that reaches a limit, raises or
    ends its worker is counted; the others are scored as if it were not there. If every one of several rows raises, or
    every one of sixteen rows chosen at random from more reaches a limit of time, the function is broken and not the
    rows: that is a `RewardError`.

    Workers are processes of their own. They import the function by name, or get its code if it lives in a script, a
    notebook or another function; a script needs no ``if __name__ == "__main__"``. They end with this process, however
    it ends, and with each of them everything that it started (on systems other than Linux, what it did not start in a
    session of its own). Async functions run in one worker, up to `max_concurrency` calls at once, so that what they
    share (a session, a rate limit) is shared. A `RewardModel` runs in this process whatever num_workers says.
    """

    function: RewardFunction | RewardModel
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """The function's own options."""
    num_workers: int = 0
    """Worker processes; 0: rows are scored in this process, where only `wall_seconds` of async calls is a limit."""
    cpu_seconds: float = 10.0
    """Computing time of each row, on all threads of its worker; of async calls, between two awaits."""
    wall_seconds: float = 60.0
    """Time on the clock of each row, for what waits or blocks; time without a core does not count."""
    start_seconds: float = 5.0
    """Added to both limits of the first row of each worker, which imports what the function needs."""
    memory_mb: int | None = 4096
    """Data of each worker, beyond which a row raises MemoryError; None: no limit."""
    max_concurrency: int = 64
    """Calls of an async function in flight at once; rows that a model gets at once, unless it has `rows_per_call`."""
    failed_score: float = 0.0
    """The reward of a row that failed; NaN leaves it out of its group."""

    def __post_init__(self) -> None:
        for name, least in (("num_workers", 0), ("max_concurrency", 1), ("start_seconds", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} must be at least {least}.")
        for name in ("cpu_seconds", "wall_seconds", "memory_mb"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name}={value} must be more than 0 and finite.")
        if not isinstance(self.function, RewardModel):
            scoring.bound(self.function, self.kwargs)  # its options clash with nothing
        self._pool: Pool | None = None
        self._lock = threading.Lock()
        self._process = os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; `score` starts new ones."""
        with self._own_lock():
            if self._pool is not None:
                self._pool.close()
                self._pool = None

    def score(self, rows: Sequence[RewardRow]) -> RunnerResult:
        """Score `rows`; may be called from any thread, one call after another.

        Raises:
            RewardError: every row, of at least two, raised; a sample of the rows all reached a limit of time; or a
                model returned another number of results.
            RewardLoadError: a worker cannot load the function.
            WorkerStartError: a worker died while it started.
        """
        job = Job(rows)
        with self._own_lock():
            replaced = 0
            if not rows:
                pass
            elif isinstance(self.function, RewardModel):
                self._by_model(self.function, job)
            elif self.num_workers == 0:
                self._here(self.function, job)
            else:
                pool = self._pool = self._pool or self._new_pool(self.function)
                before = pool.replaced
                pool.run(job, together=is_async(self.function))
                replaced = pool.replaced - before
        return self._result(job, replaced)

    def _own_lock(self) -> threading.Lock:
        """This process's: in a fork, that of the other process may be held for ever by a thread that is not there."""
        if self._process != os.getpid():
            self._lock, self._process = threading.Lock(), os.getpid()
        return self._lock

    def _new_pool(self, function: RewardFunction) -> Pool:
        return Pool(
            function,
            self.kwargs,
            self.num_workers,
            cpu_seconds=self.cpu_seconds,
            wall_seconds=self.wall_seconds,
            start_seconds=self.start_seconds,
            memory_mb=self.memory_mb,
            max_concurrency=self.max_concurrency,
        )

    def _here(self, function: RewardFunction, job: Job) -> None:
        call = scoring.bound(function, self.kwargs)
        pending: dict[int, Awaitable[object]] = {}

        def failed(index: int, error: RewardError | RewardTimeoutError) -> None:
            job.settle(index, scoring.as_failure(error))

        try:
            if is_async(function):
                job.probes_first(alone=False)
            for index in job.take(job.left):
                row = job.rows[index]
                row = row._replace(ground_truth=own(row.ground_truth), extra_info=own(row.extra_info))
                try:
                    result = scoring.call(function, call, index, row)
                except RewardError as error:
                    failed(index, error)
                    continue
                if isinstance(result, Score):
                    job.settle(index, result)
                else:
                    pending[index] = result
            if pending:
                scoring.settle(
                    function,
                    job.rows,
                    pending,
                    job.settle,
                    failed,
                    max_concurrency=self.max_concurrency,
                    wall_seconds=self.wall_seconds,
                )
        finally:
            scoring.close(pending.values())

    def _by_model(self, model: RewardModel, job: Job) -> None:
        def settle(indices: Sequence[int]) -> None:
            outcomes = scoring.score_batch(model, indices, [job.rows[index] for index in indices])
            for index, outcome in zip(indices, outcomes, strict=True):
                job.settle(index, scoring.as_failure(outcome) if isinstance(outcome, RewardError) else outcome)

        most = self.max_concurrency if model.rows_per_call is None else model.rows_per_call
        for begin in range(0, len(job.rows), most):
            indices = range(begin, min(begin + most, len(job.rows)))
            try:
                settle(indices)
            except RewardCountError:
                raise
            except RewardError:  # one row of the batch may be to blame for it
                for index in indices:
                    try:
                        settle([index])
                    except RewardError as error:
                        job.settle(index, scoring.as_failure(error))

    def _result(self, job: Job, replaced: int) -> RunnerResult:
        raised = [index for index, failure in job.failures.items() if failure.kind == "exception"]
        if len(job.rows) > 1 and len(raised) == len(job.rows):
            raise RewardError(
                f"All {len(raised)} rows failed, so the reward function is broken and not the rows. The first: "
                f"{job.failures[0].message}",
                0,
                job.rows[0].data_source,
            )
        scores = [outcome if isinstance(outcome, Score) else Score(self.failed_score, {}) for outcome in job.outcomes]
        return RunnerResult(scores, dict(sorted(job.failures.items())), tuple(sorted(job.unparsable)), replaced)
