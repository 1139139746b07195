"""The live keys: the leaves of the typed tree, by dotted name."""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from verl_cli.config.schema import RunConfig

T = TypeVar("T")

#: Fields of lower packages that take another key's value when null; those packages know nothing of the tree.
_DERIVED = {
    "critic.model.path": "${actor_rollout_ref.model.path}",
    "data.seed": "${trainer.seed}",
}

#: Fields of lower packages that the trainer fills in; they are no keys.
_FILLED_IN = frozenset({"actor_rollout_ref.actor.optim.total_training_steps", "critic.optim.total_training_steps"})


@dataclass(frozen=True)
class LiveKey:
    """A key that this version implements."""

    name: str
    type: Any
    """The annotation, as `typing` resolves it."""
    default: Any
    """None where the key has no default."""
    derived: str | None
    """What a null becomes: text in which ``${key}`` stands for another key's value."""
    doc: str
    """Why one would touch it."""

    @property
    def nullable(self) -> bool:
        """Whether null is a value of this key."""
        return self.derived is not None or NoneType in get_args(self.type)

    @property
    def open(self) -> bool:
        """Whether the key holds a mapping with names of the user's choice."""
        return dict in (self.type, get_origin(self.type)) or any(
            dict in (part, get_origin(part)) for part in get_args(self.type)
        )


@cache
def live_keys() -> Mapping[str, LiveKey]:
    """Every live key by name, in the order of the tree."""
    return {key.name: key for key in _walk(_defaults(), "")}


def flat_keys() -> list[LiveKey]:
    """List the live keys with type, default and the line that says why one would touch them."""
    return list(live_keys().values())


@cache
def sections() -> frozenset[str]:
    """The dotted names of everything that has live keys below it."""
    return frozenset(name.rsplit(".", depth)[0] for name in live_keys() for depth in range(1, name.count(".") + 1))


@cache
def _defaults() -> RunConfig:
    return _blank(RunConfig)


def _blank(owner: type[T]) -> T:
    """Make a dataclass with its defaults, and None where it has none."""
    hints = get_type_hints(owner)
    missing = [
        item.name
        for item in fields(owner)  # type: ignore[arg-type]
        if item.default is MISSING and item.default_factory is MISSING
    ]
    return owner(**{name: _blank(hints[name]) if is_dataclass(hints[name]) else None for name in missing})


def _walk(config: Any, prefix: str) -> Iterator[LiveKey]:
    owner: type = type(config)
    hints, docs = _annotations(owner)
    for item in fields(config):
        name, value = prefix + item.name, getattr(config, item.name)
        if is_dataclass(value):
            yield from _walk(value, f"{name}.")
        elif name not in _FILLED_IN:
            derived = item.metadata.get("derived", _DERIVED.get(name))
            yield LiveKey(name, hints[item.name], value, derived, docs.get(item.name, ""))


@cache
def _annotations(owner: type) -> tuple[dict[str, Any], dict[str, str]]:
    """The types of a dataclass's fields, and the docstrings that stand below them."""
    body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    assert isinstance(body, ast.ClassDef)
    return get_type_hints(owner), {
        above.target.id: " ".join(inspect.cleandoc(below.value.value).split())
        for above, below in zip(body.body, body.body[1:], strict=False)
        if isinstance(above, ast.AnnAssign)
        and isinstance(above.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


def flatten(config: Any) -> dict[str, Any]:
    """The value of every live key of a configuration."""
    return {key.name: key.default for key in _walk(config, "")}


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted names into nested mappings."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *path, leaf = name.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[leaf] = value
    return tree


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Merge nested mappings; whatever else stands in `new` replaces what stands in `old`."""
    result = dict(old)
    for key, value in new.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def build(values: Mapping[str, Any]) -> RunConfig:
    """Build a configuration from the values of some live keys; the others keep their defaults."""
    return _replace(_defaults(), nest(values))


def _replace(config: T, tree: Mapping[str, Any]) -> T:
    changed = {
        name: _replace(getattr(config, name), value) if is_dataclass(getattr(config, name)) else value
        for name, value in tree.items()
    }
    return replace(config, **changed) if changed else config  # type: ignore[type-var]
