"""Chunks of rows through a processor: in this process, or in several with the same result."""

import gc
import os
import pickle
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from verl_data.arrow_types import rows_to_batch
from verl_data.chunks import Chunk
from verl_data.errors import DataError
from verl_data.rows import Row

if TYPE_CHECKING:
    from verl_data.processor import DataProcessor

#: Errors that are shown of all that are skipped.
SHOWN_ERRORS = 5
#: Chunks per worker that are under way, so that none waits for work.
_AHEAD = 2


@dataclass
class Mapped:
    """What became of a chunk."""

    read: int
    """Rows of the chunk."""
    batch: pa.RecordBatch | None = None
    """The resulting rows, if any, in the storable form of `kind`."""
    kind: pa.DataType = field(default_factory=pa.null)
    """The type learnt from them."""
    dropped: int = 0
    failed: int = 0
    """Rows that raised, where such rows are skipped."""
    errors: list[str] = field(default_factory=list)
    """What the first few of them raised."""

    def fail(self, problem: str, rows: int = 1) -> None:
        """Count rows that raised."""
        self.failed += rows
        if len(self.errors) < SHOWN_ERRORS:
            self.errors.append(problem)


def map_chunk(processor: "DataProcessor", chunk: Chunk, index: int) -> Mapped:
    """Run the processor over a chunk, whose first row is number `index` of all input.

    Raises DataError, naming the row, for one that raises unless the processor skips such rows, and for results that are
    no rows.
    """
    mapped = Mapped(read=len(chunk))
    with _no_collection():
        if processor.works_on_batches:
            _map_batch(processor, chunk, index, mapped)
        else:
            _map_rows(processor, chunk, index, mapped)
    return mapped


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector from looking through a chunk's thousands of new dicts: a third of all the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _map_rows(processor: "DataProcessor", chunk: Chunk, index: int, mapped: Mapped) -> None:
    results: list[Row] = []
    origin: list[int] = []  # the row that each result came from
    whole = chunk.rows() if isinstance(chunk.content, pa.RecordBatch) else None
    for i in range(mapped.read):
        try:
            row = chunk.row(i) if whole is None else whole[i]
        except DataError as error:  # a line that is no JSON object
            if not processor.skips_errors:
                raise
            mapped.fail(str(error))
            continue
        try:
            processed = processor.process_row(row, index + i)
        except Exception as error:
            # The user's code may raise anything; it is raised again or counted.
            problem = _problem(chunk.location(i), error)
            if not processor.skips_errors:
                raise DataError(f"{problem}. Set on_error=skip to leave such rows out.") from error
            mapped.fail(problem)
            continue
        if isinstance(processed, dict):
            results.append(processed)
            origin.append(i)
            continue
        if processed is not None and not isinstance(processed, list):
            raise DataError(f"{chunk.location(i)}: process_row returned {_not_rows(processed)}.")
        mapped.dropped += not processed
        for result in processed or ():
            if not isinstance(result, dict):
                raise DataError(f"{chunk.location(i)}: process_row returned a list with {_not_rows(result)}.")
            results.append(result)
            origin.append(i)
    if results:
        mapped.batch, mapped.kind = rows_to_batch(results, lambda row: f"{chunk.location(origin[row])}: its result")


def _map_batch(processor: "DataProcessor", chunk: Chunk, index: int, mapped: Mapped) -> None:
    where = f"{chunk.location(0)}, and the {mapped.read - 1} behind it"
    try:
        result = processor.process_batch(chunk.batch(), index)
    except Exception as error:
        # The user's code may raise anything; it is raised again or counted.
        problem = _problem(where, error)
        if not processor.skips_errors:
            raise DataError(f"{problem}. Set on_error=skip to leave such batches out.") from error
        mapped.fail(problem, mapped.read)
        return
    if isinstance(result, pa.Table):
        result = result.combine_chunks()
        batches = result.to_batches()
        result = batches[0] if batches else None
    if result is None or len(result) == 0:
        mapped.dropped = mapped.read
        return
    mapped.dropped = max(0, mapped.read - len(result))
    if isinstance(result, pa.RecordBatch):
        mapped.batch, mapped.kind = _plain(result)
        return
    if not isinstance(result, list) or not all(isinstance(row, dict) for row in result):
        raise DataError(
            f"{where}: process_batch returned {type(result).__name__}, not a pyarrow RecordBatch or Table, a list of "
            "rows (dicts) or None."
        )
    mapped.batch, mapped.kind = rows_to_batch(result, lambda row: f"{where}: result {row}")


def _plain(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.DataType]:
    """Return columns without dictionaries and views, large lists or nothing but null: as rows would have given."""
    schema = pa.schema([(column.name, _plain_type(column.type)) for column in batch.schema])
    if schema != batch.schema:
        batch = batch.cast(schema)
    kind = pa.struct(list(schema))
    return batch, kind


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pa.types.is_null(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(entry.name, _plain_type(entry.type)) for entry in kind])
    return kind


def _not_rows(value: Any) -> str:
    return f"{type(value).__name__}, not a row (dict), rows or None"


def _problem(location: str, error: Exception) -> str:
    """Name the row, the error, and the line of the user's code that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = {__file__, rows_to_batch.__code__.co_filename}
    # a function that was sent to a worker has lost its file
    theirs = [frame for frame in frames if frame.filename not in ours and not frame.filename.startswith("<")]
    line = f" ({theirs[-1].filename}:{theirs[-1].lineno})" if theirs else ""
    return f"{location}: {type(error).__name__}: {error}{line}"


def map_chunks(processor: "DataProcessor", chunks: Iterable[Chunk], num_workers: int) -> Iterator[tuple[Chunk, Mapped]]:
    """Yield every chunk with what became of it, in order, mapped by `num_workers` processes (1: this one).

    A few chunks are under way at a time. Raises what `map_chunk` raises, for the first faulty row; DataError if a
    worker dies or the processor cannot be sent to one.
    """
    if num_workers == 1:
        index = 0
        for chunk in chunks:
            yield chunk, map_chunk(processor, chunk, index)
            index += len(chunk)
        return
    with _workers(processor, num_workers) as submit:
        yield from _in_order(submit, chunks, num_workers * _AHEAD)


def _in_order(
    submit: Callable[[Chunk, int], "Future[Mapped]"], chunks: Iterable[Chunk], ahead: int
) -> Iterator[tuple[Chunk, Mapped]]:
    from concurrent.futures import BrokenExecutor

    index = 0
    under_way: deque[tuple[Chunk, Future[Mapped]]] = deque()
    chunks = iter(chunks)
    while True:
        for chunk in chunks:
            under_way.append((chunk, submit(chunk, index)))
            index += len(chunk)
            if len(under_way) == ahead:
                break
        if not under_way:
            return
        chunk, future = under_way.popleft()
        try:
            mapped = future.result()
        except BrokenExecutor as error:
            raise DataError(
                f"A worker process died while rows from {chunk.location(0)} on were processed. If memory ran out, use "
                "fewer workers (num_workers) or smaller rows; with num_workers=1 a crash shows where it is."
            ) from error
        yield chunk, mapped


@contextmanager
def _workers(processor: "DataProcessor", num_workers: int) -> Iterator[Callable[[Chunk, int], "Future[Mapped]"]]:
    """Start processes that hold the processor, and give the function that sends them a chunk.

    They are loky's, which, unlike multiprocessing's, take lambdas and functions of a script, and do not run the script
    again that started them.
    """
    import cloudpickle
    from loky import ProcessPoolExecutor

    try:
        pickled = cloudpickle.dumps(processor)
    except Exception as error:
        # Whatever the processor holds decides what its pickling raises.
        raise DataError(
            f"The processor cannot be sent to worker processes ({type(error).__name__}: {error}). Let process_row open "
            "what it needs (files, connections, locks), or use num_workers=1."
        ) from error
    executor = ProcessPoolExecutor(num_workers, initializer=_start, initargs=(pickled, os.getpid()))
    try:
        yield lambda chunk, index: executor.submit(_map_in_worker, chunk, index)
    finally:
        executor.shutdown(kill_workers=True)


_pickled = b""
_processor: "DataProcessor | None" = None


def _start(pickled: bytes, parent: int) -> None:
    """Make a worker ready: it knows its processor, and ends when the process that started it is gone."""
    global _pickled  # a worker process has one processor for all its life
    _pickled = pickled
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _map_in_worker(chunk: Chunk, index: int) -> Mapped:
    global _processor
    if _processor is None:
        try:
            _processor = pickle.loads(_pickled)
        except Exception as error:
            # Loading runs the user's modules, which may raise anything.
            raise DataError(
                f"A worker process cannot load the processor ({type(error).__name__}: {error}). Define it in the "
                "script itself, or in a module that can be imported from where the script runs; or use num_workers=1."
            ) from error
    return map_chunk(_processor, chunk, index)
