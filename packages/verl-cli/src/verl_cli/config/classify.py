"""The state of each key that a user sets: live, renamed, not applicable, or unknown."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_cli.config.keys import live_keys, merged, nest, sections
from verl_cli.config.published import UNAVAILABLE_VALUES, nearest, prefixes, published, reason, renamed
from verl_cli.config.reasons import Reason
from verl_cli.config.sources import Setting
from verl_cli.config.values import show


@dataclass
class Classified:
    """The settings of all sources, sorted by what they mean."""

    live: dict[str, Setting] = field(default_factory=dict)
    """By present name; a later source replaces an earlier one, and mappings merge."""
    unused: dict[str, str] = field(default_factory=dict)
    """Published but without effect: the paragraph by the name that the user wrote."""
    notices: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def classify(settings: Iterable[Setting]) -> Classified:
    """Sort settings by what their keys mean."""
    result = Classified()
    written: dict[tuple[str, str], tuple[str, Any]] = {}
    for setting in settings:
        for leaf, name in _leaves(setting):
            if name in live_keys():
                before, value = written.setdefault((name, leaf.source), (leaf.key, leaf.value))
                if live_keys()[name].open:
                    before = leaf.key  # Mappings merge.
                if before != leaf.key and value != leaf.value and None not in (value, leaf.value):
                    result.problems.append(
                        f"{before}={show(value)} and {leaf.key}={show(leaf.value)} are two names of one key, {name}, "
                        f"with different values. Keep {name} only."
                    )
                _take_live(result, leaf, name)
            else:
                _take_other(result, leaf, name)
    return result


def no_effect(key: str, value: Any, why: Reason) -> str:
    """Say that a setting does nothing, why, and what to do."""
    return f"{key}={show(value)} has no effect in this run. {why}"


def is_default(name: str, value: Any) -> bool:
    """Whether a value of a key without effect is harmless: null, or what the key is anyway."""
    live = live_keys().get(name)
    return (
        value is None
        or (name in published() and value == published()[name])
        or (live is not None and value == live.default)
    )


def _leaves(setting: Setting) -> Iterator[tuple[Setting, str]]:
    """Split a setting into single keys, each with its present name."""
    key, value = setting.key, setting.value
    name = renamed(key)
    for holder in prefixes(name):
        if holder in live_keys() and live_keys()[holder].open:
            inner = nest({name[len(holder) + 1 :]: value}) if name != holder else value
            yield Setting(key, inner, setting.source), holder
            return
    if isinstance(value, Mapping) and name not in live_keys() and (value or name in sections()):
        for child, item in value.items():
            yield from _leaves(Setting(f"{key}.{child}", item, setting.source))
    else:
        yield setting, name


def _take_live(result: Classified, setting: Setting, name: str) -> None:
    key, value = setting.key, setting.value
    if value is None and (key != name or (not live_keys()[name].nullable and published().get(name, "") is None)):
        return  # The published way to say: nothing set here.
    if key != name:
        result.notices.append(f"{key} is now called {name}; its value {show(value)} was taken for that.")
    for unavailable, why in UNAVAILABLE_VALUES.get(name, {}).items():
        if unavailable == value or (isinstance(value, list) and unavailable in value):
            result.unused[f"{key}={unavailable}"] = no_effect(key, unavailable, why)
            value = (
                [item for item in value if item != unavailable]
                if isinstance(value, list)
                else live_keys()[name].default
            )
    if isinstance(value, Mapping) and name in result.live and isinstance(result.live[name].value, Mapping):
        value = merged(result.live[name].value, value)
    result.live[name] = Setting(name, value, setting.source)


def _take_other(result: Classified, setting: Setting, name: str) -> None:
    key, value = setting.key, setting.value
    why = reason(name)
    if why is not None:
        if not is_default(name, value):
            shown = key if key == name else f"{key} (now {name})"
            result.unused[key] = no_effect(shown, value, why)
        return
    members = [known for known in [*live_keys(), *published()] if known.startswith(f"{name}.")]
    if not members:
        result.problems.append(_unknown(key, setting.source))
    elif value is not None or name in sections():
        result.problems.append(
            f"{key}={show(value)} (from {setting.source}) gives a value to a section. Set one of its keys, such as "
            f"{members[0]}."
        )


def _unknown(key: str, source: str) -> str:
    hint = ""
    if {"True", "False"} & set(key.split(".")):
        hint = " YAML reads the names on, yes, off and no as true and false; quote such a name."
    return f"There is no key {key} (from {source}). The nearest is {nearest(key)}.{hint}"
