"""A resolved configuration as a file that resolves to it again."""

import re
from typing import Any

from omegaconf import OmegaConf

from verl_cli.config.applicability import inapplicable
from verl_cli.config.keys import flatten, nest
from verl_cli.config.schema import RunConfig


def dump(config: RunConfig) -> str:
    """Write a resolved configuration as YAML; keys without effect in this run are left out.

    ``resolve([], config_file=...)`` of the text gives an equal configuration, under any preset.
    """
    values = flatten(config)
    unused = inapplicable(values)
    return OmegaConf.to_yaml(
        OmegaConf.create(nest({key: _plain(value) for key, value in values.items() if key not in unused}))
    )


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
