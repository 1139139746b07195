"""Numbers of one metric over the last steps: does it oscillate, does it jump?"""

from collections.abc import Sequence

import numpy as np


def sign_changes(values: Sequence[float]) -> float | None:
    """Share of the changes from step to step that turn back on the one before; None with fewer than three values.

    0 is a trend, 1 is up and down in turn. Independent noise of whatever distribution has 2/3: of three numbers, the
    middle one is the greatest or the least two times out of three. A change of 0 turns back on nothing.
    """
    changes = np.sign(np.diff(np.asarray(values, np.float64)))
    return float(np.mean(changes[1:] * changes[:-1] < 0)) if len(changes) > 1 else None


def amplitude(values: Sequence[float]) -> float | None:
    """Median size of the change from step to step; None with fewer than two values. One jump does not move it."""
    return float(np.median(np.abs(np.diff(np.asarray(values, np.float64))))) if len(values) > 1 else None


def spike(value: float, before: Sequence[float]) -> float | None:
    """A value divided by the median of those before it; infinite where the value is not finite.

    None where there are none before it, or their median is 0.
    """
    if not np.isfinite(value):
        return float("inf")
    usual = float(np.median(before)) if len(before) else 0.0
    return value / usual if usual > 0 else None
