"""The page that compares runs: one colour a run in every chart, headline numbers, and what their settings differ in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from verl_cli.errors import UserError
from verl_cli.report import generations, headline
from verl_cli.report.catalogue import MAX_LINES, phases
from verl_cli.report.charts import Series, key
from verl_cli.report.compared_charts import charts_of_runs
from verl_cli.report.document import document, is_ours, notices, state, table, write_page
from verl_cli.report.read import Run, holds_run, read_run
from verl_cli.report.scale import number
from verl_cli.report.validation_charts import compared_validation

_NOT_THERE = "<i>not set</i>"


def read_runs(run_dirs: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Read the runs to compare, and a paragraph for each folder that holds none (yet).

    Raises:
        UserError: a folder does not exist or is named twice, or none of them holds a run.
    """
    resolved = [run_dir.resolve() for run_dir in run_dirs]
    if twice := next((run_dir for run_dir in run_dirs if resolved.count(run_dir.resolve()) > 1), None):
        raise UserError(f"The run directory {twice} is named more than once; name each run once.")
    runs, empty = [], []
    for run_dir in run_dirs:
        if run_dir.is_dir() and not holds_run(run_dir):
            empty.append(f"The folder {run_dir} holds nothing of a run yet and is left out of the comparison.")
        else:
            runs.append(read_run(run_dir))
    if not runs:
        raise UserError(
            f"None of {', '.join(map(str, run_dirs))} holds a run; give the folders that runs were written to."
        )
    return runs, empty


def write_comparison(runs: Sequence[Run], output: Path | None = None, *, empty: Sequence[str] = ()) -> Path:
    """Write the page that compares runs, and return its path.

    Without `output` it is comparison.html beside the first run, or the next free comparison-N.html where a file of that
    name is not a page of this program. `empty` has paragraphs for the top of the page.

    Raises:
        UserError: `output` is a file that is not a page of this program.
        OSError: the page cannot be written.
    """
    return write_page(output or _free_name(runs[0].path.resolve().parent), render(runs, empty))


def _free_name(folder: Path) -> Path:
    path, number_ = folder / "comparison.html", 2
    while path.exists() and not is_ours(path):
        path, number_ = folder / f"comparison-{number_}.html", number_ + 1
    return path


def labels(paths: Sequence[Path]) -> list[str]:
    """For each path its last folders, as few as tell it from the others."""
    parts = [path.resolve().parts for path in paths]
    result = []
    for own in parts:
        others = [other for other in parts if other != own]
        depth = next(
            (count for count in range(1, len(own)) if all(other[-count:] != own[-count:] for other in others)), len(own)
        )
        result.append(str(Path(*own[-depth:])))
    return result


def tag(index: int) -> str:
    """A, B, ..., Z, AA, AB, ..."""
    letters = ""
    index += 1
    while index:
        index, letter = divmod(index - 1, 26)
        letters = chr(ord("A") + letter) + letters
    return letters


def render(runs: Sequence[Run], empty: Sequence[str] = ()) -> str:
    """The page as HTML."""
    names = labels([run.path for run in runs])
    tags = [tag(index) for index in range(len(runs))]
    keys = [Series(name, {}, style, letter) for style, (name, letter) in enumerate(zip(names, tags, strict=True))]
    chips = [f'<span class="run">{key(one)}<b class="{one.css}">{one.tag}</b></span>' for one in keys]
    named = [f"{chip} {escape(name)}" for chip, name in zip(chips, names, strict=True)]
    parts = [f'<ul class="runs">{"".join(f"<li>{name}</li>" for name in named)}</ul>']
    if len(runs) > MAX_LINES:
        parts.append(f'<p class="notice">Colours repeat beyond {MAX_LINES} runs; the letters do not.</p>')
    parts += [f'<p class="notice">{escape(paragraph)}</p>' for paragraph in empty]
    parts += [notices(run, f"{one.tag} ({one.label})") for run, one in zip(runs, keys, strict=True)]
    parts.append(_headline(runs, named))
    parts.append(charts_of_runs(runs, keys))
    parts += [_phases(runs, named), _differences(runs, named), generations.of_runs(runs, named)]
    count = f"{len(runs)} runs" if len(runs) > 1 else names[0]
    return document(f"Comparison of {count}", parts)


def _headline(runs: Sequence[Run], named: Sequence[str]) -> str:
    """Headline numbers, a row each; a quantity that no run has is left out."""
    rows: list[tuple[str, list[str]]] = [
        ("Algorithm, model, data", [escape(headline.subject(run)) for run in runs]),
        ("State", [state(run) for run in runs]),
    ]
    for one in compared_validation([run.names() for run in runs]):
        if one.headline or len(one.owners) > 1:
            cells = [_change(run, name) for run, name in zip(runs, one.metrics, strict=True)]
            rows.append((f"{escape(one.chart.title)} <small>{escape(one.chart.unit)}</small>", cells))
    quantities: list[tuple[str, Callable[[Run], str]]] = [
        ("Mean score in training <small>first and last step</small>", lambda run: _change(run, "critic/score/mean")),
        ("Steps", lambda run: str(headline.steps(run))),
        ("Tokens <small>prompts and responses</small>", lambda run: _number(headline.tokens(run))),
        ("Throughput <small>tokens per second and device</small>", lambda run: _number(headline.throughput(run))),
        ("Duration", lambda run: " ".join(headline.time(run))),
        ("Seed", headline.seed),
    ]
    rows += [(title, [quantity(run) for run in runs]) for title, quantity in quantities]
    filled = [[title, *(cell or "-" for cell in cells)] for title, cells in rows if any(cells)]
    return f"<section><h2>Headline numbers</h2>{table(['Quantity', *named], filled, css='runs-beside')}</section>"


def _change(run: Run, name: str | None) -> str:
    values = run.series(name) if name else {}
    return headline.change(values) if values else ""


def _number(value: float | None) -> str:
    return number(value) if value else ""


def _phases(runs: Sequence[Run], named: Sequence[str]) -> str:
    """Seconds of each phase, the longest first."""
    means: dict[str, list[float | None]] = {}
    for label, name in phases(sorted({name for run in runs for name in run.names()})):
        series = [run.series(name) for run in runs]
        means[label] = [
            sum(values.values()) / max(headline.steps(run), 1) if values else None
            for values, run in zip(series, runs, strict=True)
        ]
    if not means:
        return ""
    order = sorted(means, key=lambda label: -max(mean or 0.0 for mean in means[label]))
    rows = [[escape(label), *("-" if mean is None else number(mean) for mean in means[label])] for label in order]
    heading = "<h2>Phases</h2><p>Seconds per training step: the time of the whole run by its steps.</p>"
    return f"<section>{heading}{table(['Phase', *named], rows, css='runs-beside')}</section>"


def differences(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[str | None]]:
    """The keys whose values are not the same in all configurations, with the value in each; None where it has none."""
    found = {}
    for name in sorted({name for one in settings for name in one}):
        values = [_value(one[name]) if name in one else None for one in settings]
        if len(set(values)) > 1:
            found[name] = values
    return found


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _differences(runs: Sequence[Run], named: Sequence[str]) -> str:
    """The configuration keys in which the runs differ, and only those."""
    known = [(run, name) for run, name in zip(runs, named, strict=True) if run.settings]
    unknown = [name for run, name in zip(runs, named, strict=True) if not run.settings]
    note = f"<p>Without a readable config.yaml: {', '.join(unknown)}.</p>" if unknown else ""
    found = differences([run.settings for run, _ in known])
    if len(known) < 2:
        content = "<p>There are no two configurations to compare.</p>"
    elif not found:
        content = "<p>The configurations are equal.</p>"
    else:
        rows = [
            [escape(name), *(_NOT_THERE if value is None else escape(value) for value in values)]
            for name, values in found.items()
        ]
        content = table(["Key", *(name for _, name in known)], rows, css="runs-beside keys")
    return f"<section><h2>Configuration: what differs</h2>{note}{content}</section>"
