"""The command line: `verl-cli` (also installed as `verl`)."""

from typing import Annotated

import typer

from verl_cli import __version__
from verl_cli.commands.config import app as config
from verl_cli.commands.data import app as data
from verl_cli.commands.doctor import doctor
from verl_cli.commands.evaluate import evaluate
from verl_cli.commands.generate import generate
from verl_cli.commands.plan import plan
from verl_cli.commands.quickstart import quickstart
from verl_cli.commands.report import report
from verl_cli.commands.train import train

app = typer.Typer(
    name="verl-cli",
    help="Reinforcement-learning post-training of language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(config, name="config")
app.add_typer(data, name="data")
app.command()(doctor)
app.command("eval")(evaluate)
app.command()(generate)
app.command()(plan)
app.command()(quickstart)
app.command()(report)
app.command()(train)


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


def main() -> None:
    """Entry point of the console scripts."""
    app()


if __name__ == "__main__":
    main()
