"""The report page of one run, put together from its run directory."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from verl_cli.report import generations, headline
from verl_cli.report.catalogue import MAX_LINES, Chart, chart_groups, phases
from verl_cli.report.charts import Caption, Series, line_chart, stacked_chart
from verl_cli.report.document import document, notices, table
from verl_cli.report.read import Run, read_run
from verl_cli.report.scale import number
from verl_cli.report.validation_charts import validation_charts
from verl_cli.run.run_dir import write_atomically
from verl_cli.tracking import validation_results

REPORT_FILE = "report.html"


def write_report(run_dir: Path) -> Path:
    """Write `report.html` of a run from what its directory holds, finished or not, and return its path.

    The page is one file without scripts that asks the network for nothing. A chart whose metrics the run did not log is
    left out; what cannot be read is left out and named at the top. The file is there whole or not at all.

    Raises:
        UserError: there is no such folder, or nothing of a run in it.
        OSError: the page cannot be written.
    """
    path = run_dir / REPORT_FILE
    write_atomically(path, render(read_run(run_dir)))
    return path


def render(run: Run) -> str:
    """The page of a run as HTML."""
    about = headline.subject(run)
    parts = [f'<p class="about">{escape(about)}</p>' if about else "", notices(run), _headline(run), _warnings(run)]
    for heading, charts in [("Validation", validation_charts(run.names())), *chart_groups(run.names())]:
        figures = [_figure(run, chart) for chart in charts]
        if heading == "Speed" and (of_phases := _phases(run)):
            figures.append(of_phases)
        if figures:
            parts.append(f'<section><h2>{heading}</h2><div class="charts">{"".join(figures)}</div></section>')
    parts += [generations.of_run(run), _all_metrics(run)]
    if run.config:
        parts.append(f"<details><summary>Configuration</summary><pre>{escape(run.config)}</pre></details>")
    return document(run.name, parts)


def warning(run: Run, names: Sequence[str]) -> str:
    """A sentence on values that cannot be drawn; empty where there are none."""
    steps = sorted({step for name in names for step in run.not_finite.get(name, [])})
    if not steps:
        return ""
    count = f"{len(steps)} steps, first at" if len(steps) > 1 else "step"
    return f"Not a finite number at {count} {'step ' if len(steps) > 1 else ''}{steps[0]}."


def _headline(run: Run) -> str:
    results = validation_results(run.names())
    validations = {}
    for result in results:
        title = "Validation accuracy" if result.variable == "acc" else "Validation reward"
        title = title if len(results) == 1 else f"{title}, {result.source}"
        validations[title] = (result.name, f"mean@{result.n}")
    cells = "".join(
        f'<div><dt>{escape(name)}</dt><dd>{value}</dd><dd class="note">{escape(note)}</dd></div>'
        for name, value, note in headline.tiles(run, validations)
    )
    return f"<dl>{cells}</dl>" if cells else ""


def _warnings(run: Run) -> str:
    """What the health monitors warned of; nothing where they were silent."""
    rows = [[str(one.step), escape(one.name.replace("_", " ")), escape(one.message)] for one in run.warnings]
    return (
        f"<section><h2>Warnings</h2>{table(['Step', 'What', 'Why, and what to try'], rows)}</section>" if rows else ""
    )


def _figure(run: Run, chart: Chart) -> str:
    series = [Series(label, run.series(name), style) for style, (label, name) in enumerate(chart.lines)]
    caption = Caption(chart.title, chart.unit, chart.good, warning(run, [name for _, name in chart.lines]))
    values = (value for one in series for value in one.values.values())
    return line_chart(caption, series, bounds=chart.bounds(values))


def _phases(run: Run) -> str:
    """Time of each phase, the longest first; what has no colour of its own is taken together."""
    series = [Series(label, run.series(name)) for label, name in phases(run.names())]
    if not series:
        return ""
    series.sort(key=lambda one: -sum(one.values.values()))
    if len(series) > MAX_LINES:
        rest = series[MAX_LINES - 1 :]
        steps = sorted({step for one in rest for step in one.values})
        others = {step: sum(one.values.get(step, 0.0) for one in rest) for step in steps}
        series = [*series[: MAX_LINES - 1], Series(f"{len(rest)} others", others)]
    styled = [Series(one.label, one.values, style) for style, one in enumerate(series)]
    good = "From the bottom up in the order of the legend, with the mean per step. The longest is where tuning pays."
    return stacked_chart(Caption("Phases of a step", "seconds", good), styled)


def _all_metrics(run: Run) -> str:
    """Every metric in numbers: what no chart shows, and what the charts show for those who cannot see them."""
    rows = []
    for name in run.names():
        values = run.series(name)
        low, high = min(values.values()), max(values.values())
        numbers = [number(value) for value in (values[min(values)], values[max(values)], low, high)]
        rows.append([escape(name), *numbers, str(len(values))])
    if not rows:
        return ""
    heads = ["Metric", "First", "Last", "Lowest", "Highest", "Steps"]
    return f"<details><summary>All metrics</summary>{table(heads, rows, css='numbers')}</details>"
