"""The one event loop on which async reward functions run, in a thread of its own.

A semaphore, lock or HTTP session that a user's module keeps belongs to the loop it was first used on. So every call in
this process uses the same loop; it starts with the first async reward and is closed when the interpreter exits.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run `coroutine` on the process's loop and wait for it; also from inside another running event loop.

    If the wait is interrupted (Ctrl-C), the coroutine is cancelled and has ended before the interrupt goes on.

    Raises:
        RuntimeError: called on the loop itself, which would wait for itself.
    """
    return _current().run(coroutine)


class _LoopThread:
    def __init__(self) -> None:
        self._closing = False
        started: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        # A daemon, because the interpreter waits for other threads before it calls what atexit holds.
        self._thread = threading.Thread(target=self._serve, args=(started,), name="verl-rewards", daemon=True)
        self._thread.start()
        self._loop = started.result()

    def _serve(self, started: concurrent.futures.Future[asyncio.AbstractEventLoop]) -> None:
        with asyncio.Runner() as runner:  # cancels what is left and closes the loop
            loop = runner.get_loop()
            started.set_result(loop)
            while not self._closing:
                # Both leave the loop besides reaching whoever awaits the task that raised them; the loop goes on.
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    loop.run_forever()

    def run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(
                "An async reward function cannot call score_all, which would wait for itself: await the other "
                "function instead."
            )
        outcome: concurrent.futures.Future[Result] = concurrent.futures.Future()
        tasks: list[asyncio.Task[Result]] = []

        def start() -> None:
            tasks.append(self._loop.create_task(coroutine))
            tasks[0].add_done_callback(finish)

        def finish(task: asyncio.Task[Result]) -> None:
            if task.cancelled():
                outcome.cancel()
            elif (error := task.exception()) is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(task.result())

        def cancel() -> None:
            if tasks:
                tasks[0].cancel()
            else:  # interrupted before it was handed over
                coroutine.close()
                outcome.cancel()

        try:
            self._loop.call_soon_threadsafe(start)
            return outcome.result()
        finally:
            if not outcome.done():  # the wait was interrupted
                self._loop.call_soon_threadsafe(cancel)
                concurrent.futures.wait([outcome])

    def close(self) -> None:
        self._closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


#: By process id: a forked child has its parent's loop but not the thread that runs it.
_threads: dict[int, _LoopThread] = {}
_lock = threading.Lock()


def _current() -> _LoopThread:
    with _lock:
        process = os.getpid()
        if process not in _threads:
            _threads[process] = _LoopThread()
        return _threads[process]


@atexit.register
def _close() -> None:
    if (thread := _threads.pop(os.getpid(), None)) is not None:
        thread.close()
