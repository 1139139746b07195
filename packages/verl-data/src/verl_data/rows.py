"""Rows as Python values: from Arrow columns, and from lines of JSON."""

import json
from collections.abc import Callable
from functools import lru_cache
from os import PathLike
from typing import Any

import pyarrow as pa

from verl_data.errors import DataError

Row = dict[str, Any]

#: Parquet cannot store a dict without keys; it is stored with this one key, which readers here take out again.
EMPTY_DICT_KEY = "__empty__"
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def to_rows(batch: pa.RecordBatch) -> list[Row]:
    """Turn a record batch, whose text is valid UTF-8, into rows of native Python types."""
    rows: list[Row] = _values(batch.to_struct_array())
    if EMPTY_DICT_KEY in str(batch.schema):
        rows = [_restore_empty(row) for row in rows]
    return rows


def _values(array: pa.Array) -> list[Any]:
    """What `array.to_pylist` returns, about five times faster for nested columns: whole columns are turned into values,
    from which the rows are zipped together.
    """
    kind = array.type
    if pa.types.is_struct(kind) and kind.num_fields:
        to_dicts = _maker(tuple(field.name for field in kind))
        return _with_nulls(array, to_dicts([_values(column) for column in array.flatten()]))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        entries = _values(array.flatten())  # without what lies under nulls
        lengths = array.value_lengths().fill_null(0).to_numpy().tolist()
        lists, end = [], 0
        for length in lengths:
            begin, end = end, end + length
            lists.append(entries[begin:end])
        return _with_nulls(array, lists)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return texts
    if not array.null_count and (pa.types.is_integer(kind) or pa.types.is_float64(kind) or pa.types.is_boolean(kind)):
        numbers: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
        return numbers
    try:
        values: list[Any] = array.to_pylist(maps_as_pydicts="strict")
    except KeyError as error:
        raise DataError(
            f"A map column holds a key twice ({error}); a dict holds each once. Rename the keys."
        ) from error
    return values


@lru_cache
def _maker(names: tuple[str, ...]) -> Callable[[list[list[Any]]], list[Row]]:
    """Return a function that makes dicts with these keys from columns; dict(zip()) takes twice as long."""
    values = [f"value{i}" for i in range(len(names))]
    display = ", ".join(f"{name!r}: {value}" for name, value in zip(names, values, strict=True))
    made: Callable[[list[list[Any]]], list[Row]] = eval(
        f"lambda columns: [{{{display}}} for {', '.join(values)}, in zip(*columns)]"
    )
    return made


def _with_nulls(array: pa.Array, values: list[Any]) -> list[Any]:
    if not array.null_count:
        return values
    valid = array.is_valid().to_numpy(zero_copy_only=False).tolist()
    return [value if known else None for value, known in zip(values, valid, strict=True)]


def _restore_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _restore_empty(entry) for key, entry in value.items() if key != EMPTY_DICT_KEY}
    if isinstance(value, list):
        return [_restore_empty(entry) for entry in value]
    return value


def parse_line(name: str | PathLike[str], number: int, line: bytes) -> Row:
    """Parse line `number` (from 1) of the JSONL file `name`; DataError, naming both, if it is no JSON object."""
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}, line {number}: the bytes are not UTF-8 ({error}). Convert the file to UTF-8."
        ) from error
    except (ValueError, RecursionError) as error:  # also integers of thousands of digits, and endless nesting
        raise DataError(
            f"{name}, line {number}: it is not JSON ({error}). JSONL has one JSON object per line."
        ) from error
    if not isinstance(row, dict):
        raise DataError(f"{name}, line {number}: a JSON object is expected, not {type(row).__name__}.")
    return row


def parse_array(name: str, content: bytes) -> list[Row]:
    """Parse a JSON array of objects; DataError, naming the row, for anything else."""
    try:
        rows = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name} cannot be read as a JSON array: {error}") from error
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise DataError(f"{name}, row {index}: a JSON object is expected, not {type(row).__name__}.")
    return list(rows)
