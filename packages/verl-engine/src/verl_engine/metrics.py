"""Numbers that say how they are put together from their parts; nothing is read from their names.

A training step has parts on two levels. An optimiser step consists of micro-batches on several ranks, which
`merge_metrics` puts together; several optimiser steps follow each other, which `over_steps` puts together. What a
metric becomes on either level is declared where it is made:

========================== ======================================= ==============================================
what it is                 declaration                             example
========================== ======================================= ==============================================
a mean over tokens         ``Metric.mean(sum, count)``             share of clipped tokens
a share of a divided loss  ``Metric(x, "sum", over_steps="mean")`` loss: shares add up, steps are averaged
a count                    ``Metric(x, "sum")``                    tokens
a peak                     ``Metric(x, "max")``                    memory
a setting of the step      ``Metric(x, "last")``                   learning rate
known to every rank        ``Metric(x, "max", over_steps="sum")``  a step that was skipped: one, not one per rank
========================== ======================================= ==============================================
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

Reducer = Literal["mean", "sum", "max", "min", "last"]
#: What a micro-batch reports is still on its device; what `train_batch` returns is a Python number.
Number = torch.Tensor | float
#: Metrics by name.
Metrics = dict[str, "Metric"]


@dataclass(frozen=True)
class Metric:
    """One number with its declared reduction.

    Attributes:
        value: the number; of a mean, the sum that `count` divides.
        reducer: how micro-batches and ranks of one optimiser step combine. A mean is weighted by its counts: ranks with
            1 and 2 values give the mean of 3 values.
        over_steps: how consecutive optimiser steps combine; None is the same as `reducer`.
        count: of a mean, how many values were added up; 1 for all others.
    """

    value: Number
    reducer: Reducer
    over_steps: Reducer | None = None
    count: Number = 1.0

    @classmethod
    def mean(cls, total: Number, count: Number = 1.0) -> Metric:
        """The mean of `count` values whose sum is `total`; no value at all (count 0) is no metric."""
        return cls(total, "mean", count=count)

    @property
    def empty(self) -> bool:
        """Whether this is a mean of nothing, which is no metric."""
        return bool(self.count == 0)

    def number(self) -> float:
        """The number itself; NaN for a mean of nothing."""
        if self.empty:
            return math.nan
        return float(self.value) / float(self.count) if self.reducer == "mean" else float(self.value)


def merge_metrics(parts: Iterable[Mapping[str, Metric]]) -> Metrics:
    """Put together the parts of one optimiser step: micro-batches or ranks; a name may be missing in some of them.

    Tensors are added up in float64 on their device and fetched together at the end. NaN in one part is NaN in the
    whole. Raises ValueError where two parts declare a metric differently.
    """
    merged: Metrics = {}
    for part in parts:
        for name, given in part.items():
            metric = replace(given, value=_double(given.value), count=_double(given.count))
            merged[name] = _combined(name, merged[name], metric) if name in merged else metric
    return _fetched(merged)


def over_steps(steps: Iterable[Mapping[str, Metric]]) -> dict[str, float]:
    """Reduce the metrics of consecutive optimiser steps to one number each; means of nothing are absent."""
    merged = merge_metrics({n: _of_step(metric) for n, metric in step.items() if not metric.empty} for step in steps)
    return {name: metric.number() for name, metric in merged.items()}


def _of_step(metric: Metric) -> Metric:
    """What a finished optimiser step hands on, declared as steps combine."""
    if metric.over_steps is None or metric.over_steps == metric.reducer:
        return replace(metric, over_steps=None)
    return Metric(metric.number(), metric.over_steps)


def _combined(name: str, earlier: Metric, later: Metric) -> Metric:
    if (earlier.reducer, earlier.over_steps) != (later.reducer, later.over_steps):
        raise ValueError(
            f"The metric {name} is declared as {_declared(earlier)} in one part and as {_declared(later)} in another."
        )
    if earlier.reducer == "mean":
        return replace(earlier, value=earlier.value + later.value, count=earlier.count + later.count)
    return replace(earlier, value=_reduced(earlier.reducer, earlier.value, later.value))


def _declared(metric: Metric) -> str:
    return metric.reducer + ("" if metric.over_steps is None else f" (over steps: {metric.over_steps})")


def _reduced(reducer: Reducer, earlier: Number, later: Number) -> Number:
    if reducer == "sum":
        return earlier + later
    if reducer == "last":
        return later
    if isinstance(earlier, float) and isinstance(later, float):
        if math.isnan(earlier) or math.isnan(later):
            return math.nan
        return max(earlier, later) if reducer == "max" else min(earlier, later)
    device = next(value.device for value in (earlier, later) if isinstance(value, torch.Tensor))
    pair = [torch.as_tensor(value, dtype=torch.float64, device=device) for value in (earlier, later)]
    return torch.maximum(*pair) if reducer == "max" else torch.minimum(*pair)


def _double(value: Number) -> Number:
    return value.detach().double() if isinstance(value, torch.Tensor) else float(value)


def _fetched(metrics: Metrics) -> Metrics:
    """The metrics with Python numbers; one transfer from the device for all of them."""
    entries = [entry for metric in metrics.values() for entry in (metric.value, metric.count)]
    tensors = [entry for entry in entries if isinstance(entry, torch.Tensor)]
    fetched = iter(torch.stack(tensors).tolist() if tensors else ())
    numbers = iter([next(fetched) if isinstance(entry, torch.Tensor) else entry for entry in entries])
    return {name: replace(metric, value=next(numbers), count=next(numbers)) for name, metric in metrics.items()}
