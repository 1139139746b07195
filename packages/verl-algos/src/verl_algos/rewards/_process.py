"""One worker process with its supervisor, seen from the parent: its pipes, its progress, its limits and its end."""

import contextlib
import fcntl
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

from verl_algos.rewards._wire import IDLE, SHARED_BYTES, Progress, Slots, frame, split_frames, write_all
from verl_algos.rewards.types import Failure

_START_SECONDS = 120.0
_PIPE_BYTES, _READ_BYTES = 1 << 20, 1 << 16
_END_SECONDS = 10.0  # for what a supervisor has to end
_STUCK_SECONDS = 0.5  # of one row, after which its worker is not counted on

_PROGRAM = "import sys; sys.path[:] = {path!r}; from verl_algos.rewards import _worker; _worker.main{arguments!r}"


class WorkerProcess:
    """A process that scores rows."""

    def __init__(self, start: bytes) -> None:
        with contextlib.ExitStack() as opened, contextlib.ExitStack() as theirs:

            def pipe() -> tuple[int, int]:
                ends = os.pipe()
                for end in ends:
                    opened.callback(os.close, end)
                return ends

            shared = _shared_memory()
            theirs.callback(os.close, shared)
            self._progress = Progress(shared)
            self._progress.end()
            self._slots = Slots(shared)
            (commands, self.commands), (self.answers, out), (life, self._life) = pipe(), pipe(), pipe()
            descriptors = (commands, out, life, shared)
            program = _PROGRAM.format(path=sys.path, arguments=(*descriptors, os.getpid()))
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,
            )
            opened.pop_all()
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
        self.started = time.monotonic()
        self.first_chunk = True
        """Whether its first chunk is still to come, or on its way."""
        self.ready = False
        self._pid: int | None = None
        self._first_row: int | None = None
        self.outstanding: set[int] = set()
        self.chunk_sizes: deque[int] = deque()
        """Of the chunks that it has not finished."""
        self._outbox = deque([memoryview(frame(start))])

    @property
    def busy(self) -> bool:
        """Whether it has something to do."""
        return bool(self.chunk_sizes)

    def begins(self, pid: int) -> None:
        """It has loaded the function, and is the process `pid`."""
        self.ready = True
        self._pid = pid

    def give(self, chunk: list[int], message: bytes) -> None:
        """Send a chunk."""
        if self._first_row is None:
            self._first_row = chunk[0]
        self.outstanding.update(chunk)
        self.chunk_sizes.append(len(chunk))
        self._outbox += self._slots.give(message)

    def receive(self) -> list[Any]:
        """The messages that have come."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.answers, _READ_BYTES):
                self._buffer += data
                if len(data) < _READ_BYTES:
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
        limit = (
            _START_SECONDS
            if not self.ready
            else wall_seconds + start_seconds * (self.first_chunk and seen[0] == self._first_row)
        )
        begun, waited = self._since
        if now - begun >= limit and now - begun - (self._waited_for_core() - waited) >= limit:
            self._timed_out = f"it took longer than {wall_seconds:g} s on the clock"
            self._kill()

    def is_stuck(self) -> bool:
        """Whether it has been at one row for long, so that it may never come back from it."""
        return self._seen[0] != IDLE and time.monotonic() - self._since[0] > _STUCK_SECONDS

    def failure(self) -> Failure:
        """What became of the row that ended the process."""
        code = self._exit_code()
        if self._timed_out is not None and code == -signal.SIGKILL:  # it may have ended before it could be ended
            return Failure("timeout", self._timed_out)
        if code == -signal.SIGPROF:
            return Failure("timeout", "it computed for longer than its limit of CPU seconds")
        return Failure("exception", f"its worker {self.how_it_ended()}")

    def how_it_ended(self) -> str:
        """In words."""
        code = self._exit_code()
        if code is None or code >= 0:
            return f"exited with code {code}"
        name = signal.Signals(-code).name
        return f"was killed by {name}" + (", perhaps for lack of memory" if name == "SIGKILL" else "")

    def _exit_code(self) -> int | None:
        """The worker's own; the supervisor's if that could not tell."""
        status = self._progress.status
        return self._process.returncode if status is None else os.waitstatus_to_exitcode(status)

    def ask_to_end(self) -> None:
        """Let a process that has nothing to do end by itself."""
        if self.commands >= 0:
            os.close(self.commands)
        self.commands = -1

    def end(self, until: float = 0.0) -> None:
        """End the process and everything that it started, and wait for it.

        Args:
            until: the time (monotonic) until which one that has nothing to do may end by itself.
        """
        self.ask_to_end()
        if self.ready and not self.busy:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(until - time.monotonic(), 0.0))
        self._kill()
        os.close(self._life)
        self._life = -1
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # nothing can end what it waits for
            self._process.kill()
            self._process.wait()
        self.release()

    def _kill(self) -> None:
        """Let the supervisor end the worker and all that it started."""
        self._process.terminate()
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGCONT)  # a row may have stopped it

    def release(self) -> None:
        """Release what is left of a process that is dead."""
        for descriptor in (self.answers, self._life, self.commands):
            if descriptor >= 0:
                os.close(descriptor)
        self.answers = self._life = self.commands = -1

    def pump(self) -> bool:
        """Write what the pipe takes now; whether all of it is written."""
        try:
            while self._outbox:
                written = os.write(self.commands, self._outbox[0])
                if written == len(self._outbox[0]):
                    self._outbox.popleft()
                else:
                    self._outbox[0] = self._outbox[0][written:]
        except BlockingIOError:
            return False
        except BrokenPipeError:  # it is dead, which is seen elsewhere
            self._outbox.clear()
        return True

    def _waited_for_core(self) -> float:
        """Seconds in which the process could have run but had no core; 0 where the system does not tell."""
        try:
            return int(Path(f"/proc/{self._pid}/schedstat").read_text().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0


def _shared_memory() -> int:
    """A descriptor of memory for `Progress` and `Slots`.

    It is written once, so that no page of it can be missing later: on a full disk that would end this process.
    """
    if sys.platform == "linux":
        shared = os.memfd_create("verl-rewards", 0)
    else:
        with tempfile.TemporaryFile() as file:
            shared = os.dup(file.fileno())
    try:
        write_all(shared, bytes(SHARED_BYTES))
    except OSError:
        os.close(shared)
        raise
    return shared
