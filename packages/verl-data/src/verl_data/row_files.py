"""Any row of a Parquet or JSONL file at any time, without holding the file in memory."""

import mmap
import os
import tempfile
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import accumulate
from os import PathLike
from pathlib import Path

import pyarrow as pa

from verl_data.chunks import read_parquet
from verl_data.errors import DataError
from verl_data.files import fetched, is_url, sha256
from verl_data.rows import BYTE_ORDER_MARK, Row, parse_line, to_rows


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
        return ParquetRows(name, path) if suffix == ".parquet" else JsonlRows(name, path, is_url(name))


class ParquetRows(RowFile):
    """Parquet compresses whole columns, so the rows are laid out once in an unnamed temporary file, which is mapped."""

    def __init__(self, name: str, path: Path) -> None:
        super().__init__(name, sha256(path))
        batches: list[int] = []
        self._reader: pa.RecordBatchFileReader | None = None
        try:
            with tempfile.TemporaryFile(prefix="verl-data-") as file:
                writer: pa.RecordBatchFileWriter | None = None
                for batch in read_parquet(name, path):
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
                f"No room to lay out the rows of {name} in {tempfile.gettempdir()} ({os.strerror(error.errno or 0)}). "
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
            found = to_rows(self._batch(number).take(local))
            for position, row in zip(positions, found, strict=True):
                taken[position] = row
        return taken

    def scan(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield every row in order, with at least those of `columns` that the file has."""
        for number in range(len(self._starts) - 1):
            batch = self._batch(number)
            batch = batch.select([name for name in columns if name in batch.schema.names])
            yield from to_rows(batch)

    def _batch(self, number: int) -> pa.RecordBatch:
        assert self._reader is not None  # there are batches
        return self._reader.get_batch(number)


class JsonlRows(RowFile):
    """The file itself, with the offset of every line; of a URL a copy without a name, which is mapped."""

    def __init__(self, name: str, path: Path, is_copy: bool) -> None:
        super().__init__(name, sha256(path))
        self._path = path
        self._mapped: mmap.mmap | None = None
        if is_copy and path.stat().st_size:
            with path.open("rb") as file:  # the mapping outlives the file and its name
                self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._lines: list[int] = []
        self._offsets: list[int] = []
        offset = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip(b" \t\r\n\xef\xbb\xbf"):
                    self._lines.append(number)
                    self._offsets.append(offset)
                offset += len(line)

    def __len__(self) -> int:
        return len(self._offsets)

    def take(self, rows: Sequence[int]) -> list[Row]:
        """Return some rows, in the order asked for."""
        return list(self._read(rows))

    def scan(self, columns: Sequence[str]) -> Iterator[Row]:
        """Yield every row in order, with all of its columns."""
        yield from self._read(range(len(self)))

    def _read(self, rows: Iterable[int]) -> Iterator[Row]:
        if not self._offsets:
            return
        with self._path.open("rb") if self._mapped is None else nullcontext(self._mapped) as file:
            for row in rows:
                file.seek(self._offsets[row])
                yield parse_line(self.name, self._lines[row], file.readline().removeprefix(BYTE_ORDER_MARK))

    def location(self, row: int) -> str:
        """Name a row (from 0) and its line (from 1) for messages."""
        return f"{self.name}, row {row} (line {self._lines[row]})"
