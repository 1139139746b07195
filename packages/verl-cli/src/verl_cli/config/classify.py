"""The state of each key that a user sets: live, renamed, not applicable, or unknown."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_cli.config.keys import live_keys, merged, nest, sections
from verl_cli.config.nearest import nearest
from verl_cli.config.published import (
    UNAVAILABLE_VALUES,
    is_published_default,
    prefixes,
    published,
    reason,
    renamed,
    renamed_value,
    splits,
)
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
    renames: dict[str, str] = field(default_factory=dict)
    """What was renamed: the line by the name that the user wrote."""
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Leaf:
    """One key as somebody wrote it."""

    key: str
    value: Any
    source: str
    name: str
    """The present name of the whole key."""
    holder: str
    """The live key that takes the value: `name`, or the mapping that holds it."""

    @property
    def taken(self) -> Any:
        """The value for `holder`."""
        return self.value if self.holder == self.name else nest({self.name[len(self.holder) + 1 :]: self.value})


def classify(settings: Iterable[Setting]) -> Classified:
    """Sort settings by what their keys mean."""
    result = Classified()
    written: dict[tuple[str, str], _Leaf] = {}
    for setting in settings:
        for leaf in _leaves(setting.key, setting.value, setting.source):
            if leaf.holder not in live_keys():
                _take_other(result, leaf)
                continue
            before = written.setdefault((leaf.name, leaf.source), leaf)
            if before.key != leaf.key and _contradict(before.value, leaf.value):
                result.problems.append(
                    f"{before.key}={show(before.value)} and {leaf.key}={show(leaf.value)} are two names of one key, "
                    f"{leaf.name}, with different values. Keep {leaf.name} only."
                )
            _take_live(result, leaf)
    return result


def no_effect(key: str, value: Any, why: Reason) -> str:
    """Say that a setting does nothing, why, and what to do."""
    return f"{key}={show(value)} has no effect in this run. {why}"


def is_default(name: str, value: Any) -> bool:
    """Whether a value of a key without effect is harmless: null, or what the key is anyway."""
    live = live_keys().get(name)
    return value is None or is_published_default(name, value) or (live is not None and value == live.default)


def meant(key: str) -> str:
    """Say which key an unknown one was probably meant to be, or where to look."""
    hint = ""
    if {"True", "False"} & set(key.split(".")):
        hint = " YAML reads the names on, yes, off and no as true and false; quote such a name."
    close = nearest(key)
    if close is None:
        return f"Nothing is like it; `verl-cli config keys` lists every key.{hint}"
    why = reason(close)
    return f"The nearest is {close}.{f' (It has no effect either: {why})' if why else ''}{hint}"


def _leaves(key: str, value: Any, source: str) -> Iterator[_Leaf]:
    """Split a setting into single keys."""
    name = renamed(key)
    holder = next((known for known in prefixes(name) if known in live_keys() and live_keys()[known].open), None)
    if isinstance(value, Mapping) and (
        splits(key) or (holder is None and name not in live_keys() and (value or name in sections()))
    ):
        for child, item in value.items():
            yield from _leaves(f"{key}.{child}", item, source)
    else:
        yield _Leaf(key, value, source, name, holder or name)


def _contradict(one: Any, other: Any) -> bool:
    """Whether two values of one key cannot both hold; mappings merge, and a null under an old name sets nothing."""
    return one != other and None not in (one, other) and not (isinstance(one, Mapping) and isinstance(other, Mapping))


def _take_live(result: Classified, leaf: _Leaf) -> None:
    key, name, value = leaf.key, leaf.holder, leaf.taken
    unset = key != name or (not live_keys()[name].nullable and is_published_default(name, None))
    if leaf.value is None and leaf.name == name and unset:
        return  # The published way to say: nothing set here.
    if key != leaf.name:
        result.renames[key] = f"{key} is now called {leaf.name}; its value {show(leaf.value)} was taken for that."
    if (present := renamed_value(name, value)) is not None:
        written, value = value, present
        result.renames[f"{key}={written}"] = f"{key}={written} is now called {name}={value}, and was taken for that."
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
    result.live[name] = Setting(name, value, leaf.source)


def _take_other(result: Classified, leaf: _Leaf) -> None:
    key, name, value = leaf.key, leaf.name, leaf.value
    why = reason(name)
    if why is not None:
        if not is_default(name, value):
            shown = key if key == name else f"{key} (now {name})"
            result.unused[key] = no_effect(shown, value, why)
        return
    members = [known for known in [*live_keys(), *published()] if known.startswith(f"{name}.")]
    if not members:
        result.problems.append(f"There is no key {key} (from {leaf.source}). {meant(key)}")
    elif value is not None or name in sections():
        result.problems.append(
            f"{key}={show(value)} (from {leaf.source}) gives a value to a section. Set one of its keys, such as "
            f"{members[0]}."
        )
