"""What the user wrote: overrides in Hydra's grammar, and YAML files composed by Hydra."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_cli.config.errors import ConfigError

COMMAND_LINE = "the command line"
_MOST_NODES = 100_000
#: Keys whose values may be a pair of bounds "lo_hi", and pairs that a reader of numbers takes for one whole number.
_BOUNDS = ("rollout_is_threshold", "rollout_rs_threshold")
_PAIR = re.compile(r"\d+(?:\.\d*)?_\d+(?:\.\d*)?")
#: Keys whose text is a list with commas, as published, which Hydra takes for several runs unless it is quoted; and such
#: a list.
_COMMA_LISTS = ("rollout_rs", "rollout_rs_threshold")
_COMMAS = re.compile(r"[\w.+-]+(?:\s*,\s*[\w.+-]+)+", re.ASCII)


@dataclass(frozen=True)
class Setting:
    """One key with the value that somebody gave it; the value may be a mapping of further keys."""

    key: str
    value: Any
    source: str
    """The command line, or the file."""


def parse_overrides(overrides: Sequence[str]) -> tuple[list[Setting], dict[str, str]]:
    """Parse ``key=value`` arguments.

    Returns:
        The settings, and a paragraph for each argument that is none, by its key.
    """
    settings, problems = [], {}
    for text in overrides:
        try:
            settings.append(parse_override(text))
        except ConfigError as error:
            problems[text.partition("=")[0].lstrip("+~")] = str(error)
    return settings, problems


def text_override(key: str, value: object) -> str:
    """An override that gives a key any text, whatever characters it holds."""
    text = str(value)
    if re.fullmatch(r"[\w./+-]*[/.][\w./+-]*", text, re.ASCII):  # a plain path reads as it is
        return f"{key}={text}"
    quoted = text.replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\${")
    return f"{key}='{quoted}'"


def parse_override(text: str) -> Setting:
    """Parse one ``key=value`` argument; ConfigError says how to write it."""
    key, equals, value = text.partition("=")
    if text.startswith("~"):
        raise ConfigError(
            f"{text} would delete a key, but every key has a meaning here. Set {key[1:]}=null, or leave it out."
        )
    if text.startswith("-"):
        raise ConfigError(
            f"{text} is not an override: everything is set as key=value here, such as data.train_batch_size=256. "
            "Hydra's own options are not used; `verl-cli train` takes a file with --config FILE and a preset with "
            "--preset. Leave it out."
        )
    if not equals:
        raise ConfigError(f"{text} is not an override. Write key=value, such as data.train_batch_size=256.")
    try:
        override: Override = _parser().parse_override(text)
    except RecursionError as error:
        raise ConfigError(f"The value of {key} is nested too deeply to be read. Give it in a file instead.") from error
    except HydraException as error:
        raise ConfigError(
            f"The value of {text} cannot be read ({str(error).splitlines()[0]}). Quote it twice, for Hydra and for the "
            f'shell: "{text_override(key, value)}".'
        ) from error
    name = override.key_or_group if override.package is None else f"{override.key_or_group}@{override.package}"
    if override.is_sweep_override():
        if name.rpartition(".")[2] in _COMMA_LISTS and _COMMAS.fullmatch(value):
            return Setting(name, value, COMMAND_LINE)
        raise ConfigError(
            f"{text} asks for several runs, and this command is one run. Write a list as {key}=[{value}], or start a "
            "run for each value."
        )
    pair = name.endswith(_BOUNDS) and _PAIR.fullmatch(value)
    return Setting(name, value if pair else _none_is_null(override.value()), COMMAND_LINE)


@cache
def _parser() -> OverridesParser:
    return OverridesParser.create()


def load_file(path: Path) -> list[Setting]:
    """Read a YAML file; a ``defaults`` list in it composes it from files beside it, as Hydra does."""
    if not path.is_file():
        raise ConfigError(f"There is no configuration file {path}. Check the path; it is relative to {Path.cwd()}.")
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path} is not named like a configuration file. Rename it to {path.stem}.yaml.")
    _check_size(path)
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(path.parent.resolve())):
            tree = OmegaConf.to_container(compose(path.name), resolve=False)
    except RecursionError as error:
        raise ConfigError(
            f"The configuration file {path} cannot be read: it contains itself (an anchor &name with *name inside), or "
            "is nested a thousand levels deep. Write the values out."
        ) from error
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, UnicodeDecodeError) as error:
        detail = re.sub(r"\s+", " ", str(error)).strip()
        raise ConfigError(
            f"The configuration file {path} cannot be read: {detail}. It must be a mapping of keys in UTF-8; a "
            "defaults list names files beside it (a shipped preset is chosen by the preset option instead)."
        ) from error
    assert isinstance(tree, dict)
    return [Setting(str(key), _none_is_null(value), str(path)) for key, value in tree.items()]


def _check_size(path: Path) -> None:
    """Refuse what is no mapping of keys, and aliases of aliases that unfold to more than any configuration holds."""
    try:
        text = path.read_text("utf-8")
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        return  # Hydra's reader says it better
    if found := re.search(rf"\b({'|'.join(_BOUNDS)}):\s*({_PAIR.pattern})\s*(?:[,}}#]|$)", text, re.MULTILINE):
        raise ConfigError(
            f"{found[1]}: {found[2]} in {path} may be one number to YAML, {found[2].replace('_', '')}, and not a pair "
            f'of bounds. Quote the pair: {found[1]}: "{found[2]}".'
        )
    if tree is not None and (not isinstance(tree, dict) or not isinstance(tree.get("defaults", []), list)):
        raise ConfigError(
            f"The configuration file {path} cannot be read: it must be a mapping of keys (and a defaults list, if it "
            f"has one, a list). Write it as `data: {{train_files: ...}}`."
        )
    try:
        size = _unfolded(tree, {})
    except RecursionError:
        return
    if size > _MOST_NODES:
        raise ConfigError(
            f"The configuration file {path} cannot be read: its aliases unfold to {size} values. Write the values out."
        )


def _unfolded(node: Any, sizes: dict[int, int]) -> int:
    """How many values a tree has when each alias is written out."""
    if not isinstance(node, dict | list):
        return 1
    if id(node) not in sizes:
        sizes[id(node)] = 1 + sum(
            _unfolded(item, sizes) for item in (node.values() if isinstance(node, dict) else node)
        )
    return sizes[id(node)]


def _none_is_null(value: Any) -> Any:
    """Read the text None as null at any depth: it is Python's word for it, and never a useful path or name."""
    if isinstance(value, dict):
        return {key: _none_is_null(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_none_is_null(item) for item in value]
    return None if value == "None" else value
