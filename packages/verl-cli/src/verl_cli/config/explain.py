"""What there is to say about a key: its state, and whether it takes a value."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from verl_cli.config.algorithm_checks import allowed, wrong_name
from verl_cli.config.applicability import RULES
from verl_cli.config.checks import REQUIRED
from verl_cli.config.classify import is_default, meant
from verl_cli.config.errors import ConfigError
from verl_cli.config.keys import LiveKey, flat_keys, live_keys
from verl_cli.config.published import (
    RENAMED,
    UNAVAILABLE_VALUES,
    prefixes,
    published,
    reason,
    renamed,
    renamed_value,
)
from verl_cli.config.ranges import NAMES, RANGES, out_of_range
from verl_cli.config.sources import COMMAND_LINE, parse_override
from verl_cli.config.values import coerce, describe, show, type_name


@dataclass(frozen=True)
class Explanation:
    """What there is to say about a key."""

    known: bool
    """Whether there is such a key, live or not."""
    lines: list[tuple[str, str]]
    """Headings with a line each."""


def explain(text: str) -> Explanation:
    """Explain a key, written ``key`` or ``key=value`` with or without Hydra's marks; raises ConfigError for neither."""
    key, equals, _ = text.lstrip("+~").partition("=")
    value = parse_override(text).value if equals else None
    name = renamed(key)
    lines = [] if name == key else [("Renamed", f"{key} is now called {name}.")]
    holder = next((known for known in prefixes(name) if known in live_keys()), None)
    if holder == name or (holder is not None and live_keys()[holder].open):
        return Explanation(True, [*lines, *_live(live_keys()[holder], name, value if equals else ...)])
    why = reason(name)
    if why is not None:
        return Explanation(True, [*lines, *_without_effect(name, value if equals else ...)])
    members = [known for known in live_keys() if known.startswith(f"{name}.")]
    if members:
        listed = " ".join(member.removeprefix(f"{name}.") for member in members)
        return Explanation(True, [*lines, ("Section", f"{name} holds {len(members)} live keys: {listed}")])
    if any(known.startswith(f"{name}.") for known in published()):
        return Explanation(True, [*lines, ("Section", f"{name} holds published keys, none of which has an effect.")])
    return Explanation(False, [("Unknown", f"There is no key {key}. {meant(key)}")])


def _live(key: LiveKey, name: str, value: Any) -> Iterator[tuple[str, str]]:
    yield "Live", key.name if name == key.name else f"{name} is an entry of {key.name}, whose names are yours"
    yield "For", key.doc
    yield "Type", describe(key)
    if key.name in RANGES:
        yield "Allowed", RANGES[key.name].words
    if key.name in NAMES:
        yield "Allowed", ", ".join(NAMES[key.name].known)
    if words := allowed(key.name):
        yield "Allowed", words
    yield "Default", default_words(key)
    if key.derived is not None:
        yield "Null", f"takes the value of {key.derived}" if "${" in key.derived else f"by rule: {key.derived}"
    unavailable = UNAVAILABLE_VALUES.get(key.name, {})
    for why in dict.fromkeys(unavailable.values()):
        yield "Not here", f"{', '.join(item for item in unavailable if unavailable[item] == why)}: {why}"
    if old := [old for old, new in RENAMED.items() if new == key.name]:
        yield "Old names", ", ".join(old)
    for rule in RULES:
        if rule.prefix in prefixes(key.name) and key.name not in rule.but:
            yield "No effect", f"in some runs. {rule.reason}"
    if value is not ... and name == key.name:
        yield "Value", _judge(key, value)


def _judge(key: LiveKey, value: Any) -> str:
    """Whether a live key takes a value."""
    why = UNAVAILABLE_VALUES.get(key.name, {})
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, str) and item in why:
            return f"{show(value)} is not accepted: {why[item]}"
    if (present := renamed_value(key.name, value)) is not None:
        return f"{value} is accepted; it is now called {present}."
    if isinstance(value, str) and "${" in value:
        return f"{value} is accepted if what it refers to fits."
    try:
        typed = coerce(key, value, COMMAND_LINE)
    except ConfigError as error:
        return f"not accepted: {error}"
    wrong = out_of_range(key.name, typed) or wrong_name(key.name, typed)
    return f"not accepted: {wrong}" if wrong else f"{show(value)} is accepted, if it goes with the run's other keys."


def _without_effect(name: str, value: Any) -> Iterator[tuple[str, str]]:
    why = reason(name)
    assert why is not None
    yield "No effect", f"{name} is published, and means nothing in this version."
    yield "Why", why.why
    yield "Remedy", why.remedy
    if name in published():
        yield "Default", f"{show(published()[name])} in the original, which is accepted in silence, like null"
    if value is not ...:
        harmless = "accepted in silence, and changes nothing"
        verdict = "refused; with --allow-unused, and through `python -m verl.trainer.main_ppo`, it is only reported"
        yield "Value", f"{show(value)} is {harmless if is_default(name, value) else verdict}."


def default_words(key: LiveKey) -> str:
    """The default of a live key, or what stands for it."""
    if key.name in REQUIRED:
        return "none: it must be given"
    if key.derived is not None and key.default is None:
        return key.derived
    return show(key.default)


def key_table(pattern: str = "") -> list[tuple[str, str, str, str]]:
    """Name, type, default and purpose of every live key that has `pattern` in its name, in the order of the tree."""
    return [
        (key.name, type_name(key.type), default_words(key), key.doc)
        for key in flat_keys()
        if pattern.lower() in key.name.lower()
    ]
