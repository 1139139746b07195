"""The charts of a comparison: one for each metric, with a line for each run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from verl_cli.report.catalogue import Chart, chart_groups
from verl_cli.report.charts import Caption, Series, line_chart
from verl_cli.report.page import warning
from verl_cli.report.read import Run
from verl_cli.report.validation_charts import Compared, compared_validation

# More noisy lines than these cannot be followed point by point: each point then stands for more steps.
_FEW_LINES = 2
_POINTS_OF_MANY = 60


def charts_of_runs(runs: Sequence[Run], keys: Sequence[Series]) -> str:
    """The charts by heading; metrics that only one of several runs has are named instead of drawn.

    `keys` has name, style and tag of each run.
    """
    names = [set(run.names()) for run in runs]
    groups = [("Validation", compared_validation(names))]
    for heading, charts in chart_groups(set().union(*names)):
        singles = [single for chart in charts for single in chart.single_lines()]
        groups.append(
            (
                heading,
                [Compared(chart, [name if name in known else None for known in names]) for chart, name in singles],
            )
        )
    logging = sum(bool(known) for known in names)
    parts = []
    for heading, compared in groups:
        figures, alone = [], []
        for one in compared:
            if len(one.owners) > 1 or logging == 1:
                figures.append(_figure(runs, keys, one.chart, one.metrics))
            else:
                unit = f", {one.chart.unit}" if one.chart.unit else ""
                alone.append(f"{one.chart.title}{unit} ({keys[one.owners[0]].tag})")
        if figures or alone:
            note = f'<p class="good">Only one run has: {escape("; ".join(alone))}.</p>' if alone else ""
            drawn = f'<div class="charts">{"".join(figures)}</div>' if figures else ""
            parts.append(f"<section><h2>{heading}</h2>{drawn}{note}</section>")
    return "".join(parts)


def _figure(runs: Sequence[Run], keys: Sequence[Series], chart: Chart, metrics: Sequence[str | None]) -> str:
    series, warnings = [], []
    for run, one, name in zip(runs, keys, metrics, strict=True):
        if name is None:
            continue
        series.append(Series(f"{one.tag} {one.label}", run.series(name), one.style, one.tag))
        if said := warning(run, [name]):
            warnings.append(f"{one.tag}: {said}")
    caption = Caption(chart.title, chart.unit, chart.good, " ".join(warnings))
    values = (value for one in series for value in one.values.values())
    bounds = chart.bounds(values)
    if len(series) <= _FEW_LINES:
        return line_chart(caption, series, bounds=bounds, legend=False)
    return line_chart(caption, series, bounds=bounds, legend=False, most_points=_POINTS_OF_MANY)
