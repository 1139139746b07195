"""The process between a reward runner and each of its workers: what a reward starts ends with its worker.

A reward may start programs, in sessions of their own too, and a worker may end at any moment: by a limit, for lack of
memory, or because its runner is gone. So each worker has a parent that does nothing but wait for that.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from verl_algos.rewards._wire import Progress

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36

#: What cannot be ended in this time is left: it waits for a device, and not even SIGKILL reaches it.
_END_SECONDS = 5.0
#: How often it is looked whether the runner's process is there; a fork of it may hold the other end of `life` open.
_LOOK_SECONDS = 2.0


def supervise(life: int, runner: int, progress: int, others: Iterable[int]) -> None:
    """Return in a child of this process, the worker. This one stays, and ends after the worker and all the rest.

    The worker is ended when the other end of `life` closes, when the process `runner` is gone, or when this process
    gets SIGTERM.

    Args:
        life: a pipe on which nothing comes.
        runner: the process that started this one.
        progress: shared memory, to write the worker's status into.
        others: descriptors that only the worker needs.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the thread that started this process may have blocked some
    wakeups, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the runner decides what an interrupt ends
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # its children are what the worker's children leave
    supervisor = os.getpid()
    worker = os.fork()
    if worker == 0:
        os.setpgid(0, 0)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        for descriptor in (wakeups, waker, life):
            os.close(descriptor)
        return
    for descriptor in others:
        os.close(descriptor)
    status = _wait(worker, life, wakeups, runner)
    _end_all(worker)
    Progress(progress).ended_with(status)
    os._exit(0)


def _wait(worker: int, life: int, wakeups: int, runner: int) -> int:
    """The status with which the worker has ended, or is ended now."""
    poll = select.poll()  # which takes descriptors above 1023, too
    for descriptor in (life, wakeups):
        poll.register(descriptor, select.POLLIN)
    while True:
        ready = [descriptor for descriptor, _ in poll.poll(_LOOK_SECONDS * 1000)]
        told_to_end = wakeups in ready and signal.SIGTERM in os.read(wakeups, 4096)
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == worker:
                return ended[1]
        if told_to_end or life in ready or os.getppid() != runner:
            return signal.SIGKILL


def _end_all(worker: int) -> None:
    """End the worker and what it has left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(worker, signal.SIGKILL)
    until = time.monotonic() + _END_SECONDS
    while time.monotonic() < until:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # there is none
            return
        for child in _children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, signal.SIGKILL)
        time.sleep(1e-3)


def _children() -> list[int]:
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parent = stat.read_bytes().rpartition(b")")[2].split()[1]
            if int(parent) == os.getpid():
                children.append(int(stat.parent.name))
    return children


def _prctl(option: int, value: int) -> None:
    """Ask Linux; elsewhere only a worker's own process group ends with it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
