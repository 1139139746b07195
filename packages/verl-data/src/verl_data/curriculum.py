"""The number by which the rows of an epoch are ordered: a column, or a function of the user's."""

import runpy
import traceback
from collections.abc import Mapping
from numbers import Rational
from pathlib import Path
from typing import Any

from verl_data.errors import DataError
from verl_data.prompts import to_native
from verl_data.rows import Row


class OrderKey:
    """What data.order_by names: a column, dotted if it lies in another one, or ``FILE.py:FUNCTION``."""

    columns: tuple[str, ...] | None
    """The columns that are read; None reads whole rows."""

    def __init__(self, order_by: str) -> None:
        """Load the function, if it is one, from its file as that stands now; DataError if there is none."""
        path, colon, name = order_by.rpartition(":")
        self._name = order_by
        self._path = Path(path).expanduser() if colon and path.endswith(".py") else None
        if self._path is None:
            self.columns = (order_by, order_by.partition(".")[0])
        else:
            self.columns = None
            self._function = _load(self._path, name)

    def __call__(self, row: Row) -> float | Rational:
        """Return the number of a row as it is; DataError if there is none, without the place of the row."""
        value = to_native(self._column(row) if self._path is None else self._call(row))
        if not isinstance(value, (float, Rational)) or value != value:
            what = "nothing" if value is None else f"{type(value).__name__} {value!r:.60}"
            raise DataError(f"data.order_by={self._name}: a number is expected, by which rows are ordered, not {what}.")
        return value

    def _column(self, row: Row) -> Any:
        if self._name in row:
            return row[self._name]
        value: Any = row
        for part in self._name.split("."):
            if not isinstance(value, Mapping) or part not in value:
                has = f"{', '.join(map(str, value)) or 'nothing'}" if isinstance(value, Mapping) else "no fields"
                raise DataError(
                    f"data.order_by={self._name}: there is no {part} here; there is {has}. Name a column, or a field "
                    "of one as column.field, that every row has."
                )
            value = value[part]
        return value

    def _call(self, row: Row) -> Any:
        assert self._path is not None
        try:
            return self._function(row)
        except (Exception, SystemExit) as error:  # the function is the user's
            raise DataError(f"data.order_by={self._name} raised {_told(error, self._path)}") from error


def _load(path: Path, name: str) -> Any:
    if not path.is_file():
        raise DataError(f"data.order_by: the file {path} does not exist (looked in {Path.cwd()}).")
    try:
        # Compiles the file as it stands: Python's cache does not notice an edit of the same second and length.
        found = runpy.run_path(str(path), run_name=f"verl_order_by_{path.stem}")
    except (Exception, SystemExit) as error:  # the file is the user's
        raise DataError(f"data.order_by: {path} cannot be loaded; it raised {_told(error, path)}") from error
    if not callable(found.get(name)):
        names = ", ".join(sorted(n for n, value in found.items() if callable(value) and not n.startswith("_")))
        raise DataError(
            f"data.order_by: {path} has no function {name!r}; it has {names or 'none'}. It is called with a row (a "
            "dict) and returns a number."
        )
    return found[name]


def _told(error: BaseException, path: Path) -> str:
    """What was raised and where in the user's file: its innermost line."""
    said = " ".join(f"{type(error).__name__}: {error}".split())[:500]
    if isinstance(error, SyntaxError):
        return f"{said} (at {error.filename}:{error.lineno})."
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == str(path)]
    if not own:
        return f"{said}."
    return f"{said} (at {path}:{own[-1].lineno} in {own[-1].name}: `{own[-1].line}`)."
