"""Adds up the metric terms of micro-batches."""

import torch

from verl_engine.interface import Metrics, MetricTerm


class MetricSums:
    """Sums of metric terms in float64, kept on the device until they are read."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor | float] = {}
        self._counts: dict[str, torch.Tensor | float | None] = {}

    def add(self, terms: dict[str, MetricTerm]) -> None:
        """Add the terms of one micro-batch; a metric is a mean in all of them or in none."""
        for name, (value, count) in terms.items():
            value, count = _double(value), None if count is None else _double(count)
            if name in self._sums:
                value = self._sums[name] + value
                before = self._counts[name]
                if (before is None) != (count is None):
                    raise ValueError(
                        f"The loss gives the metric {name} as a mean in one micro-batch and as a total in another."
                    )
                count = None if count is None or before is None else before + count
            self._sums[name], self._counts[name] = value, count

    def read(self) -> Metrics:
        """Return the sums; one transfer from the device for all of them."""
        entries: list[torch.Tensor | float] = []
        for name, value in self._sums.items():
            count = self._counts[name]
            entries += [value, 0.0 if count is None else count]
        tensors = [entry for entry in entries if isinstance(entry, torch.Tensor)]
        fetched = iter(torch.stack(tensors).tolist() if tensors else ())
        numbers = iter([next(fetched) if isinstance(entry, torch.Tensor) else entry for entry in entries])
        read: Metrics = {}
        for name in self._sums:
            value, count = next(numbers), next(numbers)
            read[name] = (value, None if self._counts[name] is None else count)
        return read


def _double(value: torch.Tensor | float) -> torch.Tensor | float:
    return value.detach().double() if isinstance(value, torch.Tensor) else float(value)
