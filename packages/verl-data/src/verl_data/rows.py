"""Reading rows from files, one at a time, in constant memory."""

import csv
import json
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from verl_data.errors import DataError

Row = dict[str, Any]

#: Parquet cannot store a dict without keys; it is stored with this one key, which readers here take out again.
EMPTY_DICT_KEY = "__empty__"
#: About how much of a file is held in memory at a time.
BATCH_BYTES = 16 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_rows(source: str | PathLike[str]) -> Iterator[Row]:
    """Yield the rows of a Parquet, JSONL, JSON or CSV file (all values of CSV are text).

    Raises DataError, naming the file and the line or row, for what cannot be read.
    """
    path = Path(source).expanduser()
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        for batch in read_parquet(path):
            yield from to_rows(batch)
    elif suffix == ".csv":
        yield from _read_csv(path)
    elif suffix == ".json" and _begins_with_bracket(path):
        yield from _read_json_array(path)
    elif suffix in (".jsonl", ".json"):
        for number, line in enumerate(read_lines(path), 1):
            if line.strip():
                yield parse_line(path, number, line)
    else:
        raise DataError(f"{path} is not a .parquet, .jsonl, .json or .csv file.")


def read_parquet(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a Parquet file as record batches of about `BATCH_BYTES`."""
    try:
        with pq.ParquetFile(path) as file:
            groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
            row_bytes = max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=1)
            yield from file.iter_batches(batch_size=max(1, min(65536, BATCH_BYTES // max(row_bytes, 1))))
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path} cannot be read as Parquet; it may be truncated or of another format: {error}"
        ) from error


def to_rows(batch: pa.RecordBatch) -> list[Row]:
    """Turn a record batch into rows of native Python types."""
    try:
        rows: list[Row] = batch.to_pylist(maps_as_pydicts="strict")
    except UnicodeDecodeError as error:
        raise DataError(f"A text column holds bytes that are not UTF-8: {error}") from error
    if EMPTY_DICT_KEY in str(batch.schema):
        rows = [_restore_empty(row) for row in rows]
    return rows


def _restore_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _restore_empty(entry) for key, entry in value.items() if key != EMPTY_DICT_KEY}
    if isinstance(value, list):
        return [_restore_empty(entry) for entry in value]
    return value


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a text file, without a byte order mark."""
    with path.open("rb") as file:
        for number, line in enumerate(file):
            yield line.removeprefix(BYTE_ORDER_MARK) if number == 0 else line


def parse_line(path: Path, number: int, line: bytes) -> Row:
    """Parse line `number` (from 1) of a JSONL file."""
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, line {number}: the bytes are not UTF-8 ({error}). Convert the file to UTF-8."
        ) from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}, line {number}: it is not JSON ({error}). JSONL has one JSON object per line."
        ) from error
    if not isinstance(row, dict):
        raise DataError(f"{path}, line {number}: a JSON object is expected, not {type(row).__name__}.")
    return row


def _begins_with_bracket(path: Path) -> bool:
    for line in read_lines(path):
        if line.strip():
            return line.lstrip().startswith(b"[")
    return False


def _read_json_array(path: Path) -> Iterator[Row]:
    try:
        rows = json.loads(path.read_bytes().decode("utf-8-sig"))  # an array is one JSON value: it is held whole
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{path} cannot be read as a JSON array: {error}") from error
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise DataError(f"{path}, row {index}: a JSON object is expected, not {type(row).__name__}.")
        yield row


def _read_csv(path: Path) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # the default refuses fields over 128 KiB
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, strict=True)
        index = -1
        try:
            for index, row in enumerate(reader):
                if None in row or None in row.values():
                    raise DataError(
                        f"{path}, row {index} (line {reader.line_num}): the number of fields is not the header's."
                    )
                yield row
        except csv.Error as error:
            raise DataError(f"{path}, row {index + 1} (line {reader.line_num}): {error}") from error
        except UnicodeDecodeError as error:
            raise DataError(f"{path}, after row {index}: the bytes are not UTF-8 ({error}).") from error
