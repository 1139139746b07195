"""Exceptions as text, whatever they hold."""

import traceback
from collections.abc import Iterator
from pathlib import Path


def said(error: BaseException) -> str:
    """What `error` says, as it says it; its type where it says nothing."""
    try:
        return str(error).strip() or type(error).__name__
    except Exception:  # noqa: BLE001 (a class of the user's may fail at this, too)
        return type(error).__name__


def message(error: BaseException) -> str:
    """What `error` says, on one line."""
    return " ".join(said(error).split())


def shortened(text: str, limit: int = 300) -> str:
    """Cut `text` to about `limit` characters."""
    return text if len(text) <= limit else text[:limit].rstrip() + " ..."


def sentence(text: str) -> str:
    """`text` on one line that ends with a full stop, or as it asks."""
    words = " ".join(text.split()).rstrip(":;,. ")
    return words if words.endswith(("?", "!")) else f"{words}."


def paragraphs(text: str) -> str:
    """The paragraphs of `text` (an empty line ends one), each on one line that ends with a full stop."""
    return "\n\n".join(sentence(paragraph) for paragraph in text.split("\n\n") if paragraph.strip())


def chain(error: BaseException) -> Iterator[BaseException]:
    """`error` and what it was raised from, or while handling, outermost first.

    A failed distributed checkpoint is followed by each rank's failure.
    """
    seen: set[int] = set()
    waiting: list[BaseException] = [error]
    while waiting:
        current = waiting.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        earlier = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
        waiting += [] if earlier is None else [earlier]
        failures = vars(current).get("_failures")  # torch's CheckpointException: {rank: (exception, its traceback)}
        if isinstance(failures, dict):
            entries = (entry[0] for entry in failures.values() if isinstance(entry, tuple) and entry)
            waiting += [entry for entry in entries if isinstance(entry, BaseException)]


def raised_at(error: BaseException, *, outside: frozenset[Path] = frozenset()) -> str | None:
    """The innermost line of the traceback as ``FILE, line N, in FUNCTION: `CODE```; None without one.

    Files in the folders `outside` are passed over.
    """
    raised = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in raised if outside.isdisjoint(Path(frame.filename).parents)]
    if not frames:
        return None
    last = frames[-1]
    code = f": `{last.line}`" if last.line else ""
    return f"{last.filename}, line {last.lineno}, in {last.name}{code}"
