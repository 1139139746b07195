"""What can be understood of a configuration that does not resolve, so that the rest can be looked at all the same."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from verl_cli.config import ConfigError, RunConfig
from verl_cli.config.classify import classify
from verl_cli.config.derive import fill
from verl_cli.config.keys import build, live_keys
from verl_cli.config.ranges import out_of_range
from verl_cli.config.resolve import preset_settings
from verl_cli.config.sources import Setting, load_file, parse_overrides
from verl_cli.config.values import coerce


def understood(overrides: Sequence[str], *, preset: str, config_file: Path | None) -> RunConfig:
    """The configuration with the default for every key whose value is wrong; batch sizes may not fit together."""
    settings: list[Setting] = []
    with suppress(ConfigError):
        settings += preset_settings(preset)
    with suppress(ConfigError):
        settings += load_file(config_file) if config_file is not None else []
    settings += parse_overrides(overrides)[0]
    settings = [setting for setting in settings if "${" not in repr(setting.value)]
    keys = live_keys()
    values = {name: key.default for name, key in keys.items()}
    for name, setting in classify(settings).live.items():
        with suppress(ConfigError, ValueError):
            value = coerce(keys[name], setting.value, setting.source)
            if out_of_range(name, value) is None:
                build({name: value})  # the section refuses what cannot mean anything
                values[name] = value
    return build(fill(values))
