"""From a command line to a configuration that means what it says."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from verl_algos.rollout_correction_options import PRESETS as CORRECTION_PRESETS

from verl_cli.config.algorithm_checks import algorithm_advice
from verl_cli.config.algorithm_rules import CORRECTION
from verl_cli.config.applicability import inapplicable
from verl_cli.config.checks import engine_problems, problems
from verl_cli.config.classify import classify, is_default, no_effect
from verl_cli.config.derive import fill
from verl_cli.config.errors import ConfigError
from verl_cli.config.keys import build, live_keys, merged, nest
from verl_cli.config.published import published, renamed
from verl_cli.config.schema import RunConfig
from verl_cli.config.sources import Setting, load_file, parse_overrides
from verl_cli.config.values import coerce

PRESETS = ("ppo", "grpo")
_ALLOW_UNUSED = "With --allow-unused, keys that have no effect are only reported and the run starts."


@dataclass(frozen=True)
class Resolved:
    """A configuration that can run, and what the user should hear about it."""

    config: RunConfig
    notices: list[str]
    """One line each: renamed keys, and keys without effect."""
    user_keys: frozenset[str]
    """The live keys, by their present names, that the user set in a file or on the command line."""
    origins: Mapping[str, str]
    """Where the value of each live key comes from: the command line, a file, a preset, another key, or the default."""


def resolve(
    overrides: Sequence[str], *, preset: str = "ppo", config_file: Path | None = None, allow_unused: bool = False
) -> Resolved:
    """Resolve a configuration: the preset, then the file, then the overrides.

    Args:
        overrides: ``key=value`` in Hydra's grammar.
        preset: one of `PRESETS`.
        config_file: a YAML file.
        allow_unused: report keys without effect instead of refusing them.

    Raises:
        ConfigError: with everything that is wrong.
    """
    found: list[str] = []
    base, user, unread = _read(overrides, preset, config_file, found)
    base, user = _interpolate(base, user, found)
    sorted_keys = classify(user)
    sorted_keys.live |= _of_correction_preset(sorted_keys.live)
    found += sorted_keys.problems
    unused = dict(sorted_keys.unused)

    doubtful = {renamed(key) for key in unread}
    chosen = _typed(classify(base).live, found, doubtful) | _typed(sorted_keys.live, found, doubtful)
    values = _settle(chosen, sorted_keys.live, frozenset(doubtful), unused)
    config = _build(values, chosen, found, doubtful)
    user_keys = frozenset(sorted_keys.live)
    faultless = frozenset(inapplicable(values)) | {
        name for name, key in live_keys().items() if key.derived is not None and name not in user_keys
    }
    checks = [*problems(values, user_keys, faultless), *(engine_problems(config, faultless) if config else ())]
    found += [problem.text for problem in checks if doubtful.isdisjoint(problem.reads)]
    notices = list(sorted_keys.renames.values())
    if values["algorithm.use_kl_in_reward"] and values["actor_rollout_ref.actor.use_kl_loss"]:
        notices.append("The KL term is both in the reward and in the loss, as asked for.")
    if not found:
        notices += algorithm_advice(values)
    if allow_unused:
        notices += unused.values()
    else:
        found += unused.values()
    if found or config is None:
        raise ConfigError(*found, advice="" if allow_unused or not unused else _ALLOW_UNUSED)
    origins = dict.fromkeys(chosen, f"preset {preset}") | {
        name: setting.source for name, setting in sorted_keys.live.items() if name in chosen
    }
    return Resolved(config, notices, user_keys, {name: origins.get(name, _unset(name)) for name in live_keys()})


def _of_correction_preset(live: Mapping[str, Setting]) -> dict[str, Setting]:
    """What the chosen combination of the rollout correction sets, but for keys that are set already."""
    chosen = live.get(f"{CORRECTION}.preset")
    if chosen is None:
        return {}
    settings = CORRECTION_PRESETS.get(str(chosen.value), {})
    source = f"{CORRECTION}.preset={chosen.value}"
    return {
        key: Setting(key, value, source)
        for name, value in settings.items()
        if (key := f"{CORRECTION}.{name}") not in live
    }


def _unset(name: str) -> str:
    """Where the value of a key that nobody set comes from."""
    derived = live_keys()[name].derived
    if derived is None:
        return "default"
    keys = re.findall(r"\$\{([\w.]+)\}", derived)
    return f"follows {', '.join(keys)}" if keys else f"rule: {derived}"


@cache
def preset_settings(name: str) -> tuple[Setting, ...]:
    """What a shipped preset sets; the schema's defaults hold for the rest."""
    if name not in PRESETS:
        raise ConfigError(f"There is no preset {name!r}. The presets are {', '.join(PRESETS)}.")
    with as_file(files(__package__) / "presets") as directory:
        return tuple(load_file(directory / f"{name}.yaml"))


def _read(
    overrides: Sequence[str], preset: str, config_file: Path | None, found: list[str]
) -> tuple[list[Setting], list[Setting], Iterable[str]]:
    """Read the preset, what the user wrote, and the keys of arguments that cannot be read."""
    base: list[Setting] = []
    user: list[Setting] = []
    try:
        base += preset_settings(preset)
    except ConfigError as error:
        found += error.problems
    if config_file is not None:
        try:
            user += load_file(config_file)
        except ConfigError as error:
            found += error.problems
    settings, unread = parse_overrides(overrides)
    found += unread.values()
    return base, user + settings, unread


def _interpolate(base: list[Setting], user: list[Setting], found: list[str]) -> tuple[list[Setting], list[Setting]]:
    """Replace ``${...}`` by what it refers to: any key of the tree, or one of OmegaConf's resolvers."""
    if not any("${" in repr(setting.value) for setting in user):
        return base, user
    defaults = {
        key.name: key.derived if key.default is None and key.derived and "${" in key.derived else key.default
        for key in live_keys().values()
    }
    tree = nest({key: value for key, value in published().items() if key not in defaults} | defaults)
    readable = []
    for setting in user:
        try:
            OmegaConf.create({setting.key: setting.value})
            readable.append(setting)
        except OmegaConfBaseException as error:
            found.append(_bad_reference(setting, error))
    for setting in [*base, *readable]:
        for key in dict.fromkeys((setting.key, renamed(setting.key))):
            tree = merged(tree, nest({key: setting.value}))
    config = OmegaConf.create(tree)
    resolved = []
    for setting in readable:
        try:
            resolved.append(Setting(setting.key, _resolved(config, setting.key, setting.value), setting.source))
        except OmegaConfBaseException as error:
            found.append(_bad_reference(setting, error))
    return base, resolved


def _bad_reference(setting: Setting, error: Exception) -> str:
    detail = str(error).splitlines()[0].rstrip(".")
    return (
        f"A reference in {setting.key} (from {setting.source}) cannot be resolved: {detail}. Write ${{key}} for "
        "another key's value, ${oc.env:NAME} for the environment, or \\${ for the characters themselves."
    )


def _resolved(config: DictConfig, key: str, value: Any) -> Any:
    if "${" not in repr(value):
        return value
    if isinstance(value, Mapping):
        return {child: _resolved(config, f"{key}.{child}", item) for child, item in value.items()}
    node = OmegaConf.select(config, key)
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node


def _typed(settings: Mapping[str, Setting], found: list[str], doubtful: set[str]) -> dict[str, Any]:
    values = {}
    for name, setting in settings.items():
        try:
            values[name] = coerce(live_keys()[name], setting.value, setting.source)
        except ConfigError as error:
            found += error.problems
            doubtful.add(name)
    return values


def _settle(
    chosen: dict[str, Any], user: Iterable[str], doubtful: frozenset[str], unused: dict[str, str]
) -> dict[str, Any]:
    """Fill in what follows from `chosen`, after taking out of it (and noting in `unused`) what has no effect."""
    defaults = {name: key.default for name, key in live_keys().items()}
    while True:
        values = fill({**defaults, **chosen})
        reasons = inapplicable(values, doubtful)
        gone = [name for name in chosen if name in reasons]
        if not gone:
            return values
        for name in gone:
            value = chosen.pop(name)
            if name in user and not is_default(name, value):
                unused[name] = no_effect(name, value, reasons[name])


def _build(
    values: Mapping[str, Any], chosen: Mapping[str, Any], found: list[str], doubtful: set[str]
) -> RunConfig | None:
    try:
        return build(values)
    except ValueError as whole:
        alone = []
        for name, value in chosen.items():
            try:
                build({name: value})
            except ValueError as error:
                alone.append(str(error))
                doubtful.add(name)
        found += alone or [str(whole)]
        return None
