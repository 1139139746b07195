"""Numbers of one metric over the last steps: does it oscillate, does it jump?"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np


def sign_changes(values: Sequence[float]) -> float | None:
    """Share of the changes from step to step that turn back on the one before; None with fewer than three values.

    0 is a trend, 1 is up and down in turn. Independent noise of whatever distribution has 2/3: of three numbers, the
    middle one is the greatest or the least two times out of three. A change of 0 turns back on nothing.
    """
    pairs = list(pairwise(map(float, values)))
    signs = [(after > before) - (after < before) for before, after in pairs]
    return sum(a * b < 0 for a, b in pairwise(signs)) / (len(signs) - 1) if len(signs) > 1 else None


def amplitude(values: Sequence[float]) -> float | None:
    """Median size of the change from step to step; None with fewer than two values. One jump does not move it."""
    changes = [abs(after - before) for before, after in pairwise(map(float, values))]
    return _median(changes) if changes else None


def spike(value: float, before: Sequence[float]) -> float | None:
    """A value divided by the median of those before it; infinite where the value is not finite.

    None where there are none before it, or their median is 0.
    """
    if not math.isfinite(value):
        return math.inf
    usual = _median([float(one) for one in before]) if len(before) else 0.0
    return float(value) / usual if usual > 0 else None


def mean(values: Sequence[float] | np.ndarray) -> float:
    """Mean of at least one value; finite for finite ones, however large their sum."""
    column = np.asarray(values, np.float64)
    largest = float(np.abs(column).max())
    if not 1e300 < largest < math.inf:
        return float(np.mean(column))
    return float(np.clip(np.mean(column / largest), -1.0, 1.0)) * largest


def _median(values: list[float]) -> float:
    """NaN if one is NaN. Python's floats overflow to infinity without a word."""
    if any(map(math.isnan, values)):
        return math.nan
    ordered, middle = sorted(values), len(values) // 2
    if len(ordered) % 2:
        return ordered[middle]
    low, high = ordered[middle - 1], ordered[middle]
    half = (low + high) / 2
    return half if math.isfinite(half) else low / 2 + high / 2
