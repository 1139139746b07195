"""The command line: `verl-cli` (also installed as `verl`)."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from verl_cli import __version__
from verl_cli.errors import InterruptedRunError, UserError, known_failures

app = typer.Typer(
    name="verl-cli",
    help="Reinforcement-learning post-training of language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Reinforcement-learning post-training of language models."""


@app.command()
def quickstart(
    run_dir: Annotated[
        Path | None, typer.Option(help="Where everything goes; a new folder under runs/ if not given.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seeds the data, the model and the sampling.")] = 1,
    constant_reward: Annotated[
        bool, typer.Option("--constant-reward", help="Give every answer the same reward: nothing should be learnt.")
    ] = False,
) -> None:
    """See PPO teach a tiny model two-digit addition, on a CPU, in about two minutes."""

    def run() -> None:
        from verl_cli.quickstart import run_quickstart

        run_quickstart(run_dir, seed=seed, constant_reward=constant_reward)

    _guarded(run)


@app.command(context_settings={"ignore_unknown_options": False})
def train(
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Configuration as key=value, e.g. data.train_batch_size=64.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="A YAML file to start from, such as a run's config.yaml.")
    ] = None,
    preset: Annotated[str, typer.Option(help="ppo or grpo.")] = "ppo",
    allow_unused: Annotated[
        bool,
        typer.Option("--allow-unused", help="Only report keys that do nothing in this run, instead of refusing them."),
    ] = False,
) -> None:
    """Train a model as the configuration says.

    At least data.train_files, data.val_files and actor_rollout_ref.model.path must be given; data.train_batch_size and
    actor_rollout_ref.actor.ppo_mini_batch_size (prompts) are the next to look at. Every key with its default and what
    it is for stands in verl_cli/config/schema.py; a wrong one is refused with the nearest.

    ppo trains a critic (advantages by GAE); grpo compares the n responses of a prompt and needs none.
    """
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
        from verl_cli.trainer import fit

        parts = build(resolved.config)
        for notice in parts.notices:
            typer.echo(notice, err=True)
        summary = fit(parts)
        before, after = summary["val_accuracy_before"], summary["val_accuracy_after"]
        if after is not None:
            typer.echo(f"Validation accuracy: {'' if before is None else f'{before:.3f} before, '}{after:.3f} after.")
        typer.echo(f"The run is complete: {parts.run_dir.path / 'report.html'}")

    _guarded(run)


def _guarded(run: Callable[[], None]) -> None:
    """Turn a known failure into its paragraph on stderr and a non-zero exit."""
    try:
        failures = known_failures()
        try:
            run()
        except InterruptedRunError as error:
            _fail(error, 130)
        except failures as error:
            _fail(error, 1)
    except KeyboardInterrupt:
        _fail(UserError("Interrupted. Files that were already written are whole."), 130)


def _fail(error: Exception, code: int) -> NoReturn:
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"error: {error}", markup=False)
    raise SystemExit(code)


def main() -> None:
    """Entry point of the console scripts."""
    app()


if __name__ == "__main__":
    main()
