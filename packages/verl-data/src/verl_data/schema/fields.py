"""What a field may hold: one sentence per fault, naming the field. Used by the schemas of whole rows."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from verl_data.terminal import visible

#: Columns that hold one list per row.
MEDIA_COLUMNS = ("images", "videos", "audios")
#: Columns that any row may have; they reach the chat template, tools and agents.
OPTIONAL_COLUMNS = (*MEDIA_COLUMNS, "agent_name", "tools_kwargs", "tools")
_NAMES = frozenset(OPTIONAL_COLUMNS)

#: What to do about columns that are missing.
PROCESS = "A verl_data.DataProcessor turns raw rows into training rows"

#: Each says what a part of a message is, where that has no type.
_PART_KEYS = ("text", "image", "image_url", "video", "audio")

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
        content, calls = message.get("content"), message.get("tool_calls")
        if calls is not None and not (isinstance(calls, list) and all(isinstance(call, DICT) for call in calls)):
            return f"[{number}].tool_calls: a list of calls (dicts) is expected, not {kind(calls)}"
        if isinstance(content, str) or (not content and calls and content in (None, [])):
            continue
        if not isinstance(content, list) or not content:
            return f"[{number}].content: text is expected, not {kind(content)}"
        for place, part in enumerate(content):
            if not _is_part(part):
                return f"[{number}].content[{place}]: a part {{type: text, text}} is expected, not {kind(part)}"
    return None


def _is_part(part: Any) -> bool:
    """Whether a part of a message says what it is: by its type, as templates of Hugging Face ask, or by its key."""
    if not isinstance(part, DICT):
        return False
    name = part.get("type")
    if name is None:
        return any(part.get(key) is not None for key in _PART_KEYS)
    return isinstance(name, str) and (name != "text" or isinstance(part.get("text"), str))


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
    else:
        for number, tool in enumerate(tools or []):
            if not _is_tool(tool):
                form = "{type: function, function: {name, description, parameters}}"
                problems.append(f"field tools[{number}]: a tool schema {form} is expected, not {kind(tool)}")
                break
    return problems


def _is_tool(tool: Mapping[str, Any]) -> bool:
    """Whether a tool has a name, in its function or, where a template wants it so, in itself."""
    function = tool.get("function")
    owner = tool if function is None else function
    return isinstance(tool.get("type"), (str, type(None))) and isinstance(owner, DICT) and _is_name(owner.get("name"))


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def may_hold_surrogates(line: bytes) -> bool:
    """Whether a line of JSON, which is UTF-8, may hold half of a surrogate pair: only as an escape."""
    return b"\\ud" in line or b"\\uD" in line


def row_text_problems(row: Mapping[str, Any]) -> list[str]:
    """Return what `text_problems` finds in the columns of a row, and in their names."""
    problems = []
    for name, value in row.items():
        if not is_utf8(name):
            half = "holds half of a surrogate pair, which UTF-8 cannot hold; rename it"
            problems.append(f"the name of the column {visible(name, keep='')} {half}")
        problems += text_problems(visible(name, keep=""), value)
    return problems


def text_problems(path: str, value: Any) -> list[str]:
    """Return where `value` holds text that no file and no tokenizer can take: half of a surrogate pair."""
    if is_utf8(value):
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
        return [] if value.isascii() else text_problems(path, value)
    for place, leaf in _leaves(path, value):
        if not isinstance(leaf, (str, bool, int, float, type(None))):
            return [f"field {place} is a {type(leaf).__name__}, which JSON cannot hold; store it as text"]
        if isinstance(leaf, float) and not math.isfinite(leaf):
            return [f"field {place} is {leaf}, which JSON cannot hold and nothing can be compared with; mend the row"]
    return text_problems(path, value)


def is_utf8(value: Any) -> bool:
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
            yield from _leaves(f"{path}.{visible(str(key), keep='')}", entry)
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _leaves(f"{path}[{index}]", entry)
    else:
        yield path, value
