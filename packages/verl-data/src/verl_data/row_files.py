"""Any row of a Parquet or JSONL file at any time, without holding the file in memory."""

import hashlib
import mmap
import os
import tempfile
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from verl_data.chunks import read_parquet
from verl_data.errors import DataError
from verl_data.files import fetched, sha256
from verl_data.rows import BYTE_ORDER_MARK, Row, parse_line, to_rows
from verl_data.schema.fields import may_hold_surrogates, row_text_problems


class RowFile(ABC):
    """The rows of one file."""

    def __init__(self, name: str, content_hash: str) -> None:
        self.name = name
        """Its path or URL, for messages."""
        self.sha256 = content_hash
        """Names the content; a file that was moved keeps it."""

    @abstractmethod
    def __len__(self) -> int:
        """The rows of the file."""

    @abstractmethod
    def take(self, rows: Sequence[int]) -> list[Row]:
        """Return some rows, in the order asked for, as native Python values."""

    @abstractmethod
    def scan(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield every row in order, with at least those of `columns` that the file has."""

    def location(self, row: int) -> str:
        """Name a row (from 0) for messages."""
        return f"{self.name}, row {row}"


def open_rows(file: str | PathLike[str]) -> RowFile:
    """Open a Parquet or JSONL file, a path or an fsspec URL; DataError for any other, and for what cannot be read."""
    name = str(file)
    suffix = Path(name).suffix.lower()
    if suffix not in (".parquet", ".jsonl", ".json"):
        raise DataError(
            f"{name} is not a .parquet or .jsonl file. A verl_data.DataProcessor turns CSV, JSON and raw rows into "
            "Parquet."
        )
    with fetched(name) as path:
        return ParquetRows(name, path) if suffix == ".parquet" else JsonlRows(name, path)


@contextmanager
def _unnamed_file(name: str) -> Iterator[BinaryIO]:
    """Open a temporary file without a name for the rows of the file `name`; a full disk is said to be one."""
    try:
        with tempfile.TemporaryFile(prefix="verl-data-") as file:
            yield file
    except OSError as error:
        raise OSError(
            error.errno,
            f"No room to lay out the rows of {name} in {tempfile.gettempdir()} ({os.strerror(error.errno or 0)}). "
            "Free space there, or name a larger folder in the environment variable TMPDIR",
        ) from error


def _mapped(file: BinaryIO) -> mmap.mmap:
    """Map what was written to a file; the mapping outlives the file."""
    file.flush()
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def rows_of_batch(batch: pa.RecordBatch) -> list[Row | DataError]:
    """Return the rows of a batch, and for one that Python cannot hold the error that says why."""
    try:
        return list(to_rows(batch))
    except DataError as error:
        if batch.num_rows == 1:
            return [error]
        return [row for index in range(batch.num_rows) for row in rows_of_batch(batch.slice(index, 1))]


class ParquetRows(RowFile):
    """Parquet compresses whole columns, so the rows are laid out once in an unnamed temporary file, which is mapped."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(name, sha256(path))
        batches: list[int] = []
        self._reader: pa.RecordBatchFileReader | None = None
        with _unnamed_file(name) as file:
            writer: pa.RecordBatchFileWriter | None = None
            for batch in read_parquet(name, path):
                if writer is None:
                    writer = pa.ipc.new_file(file, batch.schema)
                writer.write_batch(batch)
                batches.append(batch.num_rows)
            if writer is not None:
                writer.close()
                self._reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(_mapped(file))))
        self._starts = list(accumulate(batches, initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def take(self, rows: Sequence[int]) -> list[Row]:
        """Return some rows, in the order asked for, as native Python values."""
        by_batch: dict[int, list[int]] = {}
        for position, number in enumerate(rows):
            by_batch.setdefault(bisect_right(self._starts, number) - 1, []).append(position)
        taken: list[Row] = [{} for _ in rows]
        for number, positions in by_batch.items():
            local = pa.array([rows[position] - self._starts[number] for position in positions], pa.int64())
            found = to_rows(self._batch(number).take(local))
            for position, row in zip(positions, found, strict=True):
                taken[position] = row
        return taken

    def scan(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield every row in order, with at least those of `columns` that the file has."""
        for number, begin in enumerate(self._starts[:-1]):
            batch = self._batch(number)
            batch = batch.select([name for name in columns if name in batch.schema.names])
            for row, found in enumerate(rows_of_batch(batch), begin):
                if isinstance(found, DataError):
                    raise DataError(f"{self.location(row)}: {found}") from found
                yield found

    def _batch(self, number: int) -> pa.RecordBatch:
        assert self._reader is not None  # there are batches
        return self._reader.get_batch(number)


class JsonlRows(RowFile):
    """The lines that are not blank, copied once into an unnamed temporary file, which is mapped: whatever becomes of
    the file itself, its rows are those that were hashed.
    """

    def __init__(self, name: str, path: Path) -> None:
        content = hashlib.sha256()
        self._lines, self._ends = array("Q"), array("Q", [0])
        self._text: mmap.mmap | bytes = b""
        with path.open("rb") as source, _unnamed_file(name) as file:
            for number, line in enumerate(source, 1):
                content.update(line)
                if line.strip(b" \t\r\n\xef\xbb\xbf"):
                    file.write(line)
                    self._lines.append(number)
                    self._ends.append(self._ends[-1] + len(line))
            if self._lines:
                self._text = _mapped(file)
        super().__init__(name, content.hexdigest())

    def __len__(self) -> int:
        return len(self._lines)

    def take(self, rows: Sequence[int]) -> list[Row]:
        """Return some rows, in the order asked for."""
        return [self._row(row) for row in rows]

    def scan(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield every row in order, with all of its columns."""
        return map(self._row, range(len(self)))

    def _row(self, row: int) -> Row:
        line = self._text[self._ends[row] : self._ends[row + 1]]
        parsed = parse_line(self.name, self._lines[row], line.removeprefix(BYTE_ORDER_MARK))
        if may_hold_surrogates(line) and (problems := row_text_problems(parsed)):
            raise DataError(f"{self.location(row)}: {'; '.join(problems)}.")
        return parsed

    def location(self, row: int) -> str:
        """Name a row (from 0) and its line (from 1) for messages."""
        return f"{self.name}, row {row} (line {self._lines[row]})"
