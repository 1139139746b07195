"""`verl-cli config`: what a command line comes to, which keys there are, and what one of them means."""

import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Annotated

import typer

from verl_cli.commands.guard import guarded
from verl_cli.commands.options import AllowUnused, ConfigFile, Overrides, Preset

app = typer.Typer(
    help="Look at the configuration: what a run would use, and what each key means.", no_args_is_help=True
)


@app.command()
def show(
    overrides: Overrides = None,
    config: ConfigFile = None,
    preset: Preset = "ppo",
    allow_unused: AllowUnused = False,
    only_set: Annotated[
        bool, typer.Option("--only-set", help="Only what differs from the defaults: a file to keep.")
    ] = False,
) -> None:
    """Print the resolved configuration as YAML, with where each value comes from.

    Keys without effect in this run are left out. The output is a file for --config.
    """

    def run() -> None:
        from verl_cli.config import dump_commented, resolve

        resolved = resolve(overrides or [], preset=preset, config_file=config, allow_unused=allow_unused)
        for notice in resolved.notices:
            typer.echo(notice, err=True)
        typer.echo(dump_commented(resolved.config, resolved.origins, only_set=only_set), nl=False)

    guarded(run)


@app.command()
def keys(
    pattern: Annotated[str, typer.Argument(help="A part of the name, such as kl or rollout.val.")] = "",
) -> None:
    """List the keys that have an effect: name, type, default and what each is for.

    One line a key, separated by tabs, where the output is no terminal.
    """

    def run() -> None:
        from verl_cli.config import ConfigError, key_table

        rows = key_table(pattern)
        if not rows:
            raise ConfigError(
                f"No live key has {pattern!r} in its name. `verl-cli config explain {pattern}` says more."
            )
        if not sys.stdout.isatty():
            for row in rows:
                typer.echo("\t".join(row))
            return
        for name, kind, default, doc in rows:
            typer.echo(typer.style(name, bold=True) + f"  {kind}  = {default}")
            _print_wrapped("", doc, 4)

    guarded(run)


@app.command()
def explain(key: Annotated[str, typer.Argument(help="Any key, old or new, or key=value to try a value.")]) -> None:
    """Say what a key is: live, renamed, published but without effect here, or unknown.

    Exits with 1 where there is no such key.
    """

    def run() -> None:
        from verl_cli.config import explain as explanation_of

        explanation = explanation_of(key)
        _print_lines(explanation.lines)
        if not explanation.known:
            raise SystemExit(1)

    guarded(run)


def _print_lines(lines: Sequence[tuple[str, str]]) -> None:
    width = max(len(heading) for heading, _ in lines) + 2
    for heading, text in lines:
        _print_wrapped(f"{heading:<{width}}", text, width)


def _print_wrapped(heading: str, text: str, indent: int) -> None:
    """A paragraph with a hanging indent on a terminal, one line elsewhere."""
    if sys.stdout.isatty():
        text = textwrap.fill(
            text,
            max(shutil.get_terminal_size().columns, indent + 40),
            initial_indent=" " * indent,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )[len(heading) :]
    typer.echo(heading + text)
