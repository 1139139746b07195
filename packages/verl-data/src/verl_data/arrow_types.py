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
from verl_data.rows import EMPTY_DICT_KEY, Row, to_rows

_INT64 = range(-(2**63), 2**63)
#: Up to here every whole number is a float of its own.
_EXACT_FLOATS = 2.0**53


def rows_to_batch(rows: Sequence[Row], location: Callable[[int], str]) -> tuple[pa.RecordBatch, pa.DataType]:
    """Return rows as columns of a storable type (`storable`), and the type that was learnt from them.

    Raises DataError, with the `location` of the row and the field, where one row has a dict or list and another row
    something else, and for a value that Parquet cannot store.
    """
    try:
        array = _columns(rows)
        kind = array.type
        stored = storable(kind)
        if kind != stored:
            array = pa.array(rows, stored)
    except (_MixedError, pa.ArrowInvalid, OverflowError, UnicodeEncodeError, RecursionError):
        kind = _learn(rows, location)
        stored = storable(kind)
        array = _fit_all(rows, stored, location)
    return pa.RecordBatch.from_struct_array(array), kind


def refit(batch: pa.RecordBatch, stored: pa.DataType, location: Callable[[int], str]) -> pa.RecordBatch:
    """Return the rows of a batch as columns of a wider storable type that was learnt from them and others."""
    return pa.RecordBatch.from_struct_array(_fit_all(to_rows(batch), stored, location))


def alike(rows: Sequence[Row], known: pa.DataType, location: Callable[[int], str]) -> tuple[list[Row], list[str]]:
    """Leave out rows that Parquet cannot store, or not in one table with `known` and the rows before them; return the
    others, and a problem for each that was left out.
    """
    kept, problems = [], []
    for index, row in enumerate(rows):
        try:
            known = merge(known, type_of(to_native(row)))
        except (DataError, RecursionError) as error:
            problems.append(f"{location(index)}: {error}")
        else:
            kept.append(row)
    return kept, problems


class _MixedError(Exception):
    """The values are not all of one of JSON's types, so each must be looked at."""


def _columns(values: Sequence[Any]) -> pa.Array:
    """Turn values of JSON's types, where those that meet are alike, into an array; _MixedError for any others.

    As `pa.array` would, but faster, because dicts and lists are taken apart into whole columns here; and nothing is
    converted on the way, as Arrow would do with True beside 0.5 or text beside bytes.
    """
    kinds = set(map(type, values))
    has_none = _NONE in kinds
    kinds.discard(_NONE)
    if not kinds:
        return pa.nulls(len(values))
    if kinds == {dict}:
        return _struct(values, has_none)
    if kinds == {list}:
        held = [value or () for value in values] if has_none else values
        offsets = pa.array(list(accumulate(map(len, held), initial=0)), pa.int32())
        entries = _columns(list(chain.from_iterable(held)))
        return pa.ListArray.from_arrays(offsets, entries, mask=_is_none(values) if has_none else None)
    if kinds <= {int, float} and float in kinds:
        if not all(map(_is_exact, values)):
            raise _MixedError
        return pa.array(values, pa.float64())
    if len(kinds) == 1 and (plain := _PLAIN.get(kinds.pop())) is not None:
        return pa.array(values, plain)
    raise _MixedError


_NONE = type(None)
_PLAIN = {str: pa.string(), bool: pa.bool_(), int: pa.int64()}


def _struct(values: Sequence[Any], has_none: bool) -> pa.Array:
    held = [value or {} for value in values] if has_none else values
    keys = list(dict.fromkeys(chain.from_iterable(held)))
    if not keys:
        return pa.array(values, pa.struct([]))
    if set(map(type, keys)) != {str}:
        raise _MixedError
    if len(keys) > 1 and set(map(len, held)) == {len(keys)}:  # all have all keys
        columns: list[Sequence[Any]] = list(zip(*map(itemgetter(*keys), held), strict=True))
    else:
        columns = [[value.get(key) for value in held] for key in keys]
    mask = _is_none(values) if has_none else None
    return pa.StructArray.from_arrays([_columns(column) for column in columns], keys, mask=mask)


def _is_none(values: Sequence[Any]) -> pa.Array:
    return pa.array([value is None for value in values])


def _is_exact(value: Any) -> bool:
    """Whether a number is a float, or an integer that a float holds exactly; None is."""
    return not isinstance(value, int) or abs(value) <= _EXACT_FLOATS


def _learn(rows: Sequence[Row], location: Callable[[int], str]) -> pa.DataType:
    kind = pa.null()
    for index, row in enumerate(rows):
        try:
            kind = merge(kind, type_of(to_native(row)))
        except DataError as error:
            raise DataError(f"{location(index)}: {error}") from error
        except RecursionError as error:
            raise DataError(f"{location(index)}: lists or dicts are nested too deep, or hold themselves.") from error
    return kind


def _fit_all(rows: Sequence[Row], stored: pa.DataType, location: Callable[[int], str]) -> pa.Array:
    fitted = []
    for index, row in enumerate(rows):
        try:
            fitted.append(_fit(to_native(row), stored))
        except DataError as error:
            raise DataError(f"{location(index)}: {error}") from error
    return pa.array(fitted, stored)


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
            type_of(key, f"{path or 'row'} (a key)")
        return pa.struct([(key, type_of(entry, _join(path, key))) for key, entry in value.items()])
    if isinstance(value, (list, tuple)):
        item = pa.null()
        for entry in value:
            item = merge(item, type_of(entry, path), path)
        return pa.list_(item)
    if getattr(value, "nanosecond", 0):  # of pandas: Arrow would cut it
        return pa.timestamp("ns", value.tzinfo and str(value.tzinfo))
    fault: Exception | None = None
    try:
        kind = pa.scalar(value).type
    except (pa.ArrowException, ValueError, TypeError) as error:
        fault = error
    if fault or isinstance(kind, pa.BaseExtensionType):
        raise DataError(
            f"field {path} holds a {type(value).__name__}, which Parquet cannot store; make it text in process_row."
        ) from fault
    return kind


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
    if pa.types.is_integer(a) and pa.types.is_integer(b):
        return pa.string() if pa.types.is_uint64(a) or pa.types.is_uint64(b) else pa.int64()
    if _is_number(a) and _is_number(b):
        return pa.float64()
    if pa.types.is_timestamp(a) and pa.types.is_timestamp(b) and a.tz == b.tz:
        return pa.timestamp("ns", a.tz)
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


def _fit(value: Any, kind: pa.DataType, path: str = "") -> Any:
    """Write scalars as text where the type is text: as JSON does, so that 5 is "5" and True is "true".

    A float without a fraction is "5" as well: whether it was written 5 or 5.0 is lost where both stood in one column.
    """
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _fit(value.get(field.name), field.type, _join(path, field.name)) for field in kind}
    if pa.types.is_list(kind):
        return [_fit(entry, kind.value_type, path) for entry in value]
    if pa.types.is_string(kind) and not isinstance(value, str):
        if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_FLOATS:
            value = int(value)
        return json.dumps(value) if isinstance(value, (bool, int, float)) else str(value)
    if pa.types.is_floating(kind):
        if not _is_exact(value):
            raise DataError(
                f"field {path} holds {value}, and fractions in other rows: no column of numbers holds both exactly. "
                "Make all of them text or all floats in process_row."
            )
        return float(value)
    return value


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key
