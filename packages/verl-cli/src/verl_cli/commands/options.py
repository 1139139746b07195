"""The arguments that commands share: those with a configuration, and those that ask a model."""

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

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A Hugging Face folder, or a name on the hub.")]
InferenceOverrides = Annotated[
    list[str] | None,
    typer.Argument(help="Configuration as key=value, by the keys of training: data.max_prompt_length=1024."),
]
Repeats = Annotated[int | None, typer.Option("--n", min=1, help="Responses per prompt.")]
Temperature = Annotated[
    float | None, typer.Option("--temperature", min=0, help="Of the sampling; 0 takes the likeliest token.")
]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", min=1, help="Longest response in tokens.")]
