"""The options that commands with a configuration share."""

from pathlib import Path
from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None, typer.Argument(help="Configuration as key=value, e.g. data.train_batch_size=64.")
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="A YAML file to start from, such as a run's config.yaml.")
]
Preset = Annotated[str, typer.Option(help="ppo or grpo.")]
AllowUnused = Annotated[
    bool,
    typer.Option("--allow-unused", help="Only report keys that do nothing in this run, instead of refusing them."),
]
