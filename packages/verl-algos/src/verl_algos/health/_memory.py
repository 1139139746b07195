"""What monitors remember between steps; as JSON in `state_dict`, so that a resumed run warns at the same step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from verl_algos.health import series


@dataclass
class Streak:
    """Speaks at the `patience`-th consecutive step of a condition, and again only after as many steps without it."""

    patience: int
    _since: int = field(default=0, init=False)
    _held: int = field(default=0, init=False)
    _clear: int = field(default=0, init=False)
    _spoken: bool = field(default=False, init=False)

    def update(self, step: int, holds: bool | None) -> int | None:
        """Count one step.

        Args:
            step: its number.
            holds: whether the condition holds; None where that cannot be told, which changes nothing.

        Returns:
            The first step of the streak, at the step at which to speak; else None.
        """
        if holds is None:
            return None
        self._held, self._clear = (self._held + 1, 0) if holds else (0, self._clear + 1)
        if self._held == 1:
            self._since = step
        if self._clear >= self.patience:
            self._spoken = False
        if self._spoken or self._held < self.patience:
            return None
        self._spoken = True
        return self._since

    def state_dict(self) -> dict[str, int | bool]:
        """What was counted so far."""
        return {"since": self._since, "held": self._held, "clear": self._clear, "spoken": self._spoken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the count of `state_dict`."""
        self._since, self._held, self._clear = int(state["since"]), int(state["held"]), int(state["clear"])
        self._spoken = bool(state["spoken"])


@dataclass
class Baseline:
    """The mean of the first values of a metric, which later ones are compared with."""

    steps: int
    _values: list[float] = field(default_factory=list, init=False)

    def ratio(self, value: float | None) -> float | None:
        """The value divided by the mean of the first `steps` values; None before they are there, or where that is 0."""
        if value is None or not np.isfinite(value):
            return None
        if len(self._values) < self.steps:
            self._values.append(float(value))
        mean = series.mean(self._values)
        return float(value) / mean if len(self._values) >= self.steps and mean > 0 else None

    def state_dict(self) -> list[float]:
        """The first values."""
        return list(self._values)

    def load_state_dict(self, state: list[float]) -> None:
        """Take up the values of `state_dict`."""
        self._values = [float(value) for value in state]


@dataclass
class Window:
    """The last `size` values of a metric."""

    size: int
    values: list[float] = field(default_factory=list, init=False)

    def add(self, value: float) -> None:
        """Take in a value; the oldest leaves when there are too many."""
        self.values = [*self.values, float(value)][-self.size :]

    @property
    def full(self) -> bool:
        """Whether there are `size` values."""
        return len(self.values) == self.size

    def state_dict(self) -> list[float]:
        """The values, the oldest first."""
        return list(self.values)

    def load_state_dict(self, state: list[float]) -> None:
        """Take up the values of `state_dict`."""
        self.values = [float(value) for value in state][-self.size :]
