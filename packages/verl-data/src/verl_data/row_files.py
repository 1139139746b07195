"""Any row of a Parquet or JSONL file at any time, without holding the file in memory."""

import mmap
import os
import tempfile
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import pyarrow as pa

from verl_data.errors import DataError
from verl_data.files import sha256
from verl_data.rows import BYTE_ORDER_MARK, Row, parse_line, read_parquet, to_rows


class RowFile(ABC):
    """The rows of one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sha256 = sha256(path)
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
        return f"{self.path}, row {row}"


def open_rows(path: Path) -> RowFile:
    """Open a Parquet or JSONL file; DataError for any other, and for what cannot be read."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return ParquetRows(path)
    if suffix in (".jsonl", ".json"):
        return JsonlRows(path)
    raise DataError(
        f"{path} is not a .parquet or .jsonl file. A verl_data.DataProcessor turns CSV, JSON and raw rows into Parquet."
    )


class ParquetRows(RowFile):
    """Parquet compresses whole columns, so the rows are laid out once in an unnamed temporary file, which is mapped."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        batches: list[int] = []
        self._reader: pa.RecordBatchFileReader | None = None
        try:
            with tempfile.TemporaryFile(prefix="verl-data-") as file:
                writer: pa.RecordBatchFileWriter | None = None
                for batch in read_parquet(path):
                    if writer is None:
                        writer = pa.ipc.new_file(file, batch.schema)
                    writer.write_batch(batch)
                    batches.append(batch.num_rows)
                if writer is not None:
                    writer.close()
                    file.flush()
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # outlives the closed file
                    self._reader = pa.ipc.open_file(pa.BufferReader(pa.py_buffer(mapped)))
        except OSError as error:
            raise OSError(
                error.errno,
                f"No room to lay out the rows of {path} in {tempfile.gettempdir()} ({os.strerror(error.errno or 0)}). "
                "Free space there, or name a larger folder in the environment variable TMPDIR",
            ) from error
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
            found = self._rows(number, self._batch(number).take(local))
            for position, row in zip(positions, found, strict=True):
                taken[position] = row
        return taken

    def scan(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield every row in order, with at least those of `columns` that the file has."""
        for number in range(len(self._starts) - 1):
            batch = self._batch(number)
            batch = batch.select([name for name in columns if name in batch.schema.names])
            yield from self._rows(number, batch)

    def _batch(self, number: int) -> pa.RecordBatch:
        assert self._reader is not None  # there are batches
        return self._reader.get_batch(number)

    def _rows(self, number: int, batch: pa.RecordBatch) -> list[Row]:
        try:
            return to_rows(batch)
        except DataError as error:
            raise DataError(f"{self.path}, from row {self._starts[number]} on: {error}") from error


class JsonlRows(RowFile):
    """The file itself, with the offset of every line."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._lines: list[int] = []
        offsets: list[int] = []
        offset = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip(b" \t\r\n\xef\xbb\xbf"):
                    self._lines.append(number)
                    offsets.append(offset)
                offset += len(line)
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets)

    def take(self, rows: Sequence[int]) -> list[Row]:
        """Return some rows, in the order asked for."""
        taken = []
        with self.path.open("rb") as file:
            for row in rows:
                file.seek(self._offsets[row])
                taken.append(self._parse(row, file.readline()))
        return taken

    def scan(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield every row in order, with all of its columns."""
        with self.path.open("rb") as file:
            for row, offset in enumerate(self._offsets):
                file.seek(offset)
                yield self._parse(row, file.readline())

    def _parse(self, row: int, line: bytes) -> Row:
        return parse_line(self.path, self._lines[row], line.removeprefix(BYTE_ORDER_MARK))

    def location(self, row: int) -> str:
        """Name a row (from 0) and its line (from 1) for messages."""
        return f"{self.path}, row {row} (line {self._lines[row]})"
