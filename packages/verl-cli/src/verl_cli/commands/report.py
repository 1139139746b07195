"""`verl-cli report`."""

from pathlib import Path
from typing import Annotated

import typer

from verl_cli.commands.guard import guarded


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run directories; several are compared.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE.html", help="Where the page goes; only an earlier page is replaced."
        ),
    ] = None,
) -> None:
    """Write the page of a run, or a page that compares runs, and print where it is.

    Of one run it is RUN/report.html, which training writes at its end as well; of several it is comparison.html beside
    the first. Runs that are not over, failed or left damaged files have a page too, which says so.
    """

    def run() -> None:
        from verl_cli.report import read_run, read_runs, render, write_comparison, write_page, write_report

        if len(runs) > 1:
            read, problems = read_runs(runs)
            path = write_comparison(read, output, empty=problems)
        else:
            read, problems = [read_run(runs[0])], []
            path = write_report(runs[0]) if output is None else write_page(output, render(read[0]))
        for problem in (*problems, *(problem for one in read for problem in one.problems)):
            typer.echo(f"warning: {problem}", err=True)
        typer.echo(path)

    guarded(run)
