"""`verl-cli doctor`."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from verl_cli.doctor import Finding

_COLOURS = {"ok": typer.colors.GREEN, "note": typer.colors.YELLOW, "problem": typer.colors.RED}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as a JSON list.")] = False,
    deep: Annotated[
        bool,
        typer.Option("--deep", help="Also start torch and use each visible GPU for a moment (up to 90 s)."),
    ] = False,
) -> None:
    """Look at this machine and environment, and say what would stop a run, with the remedy.

    Each finding is ok, a note (a run works, and this is worth knowing) or a problem; the exit code is 1 if there is a
    problem. Nothing is ended, changed or downloaded, and no GPU is needed.
    """
    # Not through guarded(): that imports torch, which may be what is broken.
    from verl_cli.doctor import gather_facts, judge

    findings = judge(gather_facts(deep=deep))
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _print(findings)
    if any(finding.state == "problem" for finding in findings):
        raise typer.Exit(1)


def _print(findings: Sequence["Finding"]) -> None:
    for finding in findings:
        state = typer.style(f"{finding.state:<8}", fg=_COLOURS[finding.state])
        typer.echo(f"{state} {_printable(f'{finding.name}: {finding.seen}')}")
        if finding.remedy is not None:
            typer.echo(_printable(f"{'':<8} -> {finding.remedy}"))
    problems = [finding.name for finding in findings if finding.state == "problem"]
    notes = sum(finding.state == "note" for finding in findings)
    told = f"{len(problems)} problem{'s' * (len(problems) != 1)}, {notes} note{'s' * (notes != 1)}"
    typer.echo(_printable(f"\n{told}{': ' if problems else '.'}{', '.join(problems)}"))


def _printable(text: str) -> str:
    """Paths may hold what this terminal cannot show, and that is one of the findings."""
    encoding = sys.stdout.encoding or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding)
