"""The stored form of a batch: a Parquet file with one row per sequence, its token columns as lists."""

import json
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from verl_data.batch import SCHEMA_VERSION, PackedBatch
from verl_data.columns import Ragged, SequenceColumn
from verl_data.errors import DataError
from verl_data.files import atomic_file

_METADATA = b"verl_data.packed_batch"
_LENGTHS = "num_tokens"  # reserved by PackedBatch, so that no column can have this name


def write(batch: PackedBatch, path: str | PathLike[str]) -> None:
    """Store `batch`; ValueError for a list column that holds what JSON cannot give back unchanged."""
    columns: dict[str, pa.Array] = {_LENGTHS: pa.array(batch.lengths)}
    layout: dict[str, dict[str, Any]] = {}
    for name, column in batch.tokens.items():
        columns[name] = _lists(column, batch.cu_seqlens)
        layout[name] = {"kind": "tokens", **_type(column)}
    for name, values in batch.sequences.items():
        if isinstance(values, np.ndarray):
            columns[name] = _numbers(values)
            layout[name] = {"kind": "sequences", **_type(values)}
        else:
            columns[name] = pa.array(
                [_to_json(name, row, value) for row, value in enumerate(values)], pa.large_string()
            )
            layout[name] = {"kind": "list"}
    for name, (numbers, offsets) in batch.ragged.items():
        columns[name] = _lists(numbers, offsets)
        layout[name] = {"kind": "ragged", **_type(numbers)}
    metadata = {_METADATA: json.dumps({"schema_version": SCHEMA_VERSION, "columns": layout}).encode()}
    table = pa.table(columns).replace_schema_metadata(metadata)
    with atomic_file(path) as file:
        pq.write_table(table, file)


def read(path: str | PathLike[str]) -> PackedBatch:
    """Load what `write` stored; DataError for any other file."""
    source = Path(path).expanduser()
    if not source.is_file():
        raise FileNotFoundError(f"{source.absolute()} does not exist.")
    try:
        table = pq.read_table(source, partitioning=None)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{source} cannot be read as Parquet: {error}") from error
    stored = (table.schema.metadata or {}).get(_METADATA)
    if stored is None:
        raise DataError(f"{source} is not a stored batch: PackedBatch.to_parquet did not write it.")
    try:
        header = json.loads(stored)
        version, layout = header["schema_version"], header["columns"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{source} is a stored batch whose metadata is damaged; store the batch again.") from error
    if version != SCHEMA_VERSION:
        raise DataError(f"{source} is a batch of schema version {version}; this verl-data reads {SCHEMA_VERSION}.")
    try:
        return _batch(table, layout)
    except (ValueError, KeyError, TypeError, pa.ArrowException) as error:  # what does not follow from `write`
        raise DataError(
            f"{source} was changed after PackedBatch.to_parquet wrote it, and is no batch any more: "
            f"{error} Store the batch again."
        ) from error


def _batch(table: pa.Table, layout: dict[str, dict[str, Any]]) -> PackedBatch:
    if sorted(table.column_names) != sorted([_LENGTHS, *layout]):
        raise ValueError(
            f"Its columns are {', '.join(table.column_names)}, but it was stored with {', '.join([_LENGTHS, *layout])}."
        )
    lengths = _column(table, _LENGTHS, pa.int64()).to_numpy()
    tokens: dict[str, np.ndarray] = {}
    sequences: dict[str, SequenceColumn] = {}
    ragged: dict[str, Ragged] = {}
    for name, how in layout.items():
        if how["kind"] == "list":
            sequences[name] = [json.loads(value) for value in _column(table, name, pa.large_string()).to_pylist()]
            continue
        entry = _arrow_type(how)
        if how["kind"] == "sequences":
            sequences[name] = _array(name, _column(table, name, entry), how)
            continue
        column = _column(table, name, pa.large_list(entry))
        values, own = _array(name, column.flatten(), how), column.value_lengths().to_numpy()
        if how["kind"] == "ragged":
            ragged[name] = Ragged(values, np.cumsum([0, *own], dtype=np.int64))
        elif np.array_equal(own, lengths):
            tokens[name] = values
        else:
            row = int(np.flatnonzero(own != lengths)[0])
            raise ValueError(f"Column {name!r}, row {row}, has {own[row]} values for {lengths[row]} tokens.")
    return PackedBatch(np.cumsum([0, *lengths], dtype=np.int64), tokens, sequences, ragged)


def _column(table: pa.Table, name: str, expected: pa.DataType) -> pa.Array:
    column = table[name].combine_chunks()
    if column.type != expected:
        raise ValueError(f"Column {name!r} is {column.type}; it was stored as {expected}.")
    if not pa.types.is_null(expected):  # of which all values are null: of arrays without values
        _require_values(name, column)
    return column


def _require_values(name: str, column: pa.Array) -> None:
    if column.null_count:
        raise ValueError(f"Column {name!r} has null values.")


def _type(column: np.ndarray) -> dict[str, Any]:
    return {"dtype": column.dtype.name, "shape": list(column.shape[1:])}


def _numbers(array: np.ndarray) -> pa.Array:
    """Turn (M, ...) into M values, each a list of fixed size per further dimension."""
    if 0 in array.shape[1:]:  # Arrow has no fixed-size list of size 0; there is nothing to store but how many there are
        return pa.nulls(len(array))
    column = pa.array(array.reshape(-1))
    for size in reversed(array.shape[1:]):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def _lists(array: np.ndarray, offsets: np.ndarray) -> pa.Array:
    return pa.LargeListArray.from_arrays(pa.array(offsets), _numbers(array))


def _arrow_type(how: dict[str, Any]) -> pa.DataType:
    """The type of what `_numbers` makes."""
    if 0 in how["shape"]:
        return pa.null()
    entry = pa.from_numpy_dtype(how["dtype"])
    for size in reversed(how["shape"]):
        entry = pa.list_(entry, size)
    return entry


def _array(name: str, column: pa.Array, how: dict[str, Any]) -> np.ndarray:
    if 0 in how["shape"]:
        return np.zeros((len(column), *how["shape"]), how["dtype"])
    _require_values(name, column)
    for _ in how["shape"]:
        column = column.flatten()
        _require_values(name, column)
    flat: np.ndarray = column.to_numpy(zero_copy_only=False)
    return flat.reshape(-1, *how["shape"])


def _to_json(name: str, row: int, value: Any) -> str:
    if not _is_json(value):
        raise ValueError(
            f"Column {name!r}, row {row}, holds a {type(value).__name__} that JSON would not give back unchanged; "
            "drop the column with `without` or convert it to text, numbers, lists and dicts with text keys before "
            "storing the batch."
        )
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which only an escape can write
        return json.dumps(value)
    return text


def _is_json(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_json(entry) for entry in value)
    if isinstance(value, dict):
        return all(type(key) is str and _is_json(entry) for key, entry in value.items())
    return value is None or type(value) in (bool, int, float, str)
