"""A user's function by its import path: ``package.module:function`` or ``file.py:function``. Needs no torch."""

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

__all__ = ["hint", "is_async", "is_import_path", "load_function", "no_function", "require_function"]


def is_import_path(name: str) -> bool:
    """Whether `name` has the form of an import path; nothing is looked up."""
    place, colon, function = name.rpartition(":")
    return bool(place and colon and function.isidentifier())


def load_function(path: str, what: str) -> Callable[..., Any]:
    """The function at the import path `path`. A file is executed at its first use and after every edit.

    Args:
        path: ``package.module:function`` or ``file.py:function``.
        what: what the function is for, as errors call it: "advantage estimator".

    Raises:
        ValueError: the path is not of that form, or leads to no function (see `no_function`). What importing the
            module raises is chained.
    """
    if not is_import_path(path):
        raise ValueError(f"{path!r} is not an import path: write package.module:function or file.py:function.")
    place, _, name = path.rpartition(":")
    if place.endswith(".py"):
        file = Path(place).expanduser()
        if not file.is_file():
            raise ValueError(
                f"The file {place} of the {what} {path!r} does not exist (looked in {Path.cwd()}): correct its path."
            )
        status = file.stat()
        module = _execute(file.resolve(), status.st_mtime_ns, status.st_size, what)
    else:
        try:
            module = importlib.import_module(place)
        except Exception as error:
            raise _broken(place, what, error) from error
    function: Any = getattr(module, name, None)
    if (kind := no_function(function)) is not None:
        public = [n for n, value in vars(module).items() if no_function(value) is None and not n.startswith("_")]
        found = f" ({name} there is {kind})" if hasattr(module, name) else ""
        raise ValueError(
            f"{place} has no function {name!r}, which {path!r} names as the {what}{found}. Callable names there: "
            f"{', '.join(sorted(public)) or 'none'}.{hint(name, public)}"
        )
    return function  # type: ignore[no-any-return]


def no_function(value: object, *, may_be_async: bool = False) -> str | None:
    """What `value` is, where a function is wanted that returns its result when it is called; None if it is such a one.

    A class is none, as a call of it only makes an object; an object with ``__call__`` is one.
    """
    if isinstance(value, type):
        return "a class"
    if not callable(value):
        return f"a {type(value).__name__}"
    called = _called(value)
    if any(inspect.isgeneratorfunction(part) or inspect.isasyncgenfunction(part) for part in called):
        return "a generator function, which yields"
    return "an async function" if not may_be_async and is_async(value) else None


def require_function(value: object, what: str, names: Iterable[str]) -> None:
    """Raise ValueError if `value`, given as the `what` where one of `names` was not, is no function: `no_function`."""
    if (kind := no_function(value)) is not None:
        raise ValueError(
            f"The {what} {value!r} is {kind}: give the name of one ({', '.join(sorted(names))}), a function of your "
            "own, or its import path as package.module:function or file.py:function."
        )


def is_async(function: object) -> bool:
    """Whether calls of `function` are known to return something to await."""
    return any(map(inspect.iscoroutinefunction, _called(function)))


def _called(function: object) -> tuple[object, object]:
    """Whose code runs when it is called: its own, also of a functools.partial, or that of its ``__call__``."""
    plain: Any = inspect.unwrap(getattr(function, "func", function))  # type: ignore[arg-type]
    return plain, getattr(plain, "__call__", None)  # noqa: B004 (whose own code is looked at)


def hint(name: str, names: Iterable[str]) -> str:
    """`` Did you mean X?`` with the nearest of `names`; nothing where none is near."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f" Did you mean {near[0]}?" if near else ""


class _AsItStands(SourceFileLoader):
    """Compiles a file as it stands: Python's cache does not notice an edit of the same second and length."""

    def get_code(self, fullname: str) -> CodeType | None:
        """Compile the source; nothing is written beside the user's file."""
        return self.source_to_code(self.get_data(self.path), self.path)


@lru_cache(maxsize=32)
def _execute(file: Path, mtime_ns: int, size: int, what: str) -> ModuleType:
    """The module of a file; the time and size of its last edit are there for the cache."""
    digest = hashlib.sha256(str(file).encode()).hexdigest()[:12]
    name = f"verl_custom_{digest}"  # cannot hide an installed module
    spec = importlib.util.spec_from_file_location(name, file, loader=_AsItStands(name, str(file)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where pickle and dataclasses look
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise _broken(str(file), what, error) from error
    return module


def _broken(place: str, what: str, error: Exception) -> ValueError:
    return ValueError(
        f"The {what} could not be loaded from {place}, which raised {type(error).__name__}: {error}. Repair it, or "
        "correct the import path."
    )
