"""Any input, cut into chunks of a few megabytes, in constant memory: the unit in which rows are read and mapped."""

import csv
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, replace
from io import TextIOWrapper
from itertools import islice
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from verl_data.arrow_types import rows_to_batch
from verl_data.errors import DataError
from verl_data.files import fetched
from verl_data.rows import BYTE_ORDER_MARK, Row, parse_array, parse_line, to_rows

#: About how many bytes of a file make a chunk. It must not depend on anything else: chunks decide the output's bytes.
CHUNK_BYTES = 4 << 20
#: How many chunks of Parquet are read at a time: a thread that reads waits for the others each time it is done.
_CHUNKS_READ = 4
#: Rows of a chunk at the most; many short ones are several.
CHUNK_ROWS = 1 << 14


class Lines(NamedTuple):
    """Lines of a JSONL file that are not blank."""

    text: list[bytes]
    numbers: list[int]
    """The number of each in the file, from 1."""


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of an input."""

    name: str
    """The file, or "" for rows from memory."""
    index: int
    """The number of its first row in that file, from 0."""
    content: pa.RecordBatch | Lines | list[Row]
    done: float | None
    """The share of the file, or of rows in memory, that has been read with it; None if nobody knows."""

    def __len__(self) -> int:
        """The rows of the chunk."""
        content = self.content
        return content.num_rows if isinstance(content, pa.RecordBatch) else len(_rows_of(content))

    def location(self, row: int) -> str:
        """Name a row of the chunk (from 0) in the whole input, for messages."""
        where = f"row {self.index + row}"
        if isinstance(self.content, Lines):
            where += f" (line {self.content.numbers[row]})"
        return f"{self.name}, {where}" if self.name else where

    def row(self, row: int) -> Row:
        """Return one row; DataError if its line cannot be parsed."""
        if isinstance(self.content, Lines):
            return parse_line(self.name, self.content.numbers[row], self.content.text[row])
        if isinstance(self.content, pa.RecordBatch):
            return self.rows()[row]
        return self.content[row]

    def rows(self) -> list[Row]:
        """Return all rows; DataError if one cannot be parsed."""
        if isinstance(self.content, pa.RecordBatch):
            return to_rows(self.content)
        if isinstance(self.content, Lines):
            return [self.row(i) for i in range(len(self.content.text))]
        return self.content

    def batch(self) -> pa.RecordBatch:
        """Return the rows as columns; DataError if they have no common type."""
        if isinstance(self.content, pa.RecordBatch):
            return self.content
        return rows_to_batch(self.rows(), self.location)[0]


def _rows_of(content: Lines | list[Row]) -> list[Any]:
    return content.text if isinstance(content, Lines) else content


def read_rows(source: str | PathLike[str]) -> Iterator[Row]:
    """Yield the rows of a Parquet, JSONL, JSON or CSV file (all values of CSV are text); a path or an fsspec URL.

    Raises DataError, naming the file and the line or row, for what cannot be read.
    """
    name = str(Path(source).expanduser()) if isinstance(source, PathLike) else fspath(source)
    with fetched(name) as path:
        for chunk in read_chunks(name, path):
            for row in range(len(chunk)) if isinstance(chunk.content, Lines) else ():
                yield chunk.row(row)  # the rows before a line that cannot be parsed are good
            if not isinstance(chunk.content, Lines):
                yield from chunk.rows()


def read_chunks(name: str, path: Path) -> Iterator[Chunk]:
    """Yield the chunks of the file `path`, which messages call `name`."""
    suffix = Path(name).suffix.lower()
    if suffix == ".parquet":
        yield from _parquet(name, path)
    elif suffix == ".csv":
        yield from _csv(name, path)
    elif suffix == ".json" and _begins_with_bracket(path):
        yield from memory_chunks(parse_array(name, path.read_bytes()), name)  # one JSON value, which is held whole
    elif suffix in (".jsonl", ".json"):
        yield from _jsonl(name, path)
    else:
        raise DataError(f"{name} is not a .parquet, .jsonl, .json or .csv file.")


def memory_chunks(rows: Iterable[Row], name: str = "") -> Iterator[Chunk]:
    """Yield the chunks of rows that are in memory or being made."""
    total = len(rows) if isinstance(rows, Sized) else None
    rows = iter(rows)
    index = 0
    while held := list(_some(rows)):
        end = index + len(held)
        yield Chunk(name, index, held, end / total if total else None)
        index = end


def table_chunks(dataset: Any) -> Iterator[Chunk]:
    """Yield the chunks of a `datasets.Dataset` as its columns are stored: images stay encoded."""
    index, total = 0, len(dataset)
    for table in dataset.with_format("arrow").iter(1024):
        for batch in table.combine_chunks().to_batches():
            _require_utf8("the data set", index, batch)
            end = index + batch.num_rows
            yield Chunk("", index, batch, end / total)
            index = end


def _some(rows: Iterator[Row]) -> Iterator[Row]:
    weight = 0
    for row in islice(rows, CHUNK_ROWS):
        yield row
        weight += _weight(row)
        if weight >= CHUNK_BYTES:
            return


def _weight(value: Any) -> int:
    """About how many bytes a value holds."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_weight, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_weight, value))
    return int(getattr(value, "nbytes", 8))


def read_parquet(name: str, path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file as record batches of about `CHUNK_BYTES`, their text checked to be UTF-8."""
    row = 0
    try:
        # pre_buffer would hold all that was read until the file is closed
        with pq.ParquetFile(path, pre_buffer=False) as file:
            groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            row_bytes = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=1)
            size = max(1, min(CHUNK_ROWS, CHUNK_BYTES // max(row_bytes, 1)))
            for batch in file.iter_batches(batch_size=size * _CHUNKS_READ):
                _require_utf8(name, row, batch)
                row += batch.num_rows
                for begin in range(0, batch.num_rows, size):
                    yield batch.slice(begin, size)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{name} cannot be read as Parquet; it may be truncated or of another format: {error}"
        ) from error


def _require_utf8(name: str, first: int, batch: pa.RecordBatch) -> None:
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        for column, values in zip(batch.schema.names, batch.columns, strict=True):
            for index in range(batch.num_rows):
                try:
                    values.slice(index, 1).validate(full=True)
                except pa.ArrowInvalid as fault:
                    raise DataError(
                        f"{name}, row {first + index}: field {column} holds bytes that are not UTF-8 ({fault}). "
                        "Write it again with its text as UTF-8."
                    ) from fault
        raise DataError(f"{name}, rows {first} to {first + batch.num_rows - 1} are damaged: {error}") from error


def _parquet(name: str, path: Path) -> Iterator[Chunk]:
    index = total = 0
    for batch in read_parquet(name, path):
        total = total or pq.read_metadata(path).num_rows
        end = index + batch.num_rows
        yield Chunk(name, index, batch, end / total)
        index = end


def _jsonl(name: str, path: Path) -> Iterator[Chunk]:
    index = number = 0
    size = path.stat().st_size
    with path.open("rb") as file:
        while lines := file.readlines(CHUNK_BYTES):
            if number == 0:
                lines[0] = lines[0].removeprefix(BYTE_ORDER_MARK)
            numbered = [(line, number) for number, line in enumerate(lines, number + 1) if line.strip()]
            number += len(lines)
            for begin in range(0, len(numbered), CHUNK_ROWS):
                part = numbered[begin : begin + CHUNK_ROWS]
                content = Lines([line for line, _ in part], [number for _, number in part])
                yield Chunk(name, index, content, file.tell() / size)
                index += len(part)


def _begins_with_bracket(path: Path) -> bool:
    with path.open("rb") as file:
        for number, line in enumerate(file):
            text = (line.removeprefix(BYTE_ORDER_MARK) if number == 0 else line).strip()
            if text:
                return text.startswith(b"[")
    return False


def _csv(name: str, path: Path) -> Iterator[Chunk]:
    size = path.stat().st_size
    with path.open("rb") as file, TextIOWrapper(file, newline="", encoding="utf-8-sig") as text:
        for chunk in memory_chunks(_csv_rows(name, text), name):
            yield replace(chunk, done=file.tell() / size)


def _csv_rows(name: str, file: TextIO) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # the default refuses fields over 128 KiB
    reader = csv.DictReader(file, strict=True)
    index = -1
    try:
        for index, row in enumerate(reader):
            if None in row or None in row.values():
                raise DataError(
                    f"{name}, row {index} (line {reader.line_num}): the number of fields is not the header's."
                )
            yield row
    except csv.Error as error:
        raise DataError(f"{name}, row {index + 1} (line {reader.line_num}): {error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{name}, after row {index}: the bytes are not UTF-8 ({error}).") from error
