"""Work that goes on in a thread while the caller does something else."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Generic, TypeVar

_T = TypeVar("_T")

_END = object()


@contextmanager
def ahead(items: Iterable[_T], count: int) -> Iterator[Iterator[_T]]:
    """Iterate over `items`, of which up to `count` are made ahead in a thread; what making one raises is raised here.

    The thread has ended when the block ends. A generator that held it would end it whenever the garbage collector
    comes, which may be in the middle of another thread's start, and then both wait for ever.
    """
    iterator = iter(items)
    thread = ThreadPoolExecutor(1, thread_name_prefix="verl-data-ahead")
    futures: deque[Future[object]] = deque()

    def made() -> Iterator[_T]:
        while (item := futures.popleft().result()) is not _END:
            futures.append(thread.submit(next, iterator, _END))
            yield item  # type: ignore[misc]  # not _END

    try:
        futures.extend(thread.submit(next, iterator, _END) for _ in range(count))
        yield made()
    finally:
        thread.shutdown(cancel_futures=True)


class Behind(Generic[_T]):
    """Calls that are made in order in a thread, while the caller goes on; what one raises is raised by the next."""

    def __init__(self, call: Callable[[_T], None], count: int) -> None:
        """Let up to `count` calls wait."""
        self._call = call
        self._count = count
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="verl-data-behind")
        self._waiting: deque[Future[None]] = deque()

    def __call__(self, item: _T) -> None:
        """Have `call(item)` made."""
        while len(self._waiting) >= self._count:
            self._waiting.popleft().result()
        self._waiting.append(self._thread.submit(self._call, item))

    def __enter__(self) -> "Behind[_T]":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the calls; without an error in the block, raise what they raised."""
        try:
            while self._waiting and kind is None:
                self._waiting.popleft().result()
        finally:
            self._thread.shutdown(cancel_futures=True)
