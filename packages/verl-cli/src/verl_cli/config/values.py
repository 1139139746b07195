"""Values: from what the user wrote to the type that a key has, and how both are told."""

import json
import math
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import ConfigDict, TypeAdapter, ValidationError

from verl_cli.config.errors import ConfigError
from verl_cli.config.keys import LiveKey

_STRICTNESS = ConfigDict(coerce_numbers_to_str=True, allow_inf_nan=False)
_SIMPLE = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    NoneType: "null",
    Any: "anything",
}
_YAML_BOOLEANS = " YAML reads on, yes, off and no as true and false; quote a text of that name."


def coerce(key: LiveKey, value: Any, source: str) -> Any:
    """Return `value` in the type of `key`; a single value stands for a list of one.

    Raises:
        ConfigError: the value does not fit; the paragraph names key, value, source and what is expected.
    """
    if value is None and key.nullable:
        return None
    if get_origin(key.type) is list and not isinstance(value, list):
        value = [value]
    problem = f"{key.name}={show(value)} (from {source}) does not fit: it must be {describe(key)}."
    if isinstance(value, float) and not math.isfinite(value):
        problem += " A number is finite."
    if isinstance(value, bool) and bool not in _parts(key.type):
        raise ConfigError(problem + _YAML_BOOLEANS)
    try:
        return TypeAdapter(key.type, config=_STRICTNESS).validate_python(value)
    except ValidationError as error:
        raise ConfigError(problem) from error


def show(value: Any) -> str:
    """Write a value as it may stand in YAML or in an override."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str)


def describe(key: LiveKey) -> str:
    """Say in words which values a key takes."""
    words = _describe(key.type)
    if key.derived is None or NoneType in _parts(key.type):
        return words
    return f"{words}, or null for {key.derived}"


def type_name(annotation: Any) -> str:
    """Name a type in one word, such as int|null or left|right."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return "|".join(type_name(part) for part in args)
    if origin is Literal:
        return "|".join(show(value) for value in args)
    if origin is tuple:
        return f"[{','.join(type_name(part) for part in args)}]"
    if origin is list:
        return f"list[{type_name(args[0])}]"
    if dict in (annotation, origin):
        return "mapping"
    return {NoneType: "null", str: "text"}.get(annotation) or str(annotation.__name__)


def _describe(annotation: Any) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return " or ".join(_describe(part) for part in args)
    if origin is Literal:
        return f"one of {', '.join(show(value) for value in args)}" if len(args) > 1 else show(args[0])
    if origin is tuple:
        return f"a list of {len(args)} values, each {_describe(args[0])}"
    if origin is list:
        return f"a list, each {_describe(args[0])}"
    if dict in (annotation, origin):
        return "a mapping"
    return _SIMPLE[annotation]


def _parts(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
