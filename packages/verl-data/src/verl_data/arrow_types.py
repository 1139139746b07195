"""The Arrow type of rows, learnt from all of them, so that no row decides alone how a column is stored.

Types meet in a lattice: nothing < anything; int < float; different scalars < text. Dicts and lists meet entry by entry.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any

import pyarrow as pa

from verl_data.errors import DataError
from verl_data.prompts import to_native
from verl_data.rows import EMPTY_DICT_KEY, Row

_INT64 = range(-(2**63), 2**63)
#: Up to here every whole number is a float of its own.
_EXACT_FLOATS = 2.0**53


def rows_to_batch(rows: Sequence[Row], location: Callable[[int], str]) -> tuple[pa.RecordBatch, pa.DataType]:
    """Return rows as columns of a storable type (`storable`), and the type that was learnt from them.

    Raises DataError, with the `location` of the row and the field, where one row has a dict or list and another row
    something else, and for a value that Parquet cannot store.
    """
    array: pa.Array | None = None
    try:
        array = _infer(rows)  # Arrow's inference is fast, and refuses what needs a look at each row
        kind = array.type
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, UnicodeEncodeError):
        rows = [to_native(row) for row in rows]
        kind = pa.null()
        for index, row in enumerate(rows):
            try:
                kind = merge(kind, type_of(row))
            except DataError as error:
                raise DataError(f"{location(index)}: {error}") from error
    stored = storable(kind)
    if array is None or array.type != stored:
        array = to_array(rows, stored)
    return pa.RecordBatch.from_struct_array(array), kind


def _infer(values: Sequence[Any]) -> pa.Array:
    """What `pa.array(values)` returns, in less time: dicts with the same keys, and lists, are taken apart into columns
    here, into which Arrow need not look one by one.
    """
    kinds = set(map(type, values))
    if kinds == {dict} and len(keys := list(values[0])) > 1 and set(map(type, keys)) == {str}:
        if set(map(len, values)) != {len(keys)}:
            return pa.array(values)
        try:
            columns = zip(*map(itemgetter(*keys), values), strict=True)
        except KeyError:
            return pa.array(values)
        return pa.StructArray.from_arrays([_infer(column) for column in columns], keys)
    if kinds == {list}:
        offsets = pa.array(list(accumulate(map(len, values), initial=0)), pa.int32())
        return pa.ListArray.from_arrays(offsets, _infer(list(chain.from_iterable(values))))
    return pa.array(values)


def type_of(value: Any, path: str = "") -> pa.DataType:
    """Return the type of one value; integers beyond 64 bits are text."""
    if value is None:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if value in _INT64 else pa.string()
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"field {path} holds half of a surrogate pair (U+{ord(value[error.start]):04X}, character "
                f"{error.start}), which UTF-8 cannot hold; remove it."
            ) from error
        return pa.string()
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
    """Write scalars as text where the type is text: as JSON does, so that 5 is "5" and True is "true".

    A float without a fraction is "5" as well: whether it was written 5 or 5.0 is lost where both stood in one column.
    """
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _fit(value.get(field.name), field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_fit(entry, kind.value_type) for entry in value]
    if pa.types.is_string(kind) and not isinstance(value, str):
        if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_FLOATS:
            value = int(value)
        return json.dumps(value) if isinstance(value, (bool, int, float)) else str(value)
    if pa.types.is_floating(kind):
        return float(value)  # also for integers that a float holds only rounded
    return value


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
