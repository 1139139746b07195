"""Columns of raw rows, with errors that say what is there instead."""

from typing import Any

from verl_data.errors import DataError
from verl_data.rows import Row
from verl_data.schema.fields import kind


def column(row: Row, name: str) -> Any:
    """Return a column of any type; DataError, naming the columns that are there, if it is missing."""
    if name not in row:
        raise DataError(f"there is no column {name!r}; there are {', '.join(map(repr, row)) or 'none'}")
    return row[name]


def text(row: Row, name: str) -> str:
    """Return a column of text that is not blank."""
    value = column(row, name)
    if not isinstance(value, str) or not value.strip():
        raise DataError(f"column {name!r}: text is expected, not {kind(value)}")
    return value
