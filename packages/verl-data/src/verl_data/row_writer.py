"""Rows to one Parquet file, in constant memory, with one type per column that all rows agree on."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from verl_data.arrow_types import merge, refit, rows_to_batch, storable
from verl_data.chunks import memory_chunks
from verl_data.errors import DataError
from verl_data.files import HASH_BYTES, atomic_file
from verl_data.rows import Row

#: About how many bytes a row group holds in memory.
_GROUP_BYTES = 16 << 20


def write_rows(rows: Iterable[Row], output: str | PathLike[str]) -> int:
    """Write rows to the Parquet file `output`, which appears whole or not at all, and return how many they were.

    A column with 5 in the first row and "5" in the last is text throughout, in whatever order they come.

    Raises DataError for no rows at all and for rows that do not fit into one table; OSError where there is no room.
    """
    with parquet_output(output) as writer:
        for chunk in memory_chunks(rows):
            rows_of_chunk = list(chunk.rows())
            for index, row in enumerate(rows_of_chunk):
                if not isinstance(row, dict):
                    raise DataError(f"{_output_row(chunk.index, index)}: a dict is expected, not {type(row).__name__}.")
            writer.add(*rows_to_batch(cast(list[Row], rows_of_chunk), partial(_output_row, chunk.index)))
    return writer.rows


def _output_row(first: int, row: int) -> str:
    return f"Row {first + row} of the output"


@contextmanager
def parquet_output(path: str | PathLike[str]) -> Iterator["ParquetOutput"]:
    """Open the Parquet file `path`, which appears when the block ends without an error.

    Raises DataError if no row was added.
    """
    target = Path(path).expanduser()
    with atomic_file(target) as file, ExitStack() as stack:
        output = ParquetOutput(file, target, stack)
        yield output
        output.finish()


class ParquetOutput:
    """A Parquet file that is written as rows come, although only the last row decides the types of its columns.

    It is written with the types known so far. When a row widens one, what was written is set aside; at the end all of
    it is written once more with the types that hold for all rows. So rows that agree, the usual case, are written once.
    """

    def __init__(self, file: BinaryIO, target: Path, stack: ExitStack) -> None:
        """Write to `file`, which will be `target`; what is opened for that is closed with `stack`."""
        self.rows = 0
        """Rows written."""
        self.sha256 = ""
        """The SHA-256 of the finished file, in hexadecimal."""
        self.target = target
        self._file = file
        self._stack = stack
        self._kind: pa.DataType = pa.null()
        self._stored: pa.DataType = pa.null()
        self._writer: _GroupWriter | None = None
        self._aside: list[BinaryIO] = []

    def add(self, batch: pa.RecordBatch, kind: pa.DataType) -> None:
        """Append rows in the storable form of `kind`, the type that was learnt from them (`rows_to_batch`)."""
        try:
            self._kind = merge(self._kind, kind)
        except DataError as error:
            last = self.rows + batch.num_rows - 1
            raise DataError(f"Rows {self.rows} to {last} of the output: {error}") from error
        stored = storable(self._kind)
        if self._writer is None or stored != self._stored:
            self._set_aside()
            self._stored = stored
            self._writer = self._open()
        self._writer.add(self._fit(batch))
        self.rows += batch.num_rows

    def finish(self) -> None:
        """Write what is left, and everything again if a type was widened; DataError if there is no row."""
        if self._writer is None:
            raise DataError(f"There is no row to write to {self.target}.")
        if self._aside:
            self._set_aside()
            self._writer = self._open()
            for part in self._aside:
                with pq.ParquetFile(part) as file:
                    for batch in file.iter_batches(batch_size=1024):
                        self._writer.add(self._fit(batch))
        self.sha256 = self._writer.finish()

    def _fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if pa.struct(list(batch.schema)) == self._stored:
            return batch
        return refit(batch, self._stored, partial(_output_row, self.rows))

    def _open(self) -> "_GroupWriter":
        return _GroupWriter(self._file, pa.schema(list(self._stored)), self._stack)

    def _set_aside(self) -> None:
        """Copy what was written so far to an unnamed file beside the output, which then is written from its start."""
        if self._writer is None:
            return
        self._writer.finish()
        part = self._stack.enter_context(tempfile.TemporaryFile(dir=self.target.parent))  # noqa: SIM115
        self._file.seek(0)
        shutil.copyfileobj(self._file, part, HASH_BYTES)
        self._aside.append(part)


class _GroupWriter:
    """Writes a Parquet file in row groups, with a thread behind it that hashes them and sends them to the disk.

    Writing stays in native code: a thread that needs Python for every page waits for the other threads each time.
    """

    def __init__(self, file: BinaryIO, schema: pa.Schema, stack: ExitStack) -> None:
        self._file = file
        self._writer = stack.enter_context(pq.ParquetWriter(file.name, schema))
        self._batches: list[pa.RecordBatch] = []
        self._hash = hashlib.sha256()
        self._hashed_bytes = 0
        self._thread = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="verl-data-trail"))
        self._following: Future[None] | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        self._batches.append(batch)
        if sum(held.nbytes for held in self._batches) >= _GROUP_BYTES:
            self._write_group()
            if self._following is None or self._following.done():
                self._following = self._thread.submit(self._follow)

    def finish(self) -> str:
        """Complete the file, on the disk too, and return its SHA-256."""
        self._write_group()
        self._writer.close()
        if self._following is not None:
            self._following.result()
        self._follow()
        return self._hash.hexdigest()

    def _write_group(self) -> None:
        if self._batches:
            table = pa.Table.from_batches(self._batches)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._batches = []

    def _follow(self) -> None:
        descriptor = self._file.fileno()
        while data := os.pread(descriptor, HASH_BYTES, self._hashed_bytes):
            self._hash.update(data)
            self._hashed_bytes += len(data)
        os.fsync(descriptor)
