"""`verl-cli plan`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from verl_cli.commands.guard import guarded
from verl_cli.commands.options import AllowUnused, ConfigFile, Overrides, Preset


def plan(
    overrides: Overrides = None,
    config: ConfigFile = None,
    preset: Preset = "ppo",
    allow_unused: AllowUnused = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as one JSON object.")] = False,
) -> None:
    """Show what a run would do, and everything that is wrong with it, in seconds and without a GPU.

    Batch arithmetic, steps, placement, memory by phase, and one real prompt scored by the reward. Nothing is written.
    The exit code is 1 if anything is wrong.
    """
    show_plan(overrides or [], preset=preset, config_file=config, allow_unused=allow_unused, as_json=as_json)


def show_plan(
    overrides: Sequence[str],
    *,
    preset: str = "ppo",
    config_file: Path | None = None,
    allow_unused: bool = False,
    as_json: bool = False,
) -> None:
    """Print the plan of a run; the exit code is 1 if anything is wrong."""

    def run() -> None:
        from verl_cli.plan import run_plan

        code = run_plan(overrides, preset=preset, config_file=config_file, allow_unused=allow_unused, as_json=as_json)
        if code:
            raise typer.Exit(code)

    guarded(run)
