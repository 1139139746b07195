"""What a field may hold: one sentence per fault, naming the field. Used by the schemas of whole rows."""

from collections.abc import Iterator, Mapping
from typing import Any

#: Columns that hold one list per row.
MEDIA_COLUMNS = ("images", "videos", "audios")
#: Columns that any row may have; they reach the chat template, tools and agents.
OPTIONAL_COLUMNS = (*MEDIA_COLUMNS, "agent_name", "tools_kwargs", "tools")
_NAMES = frozenset(OPTIONAL_COLUMNS)

#: What to do about columns that are missing.
PROCESS = "A verl_data.DataProcessor turns raw rows into training rows"

# A dict is by far the commonest Mapping, and the test for it the fastest.
DICT = (dict, Mapping)


def kind(value: Any) -> str:
    """Say what `value` is, for the end of "... is expected, not"."""
    if value is None:
        return "nothing"
    if isinstance(value, (str, list, Mapping)) and not value:
        return f"an empty {'text' if isinstance(value, str) else 'list' if isinstance(value, list) else 'dict'}"
    if isinstance(value, (str, bytes)):
        value, name = value[:60], type(value).__name__  # not the repr of 10 MB
        return f"{name} {value!r:.60}"
    return f"{type(value).__name__} {value!r:.60}"


def messages_problem(messages: Any) -> str | None:
    """Return what is wrong with a list of messages, to be written behind its name; None if it is sound."""
    if not isinstance(messages, list) or not messages:
        return f": a list of messages is expected, not {kind(messages)}"
    for number, message in enumerate(messages):
        if not isinstance(message, DICT):
            return f"[{number}]: a message {{role, content}} is expected, not {kind(message)}"
        if not isinstance(message.get("role"), str):
            return f"[{number}].role: text is expected, not {kind(message.get('role'))}"
        content = message.get("content")
        if isinstance(content, str) or (content is None and message.get("tool_calls")):
            continue
        if not (isinstance(content, list) and all(isinstance(part, DICT) for part in content)):
            return f"[{number}].content: text is expected, not {kind(content)}"
    return None


def optional_problems(row: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the columns that any row may have: `OPTIONAL_COLUMNS`, and tools_kwargs in extra_info,
    where published data sets have it.
    """
    extra = row.get("extra_info")
    if _NAMES.isdisjoint(row) and not (isinstance(extra, DICT) and "tools_kwargs" in extra):
        return []  # almost every row
    problems = []
    for name in MEDIA_COLUMNS:
        if not isinstance(row.get(name, ()), (list, tuple, type(None))):
            problems.append(f"field {name}: a list is expected, one entry per placeholder, not {kind(row[name])}")
    if not isinstance(row.get("agent_name", ""), (str, type(None))):
        problems.append(f"field agent_name: text is expected, not {kind(row['agent_name'])}")
    for path, owner in (("", row), ("extra_info.", extra)):
        if isinstance(owner, DICT) and not isinstance(owner.get("tools_kwargs"), (*DICT, type(None))):
            found = kind(owner["tools_kwargs"])
            problems.append(f"field {path}tools_kwargs: a dict by tool name is expected, not {found}")
    tools = row.get("tools")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(tool, DICT) for tool in tools)):
        problems.append(f"field tools: a list of tool schemas (dicts) is expected, not {kind(tools)}")
    return problems


def text_problems(path: str, value: Any) -> list[str]:
    """Return where `value` holds text that no file and no tokenizer can take: half of a surrogate pair."""
    if _is_utf8(value):
        return []
    for place, leaf in _leaves(path, value):
        if isinstance(leaf, str) and not leaf.isascii():
            try:
                leaf.encode()
            except UnicodeEncodeError as error:
                half = f"U+{ord(leaf[error.start]):04X}, character {error.start}"
                return [f"field {place} holds half of a surrogate pair ({half}), which UTF-8 cannot hold; remove it"]
    return []


def json_problems(path: str, value: Any) -> list[str]:
    """Return where `value` holds what JSON cannot: dates, bytes, decimals."""
    if isinstance(value, str):
        return text_problems(path, value)
    for place, leaf in _leaves(path, value):
        if not isinstance(leaf, (str, bool, int, float, type(None))):
            return [f"field {place} is a {type(leaf).__name__}, which JSON cannot hold; store it as text"]
    return text_problems(path, value)


def _is_utf8(value: Any) -> bool:
    """Whether all text in `value` can be encoded: the quick answer for almost every row."""
    waiting = [value]
    while waiting:
        entry = waiting.pop()
        if isinstance(entry, str):
            if not entry.isascii():
                try:
                    entry.encode()
                except UnicodeEncodeError:
                    return False
        elif isinstance(entry, list):
            waiting += entry
        elif entry is not None and isinstance(entry, DICT):
            waiting += entry.keys()
            waiting += entry.values()
    return True


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the values in `value` that are no list or dict, and the keys, each with where it is."""
    if isinstance(value, DICT):
        for key, entry in value.items():
            yield f"{path} (a key)", key
            yield from _leaves(f"{path}.{key!s}", entry)
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _leaves(f"{path}[{index}]", entry)
    else:
        yield path, value
