"""A resolved configuration as a file that resolves to it again."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from verl_cli.config.applicability import inapplicable
from verl_cli.config.derive import fill
from verl_cli.config.keys import flatten, live_keys, nest
from verl_cli.config.schema import RunConfig

#: Text that YAML reads as itself, whoever reads it; whatever else is quoted.
_PLAIN = re.compile(r"(?![\d.+-])[\w./~+-]*[/.][\w./~+-]*|[A-Za-z][\w-]*", re.ASCII)
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "none", "nan", "inf", "y", "n"}
_COMMENT_COLUMN = 60


def dump(config: RunConfig) -> str:
    """Write a resolved configuration as YAML; keys without effect in this run are left out.

    ``resolve([], config_file=...)`` of the text gives an equal configuration, under any preset.
    """
    return "".join(f"{line}\n" for line, _ in _lines(nest(_effective(config)), ""))


def dump_commented(config: RunConfig, comments: Mapping[str, str], *, only_set: bool = False) -> str:
    """Write the same with a comment to every key, aligned; `comments` is by live key.

    With `only_set`, keys that have their default value, or follow another key, are left out.
    """
    values = _effective(config)
    if only_set:
        values = {key: value for key, value in values.items() if value != _default(config, key)}
    lines = list(_lines(nest(values), ""))
    column = min(max((len(line) for line, key in lines if key), default=0), _COMMENT_COLUMN) + 2
    return "".join(f"{line:<{column - 2}}  # {comments[key]}\n" if key else f"{line}\n" for line, key in lines)


def _effective(config: RunConfig) -> dict[str, Any]:
    values = flatten(config)
    unused = inapplicable(values)
    return {key: value for key, value in values.items() if key not in unused}


def _default(config: RunConfig, key: str) -> Any:
    """The value that a key would have if nobody had set it."""
    live = live_keys()[key]
    return live.default if live.derived is None else fill({**flatten(config), key: None})[key]


def _lines(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    """Each line, with the name of the live key on it or "" for a section."""
    indent = "  " * prefix.count(".")
    for name, value in tree.items():
        key = prefix + name
        if key in live_keys():
            yield f"{indent}{name}: {_flow(value)}", key
        else:
            yield f"{indent}{name}:", ""
            yield from _lines(value, f"{key}.")


def _flow(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, str):
        return _text(re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", value))
    if isinstance(value, Mapping):
        names = (_text(key) if isinstance(key, str) else _flow(key) for key in value)
        return "{" + ", ".join(f"{name}: {_flow(item)}" for name, item in zip(names, value.values(), strict=True)) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")


def _text(text: str) -> str:
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS:
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in quoted)
