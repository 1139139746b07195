"""Chunks of rows through a processor: in this process, or in several with the same result."""

import copy
import gc
import os
import pickle
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from verl_data.arrow_types import alike, merge, rows_to_batch
from verl_data.chunks import Chunk, require_sound
from verl_data.errors import DataError
from verl_data.rows import Row, to_rows

if TYPE_CHECKING:
    from verl_data.processor import DataProcessor

#: Errors that are shown of all that are skipped.
SHOWN_ERRORS = 5
_HERE = str(Path(__file__).parent)
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
    reuse = _Reuse()
    for i, row in _each(processor, chunk, mapped):
        try:
            processed = processor.process_row(row, index + i)
        except Exception as error:
            # The user's code may raise anything; it is raised again or counted.
            problem = _problem(chunk.location(i), error)
            if not processor.skips_errors:
                raise DataError(f"{problem}. Set on_error=skip to leave such rows out.") from error
            mapped.fail(problem)
            continue
        if processed is not None and not isinstance(processed, (dict, list)):
            raise DataError(f"{chunk.location(i)}: process_row returned {_not_rows(processed)}.")
        made = [processed] if isinstance(processed, dict) else processed or ()
        mapped.dropped += not made
        for result in made:
            if not isinstance(result, dict):
                raise DataError(f"{chunk.location(i)}: process_row returned a list with {_not_rows(result)}.")
            results.append(reuse.own(result))
            origin.append(i)
    if not results:
        return

    def location(result: int) -> str:
        return f"{chunk.location(origin[result])}: its result"

    try:
        mapped.batch, mapped.kind = rows_to_batch(results, location)
    except DataError:
        if not processor.skips_errors:
            raise
        results, problems = alike(results, pa.null(), location)
        for problem in problems:
            mapped.fail(problem)
        if results:
            mapped.batch, mapped.kind = rows_to_batch(results, location)


def _each(processor: "DataProcessor", chunk: Chunk, mapped: Mapped) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a chunk with their numbers in it; one that cannot be read is raised or counted."""
    for i, row in enumerate(chunk.rows()):
        if isinstance(row, DataError):
            if not processor.skips_errors:
                raise row
            mapped.fail(str(row))
        elif not isinstance(row, dict):
            raise DataError(
                f"{chunk.location(i)}: a row (dict) is expected, not {type(row).__name__}. Of a table, pass its rows "
                "(df.to_dict('records'), table.to_pylist()); of a folder, the names of its files."
            )
        else:
            yield i, row


def leave_out_strays(mapped: Mapped, known: pa.DataType, first: int) -> pa.DataType:
    """Leave out, and count, rows of a chunk whose types do not go with `known`, that of all rows before row `first` of
    the output; return the type of all rows with the others.
    """
    try:
        return merge(known, mapped.kind)
    except DataError:
        rows, problems = alike(to_rows(mapped.batch), known, lambda row: f"Row {first + row} of the output")
    for problem in problems:
        mapped.fail(problem)
    mapped.batch, mapped.kind = rows_to_batch(rows, str) if rows else (None, pa.null())
    return merge(known, mapped.kind)


class _Reuse:
    """Notices a process_row that writes into a dict or list that it returned before; then each result is copied.

    Such code does so from its first rows on, so the first rows tell, and others need not pay for copies.
    """

    _FIRST_ROWS = 8

    def __init__(self) -> None:
        self._looks = self._FIRST_ROWS
        self._seen: dict[int, Any] = {}
        self._reused = False

    def own(self, result: Row) -> Row:
        """Return a row that later rows cannot change."""
        if self._looks:
            self._looks -= 1
            held: dict[int, Any] = {}
            _collect(result, held)
            self._reused = self._reused or not held.keys().isdisjoint(self._seen)
            self._seen |= held
            return copy.deepcopy(result)
        return copy.deepcopy(result) if self._reused else result


def _collect(value: Any, held: dict[int, Any]) -> None:
    """Add the dicts and lists in `value` by their id; holding them keeps others from getting the same one."""
    if isinstance(value, (dict, list)) and id(value) not in held:
        held[id(value)] = value
        for entry in value.values() if isinstance(value, dict) else value:
            _collect(entry, held)


def _map_batch(processor: "DataProcessor", chunk: Chunk, index: int, mapped: Mapped) -> None:
    where = f"{chunk.location(0)}, and the {mapped.read - 1} behind it"
    batch = _batch(processor, chunk, mapped)
    if batch is None:
        return
    try:
        result = processor.process_batch(batch, index)
    except Exception as error:
        # The user's code may raise anything; it is raised again or counted.
        problem = _problem(where, error)
        if not processor.skips_errors:
            raise DataError(f"{problem}. Set on_error=skip to leave such batches out.") from error
        mapped.fail(problem, batch.num_rows)
        return
    if isinstance(result, pa.Table):
        result = result.combine_chunks()
        batches = result.to_batches()
        result = batches[0] if batches else None
    if result is None or len(result) == 0:
        mapped.dropped = batch.num_rows
        return
    mapped.dropped = max(0, batch.num_rows - len(result))
    if isinstance(result, pa.RecordBatch):
        require_sound(where, 0, result)
        mapped.batch, mapped.kind = _plain(result)
        return
    if not isinstance(result, list) or not all(isinstance(row, dict) for row in result):
        raise DataError(
            f"{where}: process_batch returned {type(result).__name__}, not a pyarrow RecordBatch or Table, a list of "
            "rows (dicts) or None."
        )
    mapped.batch, mapped.kind = rows_to_batch(result, lambda row: f"{where}: result {row}")


def _batch(processor: "DataProcessor", chunk: Chunk, mapped: Mapped) -> pa.RecordBatch | None:
    if isinstance(chunk.content, pa.RecordBatch):
        return chunk.content
    found = list(_each(processor, chunk, mapped))
    if not found:
        return None
    return rows_to_batch([row for _, row in found], partial(_location_of, chunk, found))[0]


def _location_of(chunk: Chunk, found: list[tuple[int, Row]], number: int) -> str:
    return chunk.location(found[number][0])


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
    # a function that was sent to a worker has lost its file
    theirs = [frame for frame in frames if not frame.filename.startswith(("<", _HERE))]
    line = f" ({theirs[-1].filename}:{theirs[-1].lineno})" if theirs else ""
    return f"{location}: {type(error).__name__}: {error}{line}"


def map_chunks(
    processor: "DataProcessor", chunks: Iterable[Chunk], num_workers: int
) -> Generator[tuple[Chunk, Mapped], None, None]:
    """Yield every chunk with what became of it, in order, mapped by `num_workers` processes (1: this one).

    A few chunks are under way at a time. Close it where it is not read to its end: it holds the processes. Raises what
    `map_chunk` raises, for the first faulty row; DataError if a worker dies or the processor cannot be sent to one.
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
    index = 0
    under_way: deque[tuple[Chunk, Future[Mapped]]] = deque()
    chunks = iter(chunks)
    while True:
        try:
            chunk = next(chunks, None)
        except Exception:
            # What stopped the reading lies behind the rows that are under way: one of those may raise first.
            while under_way:
                yield _finished(*under_way.popleft())
            raise
        if chunk is not None:
            under_way.append((chunk, submit(chunk, index)))
            index += len(chunk)
        elif not under_way:
            return
        if chunk is None or len(under_way) == ahead:
            yield _finished(*under_way.popleft())


def _finished(chunk: Chunk, future: "Future[Mapped]") -> tuple[Chunk, Mapped]:
    from concurrent.futures import BrokenExecutor

    try:
        return chunk, future.result()
    except BrokenExecutor as error:
        raise DataError(
            f"A worker process died while rows from {chunk.location(0)} on were processed. If memory ran out, use "
            "fewer workers (num_workers) or smaller rows; with num_workers=1 a crash shows where it is."
        ) from error


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
