"""`verl-cli train`, and the same from the published entry points."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from verl_cli.commands.guard import guarded
from verl_cli.commands.options import AllowUnused, ConfigFile, Overrides, Preset
from verl_cli.commands.plan import show_plan

if TYPE_CHECKING:
    from verl_cli.config import RunConfig


def train(
    overrides: Overrides = None,
    config: ConfigFile = None,
    preset: Preset = "ppo",
    allow_unused: AllowUnused = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the run would do, as `verl-cli plan` does, and stop.")
    ] = False,
) -> None:
    """Train a model as the configuration says.

    At least data.train_files, data.val_files and actor_rollout_ref.model.path must be given; data.train_batch_size and
    actor_rollout_ref.actor.ppo_mini_batch_size (prompts) are the next to look at. `verl-cli config keys` lists every
    key with its default and what it is for; a wrong one is refused with the nearest.

    A run that was stopped goes on when the same command is given again.

    ppo trains a critic (advantages by GAE); grpo compares the n responses of a prompt and needs none.
    """
    if dry_run:
        show_plan(overrides or [], preset=preset, config_file=config, allow_unused=allow_unused)
    else:
        run_training(overrides or [], preset=preset, config_file=config, allow_unused=allow_unused)


def run_training(
    overrides: Sequence[str], *, preset: str = "ppo", config_file: Path | None = None, allow_unused: bool = False
) -> None:
    """Resolve the configuration, train, and say where the results are; known failures exit with a paragraph."""

    def run() -> None:
        from verl_cli.config import resolve

        resolved = resolve(overrides, preset=preset, config_file=config_file, allow_unused=allow_unused)
        for notice in resolved.notices:
            typer.echo(notice, err=True)
        from verl_cli.build import build
        from verl_cli.run.resume import NothingLeft
        from verl_cli.trainer import complete_records, fit

        config = without_missing_loggers(resolved.config) if allow_unused else resolved.config
        try:
            parts = build(config)
        except NothingLeft as done:
            typer.echo(str(done))
            complete_records(config)
            return
        for notice in parts.notices:
            typer.echo(notice, err=True)
        summary = fit(parts)
        before, after = summary["val_accuracy_before"], summary["val_accuracy_after"]
        if after is not None:
            typer.echo(f"Mean validation score: {'' if before is None else f'{before:.3f} before, '}{after:.3f} after.")
        typer.echo(f"The run is complete: {parts.run_dir.path / 'report.html'}")

    guarded(run)


def without_missing_loggers(config: "RunConfig") -> "RunConfig":
    """Leave out loggers whose packages are not installed, each with a line: most published command lines name wandb."""
    from verl_cli.tracking import install_advice, missing_loggers

    missing = missing_loggers(config.trainer.logger)
    for name in missing:
        typer.echo(f"trainer.logger: {name} is left out, it is not installed. {install_advice([name])}.", err=True)
    kept = [name for name in config.trainer.logger if name not in missing]
    return replace(config, trainer=replace(config.trainer, logger=kept))
