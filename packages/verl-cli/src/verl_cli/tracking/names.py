"""The names of validation metrics, `val-core/{data_source}/{acc or reward}/mean@{n}`, taken apart."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_VALIDATION = re.compile(r"val-core/(?P<source>.+)/(?P<variable>acc|reward)/mean@(?P<n>\d+)")


@dataclass(frozen=True, order=True)
class Validation:
    """One validation metric of one data source.

    Attributes:
        source: the data source of the validation rows.
        variable: `acc` where the reward function reports it, otherwise `reward`.
        n: sequences per prompt over which the mean is taken.
        name: the metric's whole name.
    """

    source: str
    variable: str
    n: int
    name: str


def validation_results(names: Iterable[str]) -> list[Validation]:
    """The main validation metric of each data source among the names, sorted by source.

    Of one source `acc` comes before `reward`, and the mean over the most sequences before others.
    """
    found: dict[str, Validation] = {}
    for name in names:
        if match := _VALIDATION.fullmatch(name):
            result = Validation(match["source"], match["variable"], int(match["n"]), name)
            best = found.get(result.source)
            if best is None or (result.variable == "acc", result.n) > (best.variable == "acc", best.n):
                found[result.source] = result
    return [found[source] for source in sorted(found)]
