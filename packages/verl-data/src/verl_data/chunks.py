"""Any input, cut into chunks of a few megabytes, in constant memory: the unit in which rows are read and mapped."""

import csv
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass, replace
from io import TextIOWrapper
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from verl_data.errors import DataError
from verl_data.files import fetched
from verl_data.rows import BYTE_ORDER_MARK, Row, parse_array, parse_line, to_rows

#: About how many bytes of a file make a chunk. It must not depend on anything else: chunks decide the output's bytes.
CHUNK_BYTES = 4 << 20
#: How many chunks of Parquet are read at a time: a thread that reads waits for the others each time it is done.
_CHUNKS_READ = 4
#: Rows of a chunk at the most: of short rows, too, which process_row may make into long ones.
CHUNK_ROWS = 1 << 11


class Lines(NamedTuple):
    """Lines of a JSONL file that are not blank."""

    text: list[bytes]
    numbers: list[int]
    """The number of each in the file, from 1."""


class Unreadable(NamedTuple):
    """Stands for a row that could not be read, where those behind it can."""

    problem: str


@dataclass(frozen=True)
class Chunk:
    """Consecutive rows of an input."""

    name: str
    """The file, or "" for rows from memory."""
    index: int
    """The number of its first row in that file, from 0."""
    content: pa.RecordBatch | Lines | list[Row | Unreadable]
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

    def row(self, index: int) -> Row:
        """Return one row (from 0); DataError if it cannot be read."""
        if isinstance(self.content, pa.RecordBatch):
            return to_rows(self.content.slice(index, 1))[0]
        if isinstance(self.content, Lines):
            return parse_line(self.name, self.content.numbers[index], self.content.text[index])
        row = self.content[index]
        if isinstance(row, Unreadable):
            raise DataError(row.problem)
        return row

    def rows(self) -> Iterator[Row | DataError]:
        """Yield the rows, and for one that cannot be read the error that says why."""
        if isinstance(self.content, pa.RecordBatch):
            yield from to_rows(self.content)
            return
        for index in range(len(self)):
            try:
                yield self.row(index)
            except DataError as error:
                yield error


def _rows_of(content: Lines | list[Row | Unreadable]) -> list[Any]:
    return content.text if isinstance(content, Lines) else content


def read_rows(source: str | PathLike[str]) -> Iterator[Row]:
    """Yield the rows of a Parquet, JSONL, JSON or CSV file (all values of CSV are text); a path or an fsspec URL.

    Raises DataError, naming the file and the line or row, for what cannot be read.
    """
    name = str(Path(source).expanduser()) if isinstance(source, PathLike) else fspath(source)
    with fetched(name) as path:
        for chunk in read_chunks(name, path):
            for row in chunk.rows():
                if isinstance(row, DataError):
                    raise row
                yield row


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


def memory_chunks(rows: Iterable[Row | Unreadable], name: str = "") -> Iterator[Chunk]:
    """Yield the chunks of rows that are in memory or being made; if making one raises, those before it come first."""
    total = len(rows) if isinstance(rows, Sized) else None
    held: list[Row | Unreadable] = []
    end = weight = 0

    def chunk() -> Chunk:
        return Chunk(name, end - len(held), held, end / total if total else None)

    try:
        for row in rows:
            held.append(row)
            end += 1
            weight += _weight(row)
            if len(held) == CHUNK_ROWS or weight >= CHUNK_BYTES:
                yield chunk()
                held, weight = [], 0
    except Exception:
        if held:
            yield chunk()
        raise
    if held:
        yield chunk()


def table_chunks(dataset: Any) -> Iterator[Chunk]:
    """Yield the chunks of a `datasets.Dataset` as its columns are stored: images stay encoded."""
    index, total = 0, len(dataset)
    for table in dataset.with_format("arrow").iter(1024):
        for batch in table.combine_chunks().to_batches():
            require_sound("the data set", index, batch)
            end = index + batch.num_rows
            yield Chunk("", index, batch, end / total)
            index = end


def _weight(value: Any, depth: int = 0) -> int:
    """About how many bytes a value holds."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, (dict, list, tuple)) and depth < 20:
        entries = value.values() if isinstance(value, dict) else value
        return sum(_weight(entry, depth + 1) for entry in entries)
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
                require_sound(name, row, batch)
                row += batch.num_rows
                for begin in range(0, batch.num_rows, size):
                    yield batch.slice(begin, size)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{name} cannot be read as Parquet; it may be truncated or of another format: {error}"
        ) from error


def require_sound(name: str, first: int, batch: pa.RecordBatch) -> None:
    """Raise DataError for a name that two columns have, and for text that is not UTF-8 (`first` is row 0's number)."""
    names = batch.schema.names
    if len(set(names)) < len(names):
        twice = next(column for column in names if names.count(column) > 1)
        raise DataError(f"{name} has two columns {twice!r}, of which a row could hold one. Rename or drop one.")
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        for column, values in zip(names, batch.columns, strict=True):
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


def _csv_rows(name: str, file: TextIO) -> Iterator[Row | Unreadable]:
    csv.field_size_limit(2**31 - 1)  # the default refuses fields over 128 KiB
    reader = csv.DictReader(file, strict=True)
    index = 0
    try:
        header = list(reader.fieldnames or [])
        if len(set(header)) < len(header):
            twice = next(field for field in header if header.count(field) > 1)
            raise DataError(f"{name}: two columns have the header {twice!r}. Give each its own.")
        for row in reader:
            count = len(header) - list(row.values()).count(None) + len(row.get(None) or ())
            if count == len(header):
                yield row
            else:
                yield Unreadable(
                    f"{name}, row {index} (line {reader.line_num}): it has {count} fields, but the header has "
                    f"{len(header)}."
                )
            index += 1
    except csv.Error as error:
        raise DataError(f"{name}, row {index} (line {reader.line_num}): {error}") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}, at row {index} or soon behind it: the bytes are not UTF-8 ({error}). Convert the file to UTF-8, "
            "for example with iconv -f GBK -t UTF-8."
        ) from error
