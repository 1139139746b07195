"""Worker processes that score rows, and what watches them."""

import contextlib
import fcntl
import os
import pickle
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_algos.rewards import _shipping
from verl_algos.rewards._worker import IDLE, Progress, extras_of, frame, split_frames
from verl_algos.rewards.types import Failure, RewardFunction, RewardLoadError, RewardRow, Score

_TICK_SECONDS = 0.05
_START_SECONDS = 120.0
_CHUNK_SECONDS = 0.03  # what a chunk should take
_FIRST_ROW = 2  # changes of the progress when the first row has begun
_FIRST_CHUNK, _LARGEST_CHUNK = 4, 512
_CHEAP_SECONDS = 1e-3
_PIPE_BYTES = 1 << 20

_PROGRAM = "import sys; sys.path[:] = {path!r}; from verl_algos.rewards import _worker; _worker.main{descriptors!r}"


class WorkerStartError(RuntimeError):
    """A worker died or hung before it could score anything."""


class Pool:
    """Workers of one function. Not for several threads at once."""

    def __init__(self, function: RewardFunction, kwargs: Mapping[str, Any], num_workers: int, **limits: Any) -> None:
        self._start = _start_message(function, kwargs, limits)
        self._num_workers = num_workers
        self._wall_seconds: float = limits["wall_seconds"]
        self._start_seconds: float = limits["start_seconds"]
        self._workers: list[_Worker] = []
        self._process = os.getpid()
        self._seconds_per_row: float | None = None
        self.replaced = 0
        """Workers that died or were ended, since the beginning."""
        self._finalizer = weakref.finalize(self, _end_all, self._workers, self._process)

    def run(self, rows: Sequence[RewardRow], *, together: bool) -> list[Score | Failure]:
        """Score `rows`; result i belongs to row i.

        Args:
            rows: the responses.
            together: all of them in one worker at once, for async functions.

        Raises:
            RewardLoadError: a worker cannot load the function.
            WorkerStartError: a worker died while it started.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                "The reward runner belongs to the process that made it, not to a fork of that: make one in each."
            )
        job = _Job(rows)
        wanted = 1 if together else min(self._num_workers, len(rows))
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                selector.register(worker.answers, selectors.EVENT_READ, worker)
            try:
                while job.left:
                    while len(self._workers) < wanted and len(job.waiting) > sum(not w.busy for w in self._workers):
                        self._workers.append(worker := _Worker(self._start))
                        selector.register(worker.answers, selectors.EVENT_READ, worker)
                    for worker in self._workers[:wanted]:
                        # Cheap rows: the next chunk waits in the pipe, so that the worker does not wait for us.
                        most = 2 if (self._seconds_per_row or 1.0) < _CHEAP_SECONDS else 1
                        while worker.ready and len(worker.chunk_sizes) < most and job.waiting:
                            self._give(worker, job, len(rows) if together else None)
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
                        else:
                            worker.watch(self._wall_seconds, self._start_seconds)
            except BaseException:
                for worker in [w for w in self._workers if w.busy or not w.ready]:
                    self._workers.remove(worker)
                    worker.end()
                raise
        return [result for result in job.results if result is not None]

    def close(self) -> None:
        """End the workers; those that wait for work close what they hold."""
        self._finalizer()

    def _give(self, worker: "_Worker", job: "_Job", size: int | None) -> None:
        if size is None:
            fair = -(-len(job.waiting) // (2 * self._num_workers))
            fitting = _FIRST_CHUNK if self._seconds_per_row is None else int(_CHUNK_SECONDS / self._seconds_per_row)
            size = max(1, min(fair, fitting, _LARGEST_CHUNK))
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

    def _receive(self, worker: "_Worker", job: "_Job") -> None:
        for kind, *content in worker.receive():
            if kind == "ready":
                worker.ready = True
            elif kind == "broken":
                raise RewardLoadError(
                    f"A reward worker could not load the function: {content[0]}. Put it into a file that can be "
                    "imported alone, or set num_workers=0."
                )
            else:
                self._take(worker, job, *content)

    def _take(
        self,
        worker: "_Worker",
        job: "_Job",
        indices: list[int] | range,
        scores: list[float],
        extras: Any,
        failures: dict[int, tuple[Any, str]],
        chunk_seconds: float | None,
    ) -> None:
        job.settle_all(indices, list(map(Score, scores, extras_of(extras))))
        for index, failure in failures.items():
            job.settle(index, Failure(*failure))
        worker.outstanding.difference_update(indices, failures)
        if chunk_seconds is not None:
            per_row = max(chunk_seconds / worker.chunk_sizes.popleft(), 1e-7)
            before = self._seconds_per_row
            self._seconds_per_row = per_row if before is None or per_row < before else (before + per_row) / 2

    def _bury(self, worker: "_Worker", job: "_Job") -> None:
        """Say which row ended the worker, and put the others back."""
        worker.bury()
        self.replaced += 1
        if not worker.ready:
            raise WorkerStartError(
                f"A reward worker {worker.how_it_ended()} before it could score anything. What it printed says why; "
                "with num_workers=0 rewards are computed in this process."
            )
        left = sorted(worker.outstanding)
        culprit = worker.running()
        if culprit not in worker.outstanding and len(left) == 1:
            culprit = left[0]
        if culprit in worker.outstanding:
            left.remove(culprit)
            job.settle(culprit, worker.failure())
        else:
            job.alone.update(left)
        job.put_back(left)


class _Job:
    """Rows on their way to scores."""

    def __init__(self, rows: Sequence[RewardRow]) -> None:
        self.rows = rows
        self.results: list[Score | Failure | None] = [None] * len(rows)
        self.left = len(rows)
        self.waiting = deque(range(len(rows)))
        self.alone: set[int] = set()
        """Rows of which one has ended a worker; each gets a worker for itself, so that it is found."""

    def take(self, size: int) -> list[int]:
        """The next rows, at most `size`."""
        if self.waiting[0] in self.alone:
            return [self.waiting.popleft()]
        chunk: list[int] = []
        while self.waiting and len(chunk) < size and self.waiting[0] not in self.alone:
            chunk.append(self.waiting.popleft())
        return chunk

    def put_back(self, indices: list[int]) -> None:
        """Rows that were taken and are still to be scored."""
        self.waiting.extendleft(reversed(indices))

    def settle_all(self, indices: list[int] | range, scores: list[Score]) -> None:
        """The results of rows; those after each other at once."""
        if isinstance(indices, range) and not any(self.results[indices.start : indices.stop]):
            self.results[indices.start : indices.stop] = scores
            self.left -= len(scores)
        else:
            for index, score in zip(indices, scores, strict=True):
                self.settle(index, score)

    def settle(self, index: int, outcome: Score | Failure) -> None:
        """The result of a row."""
        self.left -= self.results[index] is None
        self.results[index] = outcome


class _Worker:
    """One process, seen from the parent."""

    def __init__(self, start: bytes) -> None:
        with tempfile.TemporaryFile() as shared:
            shared.truncate(Progress.SIZE)
            self._progress = Progress(shared.fileno())
            self._progress.end()
            commands, self.commands = os.pipe()
            self.answers, out = os.pipe()
            life, self._life = os.pipe()
            descriptors = (commands, out, life, shared.fileno())
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM.format(path=sys.path, descriptors=descriptors)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=descriptors,
                    start_new_session=True,
                )
            finally:
                for descriptor in (commands, out, life):
                    os.close(descriptor)
        for descriptor in (self.answers, self.commands):
            os.set_blocking(descriptor, False)
            if sys.platform == "linux":
                with contextlib.suppress(OSError):  # beyond what the user may have
                    fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._buffer = bytearray()
        self._seen: tuple[int, int] = (IDLE, -1)
        self._since = (time.monotonic(), 0.0)
        self._timed_out: str | None = None
        self.ready = False
        self.outstanding: set[int] = set()
        self.chunk_sizes: deque[int] = deque()
        """Of the chunks that it has not finished."""
        self._outbox = bytearray(frame(start))

    @property
    def busy(self) -> bool:
        """Whether it has something to do."""
        return bool(self.chunk_sizes)

    def give(self, chunk: list[int], message: bytes) -> None:
        """Send a chunk."""
        self.outstanding.update(chunk)
        self.chunk_sizes.append(len(chunk))
        self._outbox += frame(message)

    def receive(self) -> list[Any]:
        """The messages that have come."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.answers, 1 << 20):
                self._buffer += data
                if len(data) < 65536:
                    break
        return [pickle.loads(content) for content in split_frames(self._buffer)]

    def is_dead(self) -> bool:
        """Whether the process has ended; what it started may still hold its pipes."""
        return self._process.poll() is not None

    def running(self) -> int:
        """The row that is, or was last, being scored."""
        return self._progress.look()[0]

    def watch(self, wall_seconds: float, start_seconds: float) -> None:
        """End the process if a row has blocked it for too long: waiting for a core does not count."""
        now = time.monotonic()
        seen = self._progress.look()
        if seen != self._seen:
            self._seen, self._since = seen, (now, self._waited_for_core())
            return
        if self.ready and seen[0] == IDLE:
            return
        limit = _START_SECONDS if not self.ready else wall_seconds + start_seconds * (seen[1] <= _FIRST_ROW)
        begun, waited = self._since
        if now - begun >= limit and now - begun - (self._waited_for_core() - waited) >= limit:
            self._timed_out = f"it took longer than {wall_seconds:g} s on the clock"
            self._kill()

    def failure(self) -> Failure:
        """What became of the row that ended the process."""
        if self._timed_out is not None:
            return Failure("timeout", self._timed_out)
        if self._process.returncode == -signal.SIGPROF:
            return Failure("timeout", "it computed for longer than its limit of CPU seconds")
        return Failure("exception", f"its worker {self.how_it_ended()}")

    def how_it_ended(self) -> str:
        """In words."""
        code = self._process.returncode
        if code is None or code >= 0:
            return f"exited with code {code}"
        name = signal.Signals(-code).name
        return f"was killed by {name}" + (", perhaps for lack of memory" if name == "SIGKILL" else "")

    def end(self, wait_seconds: float = 0.0) -> None:
        """End the process and everything that it started, and wait for it.

        Args:
            wait_seconds: for a process that has nothing to do, to end by itself.
        """
        if self.commands >= 0:
            os.close(self.commands)
        self.commands = -1
        if wait_seconds and self.ready and not self.busy:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_seconds)
        self._kill()
        self._process.wait()
        self._release()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _release(self) -> None:
        for descriptor in (self.answers, self._life, self.commands):
            if descriptor >= 0:
                os.close(descriptor)
        self.answers = self._life = self.commands = -1

    def bury(self) -> None:
        """Release what is left of a process that is dead, and end what it started."""
        self._kill()
        self._release()

    def pump(self) -> bool:
        """Write what the pipe takes now; whether all of it is written."""
        try:
            while self._outbox:
                del self._outbox[: os.write(self.commands, self._outbox)]
        except BlockingIOError:
            return False
        except BrokenPipeError:  # it is dead, which is seen elsewhere
            self._outbox.clear()
        return True

    def _waited_for_core(self) -> float:
        """Seconds in which the process could have run but had no core; 0 where the system does not tell."""
        try:
            return int(Path(f"/proc/{self._process.pid}/schedstat").read_text().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0


def _end_all(workers: "list[_Worker]", process: int) -> None:
    if os.getpid() != process:  # a fork has no children of its own yet
        return
    while workers:
        workers.pop().end(wait_seconds=2.0)


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


def _chunk_message(rows: Sequence[RewardRow], chunk: list[int]) -> bytes:
    columns = tuple(map(list, zip(*(rows[index] for index in chunk), strict=True)))
    try:
        return pickle.dumps((chunk, columns), protocol=5)
    except Exception:  # noqa: BLE001 (values whose classes live in a script)
        return _shipping.dumps((chunk, columns))
