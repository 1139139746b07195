"""Charts of the validation metrics, `val-core/{data_source}/{acc or reward}/{mean, best or maj}@{n}`."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from verl_cli.report.catalogue import Chart, split

_NAME = re.compile(
    r"val-core/(?P<source>.+)/(?P<variable>acc|reward)/(?P<statistic>mean|best|maj)@(?P<n>\d+)(?:/mean)?"
)
_UNITS = {
    "mean": "mean over the responses of a prompt",
    "best": "best of {n} responses of a prompt",
    "maj": "the answer that most of {n} responses give",
}
_GOOD = {
    "mean": "Should rise: these prompts are not trained on.",
    "best": "What the model can reach: falling while the mean rises, its answers grow alike.",
    "maj": "Above the mean: right answers are the common ones.",
}


@dataclass(frozen=True)
class ValidationMetric:
    """One validation metric, taken apart.

    Attributes:
        source: the data source of the prompts.
        variable: `acc` or `reward`.
        statistic: `mean`, `best` or `maj`.
        n: responses per prompt.
        name: the metric's whole name.
    """

    source: str
    variable: str
    statistic: str
    n: int
    name: str

    @property
    def kind(self) -> str:
        """What a title calls the variable."""
        return "accuracy" if self.variable == "acc" else "reward"

    @property
    def label(self) -> str:
        """What a legend calls it beside other sources."""
        return f"{self.source}, {self.statistic}@{self.n}"

    def chart(self, title: str, unit: str, lines: tuple[tuple[str, str], ...]) -> Chart:
        """A chart of metrics of this variable and statistic."""
        return Chart(title, unit, _GOOD[self.statistic], lines, share=self.variable == "acc")


def validation_metrics(names: Iterable[str]) -> list[ValidationMetric]:
    """The validation metrics among the names: by variable, statistic (mean, best, maj), source and n."""
    found = []
    for name in names:
        if match := _NAME.fullmatch(name):
            found.append(
                ValidationMetric(match["source"], match["variable"], match["statistic"], int(match["n"]), name)
            )
    order = list(_UNITS)
    return sorted(found, key=lambda one: (one.variable, order.index(one.statistic), one.source, one.n))


def validation_charts(names: Iterable[str]) -> list[Chart]:
    """For one run: a chart for each variable and statistic, with a line for each data source."""
    groups: dict[tuple[str, str], list[ValidationMetric]] = defaultdict(list)
    for metric in validation_metrics(names):
        groups[metric.variable, metric.statistic].append(metric)
    charts = []
    for metrics in groups.values():
        first = metrics[0]
        title = f"Validation {first.kind}" + ("" if first.statistic == "mean" else f", {first.statistic}@n")
        unit = first.label if len(metrics) == 1 else _UNITS[first.statistic].format(n="n")
        charts += split(first.chart(title, unit, tuple((metric.label, metric.name) for metric in metrics)))
    return charts


@dataclass(frozen=True)
class Compared:
    """A chart of several runs.

    Attributes:
        chart: what it shows; it has no lines of its own.
        metrics: the metric of each run in it, None where the run has none.
        headline: whether it also belongs to the headline numbers.
    """

    chart: Chart
    metrics: list[str | None]
    headline: bool = False

    @property
    def owners(self) -> list[int]:
        """Which runs have the metric."""
        return [index for index, name in enumerate(self.metrics) if name is not None]


def compared_validation(names: Iterable[Iterable[str]]) -> list[Compared]:
    """The validation charts of several runs, given the metrics of each.

    There is a chart for each variable, statistic and data source. The mean over n responses estimates the same accuracy
    whatever n is, so runs that differ in n share it; best@n and maj@n do not.
    """
    each = list(names)
    groups: dict[tuple[str, str, str, int], tuple[ValidationMetric, list[str | None]]] = {}
    for index, metrics in enumerate(each):
        # Of several means the one over the most responses comes last, and stays.
        for metric in validation_metrics(metrics):
            n = 0 if metric.statistic == "mean" else metric.n
            key = (metric.variable, metric.statistic, metric.source, n)
            groups.setdefault(key, (metric, [None] * len(each)))[1][index] = metric.name
    charts = []
    order = list(_UNITS)
    for key in sorted(groups, key=lambda key: (key[0], key[2], order.index(key[1]), key[3])):
        first, of_runs = groups[key]
        unit = _UNITS[first.statistic].format(n=first.n)
        chart = first.chart(f"Validation {first.kind}, {first.source}", unit, ())
        charts.append(Compared(chart, of_runs, headline=first.statistic == "mean"))
    return charts
