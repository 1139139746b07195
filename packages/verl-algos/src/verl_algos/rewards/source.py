"""Where in a user's code something is or went wrong."""

import inspect
import sysconfig
import traceback
from pathlib import Path
from typing import Any

_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))

#: The files here that call a user's code, and are no part of it.
_MACHINERY = frozenset(str(Path(__file__).with_name(f"{name}.py")) for name in ("scoring", "loading", "event_loop"))


def defined_at(function: Any) -> str | None:
    """``FILE:LINE`` of a function, or of the class of a callable object; None if it has no source."""
    plain = inspect.unwrap(getattr(function, "func", function))
    if (code := getattr(plain, "__code__", None)) is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    call = getattr(type(plain).__call__, "__code__", None)
    return None if call is None else f"{call.co_filename}:{call.co_firstlineno}"


def raised_at(error: BaseException) -> str | None:
    """``FILE:LINE in NAME: `CODE``` of the line that raised; None if it was not inside what was called.

    The innermost line outside the standard library and installed packages counts: what a library refuses is seldom the
    library's fault. A syntax error has a place of its own.
    """
    if isinstance(error, SyntaxError) and error.filename is not None and error.lineno is not None:
        return f"{error.filename}:{error.lineno}" + (f": `{error.text.strip()}`" if error.text else "")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in _MACHINERY]
    if not frames:
        return None
    own = [frame for frame in frames if not frame.filename.startswith((*_LIBRARIES, "<frozen"))]
    last = (own or frames)[-1]
    return f"{last.filename}:{last.lineno} in {last.name}" + (f": `{last.line}`" if last.line else "")


def said(error: BaseException) -> str:
    """The beginning of what `error` says, on one line; its own ``__str__`` may fail."""
    try:
        return " ".join(str(error).split())[:500] or "no message"
    except Exception:  # noqa: BLE001 (it is the user's)
        return "a message that cannot be written"
