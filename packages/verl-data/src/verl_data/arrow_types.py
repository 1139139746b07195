"""The Arrow type of rows, learnt from all of them, so that no row decides alone how a column is stored.

Types meet in a lattice: nothing < anything; int < float; different scalars < text. Dicts and lists meet entry by entry.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from verl_data.errors import DataError
from verl_data.rows import EMPTY_DICT_KEY, Row

_INT64 = range(-(2**63), 2**63)


def learn(known: pa.DataType, rows: Sequence[Row], first_row: int) -> pa.DataType:
    """Return the type that holds what `known` holds and `rows`, the first of which is number `first_row` of the output.

    Raises DataError, naming row and field, where one row has a dict or list and another row something else.
    """
    try:
        # Arrow's own inference is fast, and refuses what needs a look at each row
        return merge(known, pa.array(rows).type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, DataError):
        for index, row in enumerate(rows, first_row):
            try:
                known = merge(known, type_of(row))
            except DataError as error:
                raise DataError(f"Row {index} of the output: {error}") from error
        return known


def type_of(value: Any, path: str = "") -> pa.DataType:
    """Return the type of one value; integers beyond 64 bits are text."""
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if value in _INT64 else pa.string()
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise DataError(f"field {path or 'row'} has the key {key!r}; keys must be text.")
        return pa.struct([(key, type_of(entry, _join(path, key))) for key, entry in value.items()])
    if isinstance(value, (list, tuple)):
        item = pa.null()
        for entry in value:
            item = merge(item, type_of(entry, path), path)
        return pa.list_(item)
    try:
        return pa.scalar(value).type
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"field {path} holds a {type(value).__name__}, which Parquet cannot store.") from error


def merge(a: pa.DataType, b: pa.DataType, path: str = "") -> pa.DataType:
    """Return the smallest type that holds both; DataError where there is none."""
    if a == b or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    if pa.types.is_struct(a) and pa.types.is_struct(b):
        fields = {field.name: field.type for field in a}
        for field in b:
            fields[field.name] = merge(fields.get(field.name, pa.null()), field.type, _join(path, field.name))
        return pa.struct(list(fields.items()))
    if pa.types.is_list(a) and pa.types.is_list(b):
        return pa.list_(merge(a.value_type, b.value_type, path))
    if pa.types.is_nested(a) or pa.types.is_nested(b) or pa.types.is_binary(a) or pa.types.is_binary(b):
        raise DataError(f"field {path} holds {a} in some rows and {b} in others; make them alike in process_row.")
    if _is_number(a) and _is_number(b):
        return pa.float64()
    return pa.string()


def storable(kind: pa.DataType) -> pa.DataType:
    """Return the type that Parquet stores for `kind`: nothing but None as text, dicts without keys with one key."""
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        fields = [(field.name, storable(field.type)) for field in kind]
        return pa.struct(fields or [(EMPTY_DICT_KEY, pa.bool_())])
    if pa.types.is_list(kind):
        return pa.list_(storable(kind.value_type))
    return kind


def to_array(rows: Sequence[Row], kind: pa.DataType) -> pa.Array:
    """Turn rows into an array of a storable type that was learnt from them."""
    try:
        return pa.array(rows, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):  # a column of text with other scalars in it
        return pa.array([_fit(row, kind) for row in rows], kind)


def _fit(value: Any, kind: pa.DataType) -> Any:
    """Write scalars as text where the type is text: as JSON does, so that 5 is "5" and True is "true"."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _fit(value.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_fit(entry, kind.value_type) for entry in value]
    if pa.types.is_string(kind) and not isinstance(value, str):
        return json.dumps(value) if isinstance(value, (bool, int, float)) else str(value)
    if pa.types.is_floating(kind):
        return float(value)  # also for integers that a float holds only rounded
    return value


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
