"""Numbers for people, axes, and steps taken together where there are more than can be drawn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

# Values smaller than this are drawn as zero.
TINY = 1e-100


@dataclass(frozen=True)
class Extent:
    """The values of one series at neighbouring steps."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Point:
    """Neighbouring steps taken together; of a series that has no value there, None."""

    first: int
    last: int
    count: int
    """How many steps they are."""
    extents: tuple[Extent | None, ...]
    highest_total: float
    """The largest sum of all series at one of the steps."""

    @property
    def x(self) -> float:
        """The step at which the point is drawn."""
        return (self.first + self.last) / 2

    @property
    def name(self) -> str:
        """The steps for people."""
        return f"step {self.first}" if self.first == self.last else f"steps {self.first} to {self.last}"


def number(value: float) -> str:
    """A number for people: four significant digits, thousands and millions short."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        # What four digits would round up to the next unit has that unit; thousands below 10 stay as they are.
        if abs(value) >= 0.99995 * (10 * size if unit == "k" else size):
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """A time for people."""
    if seconds < 10:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart), about `count` of them, within [low, high]."""
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    # The nearest on a logarithmic scale: sqrt(1 * 2), sqrt(2 * 5) and sqrt(5 * 10) are half-way.
    step = power * next((factor for factor, most in ((1, 2), (2, 10), (5, 50)) if (raw / power) ** 2 <= most), 10)
    # Multiples of the step, counted in whole numbers, so that 0.1 + 0.2 does not become a tick's label.
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def tick_labels(values: Sequence[float]) -> list[str]:
    """The values for people, with as many digits as it takes to tell them apart."""
    labels = [number(value) for value in values]
    digits = 5
    while len(set(labels)) < len(values) and digits < 17:
        labels = [f"{value:.{digits}g}" for value in values]
        digits += 1
    return labels


def padded(low: float, high: float) -> tuple[float, float]:
    """Bounds of an axis a little beyond the values; what is constant to the digits of a label gets room around it."""
    size = max(abs(low), abs(high))
    margin = 0.06 * (high - low)
    if margin <= 1e-5 * size or size < TINY:
        margin = 0.1 * size if size >= TINY else 1.0
    return low - margin, high + margin


def linear(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """The straight line that takes [low, high] to [start, end]."""
    return lambda value: start + (value - low) / (high - low) * (end - start)


def points(series: Sequence[Mapping[int, float]], most: int) -> list[Point]:
    """The steps of all series, neighbours taken together where there are more than `most`; extremes are kept."""
    steps = sorted({step for values in series for step in values})
    size = math.ceil(len(steps) / most)
    result = []
    for start in range(0, len(steps), size):
        chunk = steps[start : start + size]
        extents = []
        for values in series:
            present = [values[step] for step in chunk if step in values]
            mean = math.fsum(present) / len(present) if present else 0.0
            extents.append(Extent(mean, min(present), max(present)) if present else None)
        total = max(sum(max(values.get(step, 0.0), 0.0) for values in series) for step in chunk)
        result.append(Point(chunk[0], chunk[-1], len(chunk), tuple(extents), total))
    return result
