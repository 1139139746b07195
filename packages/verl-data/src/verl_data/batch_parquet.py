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
    header = json.loads(stored)
    if header["schema_version"] != SCHEMA_VERSION:
        raise DataError(
            f"{source} is a batch of schema version {header['schema_version']}; this verl-data reads {SCHEMA_VERSION}."
        )
    tokens: dict[str, np.ndarray] = {}
    sequences: dict[str, SequenceColumn] = {}
    ragged: dict[str, Ragged] = {}
    for name, how in header["columns"].items():
        column = table[name].combine_chunks()
        if how["kind"] == "list":
            sequences[name] = [json.loads(value) for value in column.to_pylist()]
        elif how["kind"] == "sequences":
            sequences[name] = _array(column, how)
        elif how["kind"] == "tokens":
            tokens[name] = _array(column.flatten(), how)
        else:
            lengths = column.value_lengths().to_numpy(zero_copy_only=False)
            ragged[name] = Ragged(_array(column.flatten(), how), np.cumsum([0, *lengths], dtype=np.int64))
    cu_seqlens = np.cumsum([0, *table[_LENGTHS].to_numpy()], dtype=np.int64)
    return PackedBatch(cu_seqlens, tokens, sequences, ragged)


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


def _array(column: pa.Array, how: dict[str, Any]) -> np.ndarray:
    if 0 in how["shape"]:
        return np.zeros((len(column), *how["shape"]), how["dtype"])
    for _ in how["shape"]:
        column = column.flatten()
    flat = column.to_numpy(zero_copy_only=False)
    array: np.ndarray = flat.astype(how["dtype"], copy=False).reshape(-1, *how["shape"])
    return array


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
