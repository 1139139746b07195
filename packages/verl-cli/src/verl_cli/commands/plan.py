"""`verl-cli plan`."""

from pathlib import Path
from typing import Annotated

import typer

from verl_cli.commands.guard import guarded


def plan(
    overrides: Annotated[list[str] | None, typer.Argument(help="Configuration as key=value, as for train.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="A YAML file to start from, such as a run's config.yaml.")
    ] = None,
    preset: Annotated[str, typer.Option(help="ppo or grpo.")] = "ppo",
    allow_unused: Annotated[
        bool,
        typer.Option("--allow-unused", help="Only report keys that do nothing in this run, instead of refusing them."),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as one JSON object.")] = False,
) -> None:
    """Show what a run would do, and everything that is wrong with it, in seconds and without a GPU.

    Batch arithmetic, steps, placement, memory by phase, and one real prompt scored by the reward. Nothing is written.
    The exit code is 1 if anything is wrong.
    """

    def run() -> None:
        from verl_cli.plan import run_plan

        code = run_plan(overrides or [], preset=preset, config_file=config, allow_unused=allow_unused, as_json=as_json)
        if code:
            raise typer.Exit(code)

    guarded(run)
