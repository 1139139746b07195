"""Coefficients of the KL penalty, and the watch over what they achieve."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from verl_algos._numbers import LARGEST, SMALLEST, checked, in_range
from verl_algos.errors import NonFiniteError

_ADAPTIVE = "an adaptive KL controller needs target and horizon above 0"
_COEF = "it weighs the KL to the reference, and a negative one would reward divergence"


@dataclass
class FixedController:
    """A KL coefficient that stays."""

    coef: float
    """At least 0."""

    def __post_init__(self) -> None:
        checked("coef", self.coef, _COEF, minimum=0.0)

    def update(self, current_kl: float, num_sequences: int) -> None:
        """Leave the coefficient as it is."""

    def state_dict(self) -> dict[str, float]:
        """Nothing: the coefficient is the configuration's, also after a resume with another one."""
        return {}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Take up the state of a fixed controller, which is empty.

        Raises:
            ValueError: it is that of another controller.
        """
        _check_keys("fixed KL controller", state, set())


@dataclass
class AdaptiveController:
    """A KL coefficient that follows the measured KL (Ziegler et al. 2019, arXiv:1909.08593, section 2.2)."""

    coef: float
    """At the beginning, at least 0."""
    target: float
    """The KL per token to hold, above 0."""
    horizon: int
    """Sequences over which the coefficient may change by 20 %, above 0; more of them in one update change no more."""

    def __post_init__(self) -> None:
        checked("coef", self.coef, _COEF, minimum=0.0)
        checked("target", self.target, _ADAPTIVE, minimum=0.0, above_minimum=True)
        checked("horizon", self.horizon, _ADAPTIVE, minimum=0.0, above_minimum=True)

    def update(self, current_kl: float, num_sequences: int) -> None:
        """Multiply the coefficient by ``1 + clip(current_kl / target - 1, -0.2, 0.2) * min(n / horizon, 1)``.

        n is `num_sequences`. The published rule has no ``min``. It is a step of an integral controller of log(coef),
        which holds while the step is small: with more than ``5 * horizon`` sequences the factor could fall below 0,
        and the coefficient would reward divergence. One measurement therefore changes it by at most 20 %, and it stays
        within 1e-30 and 1e30.

        Args:
            current_kl: mean KL over sequences that have tokens (`apply_kl_to_rewards` measures it).
            num_sequences: sequences since the last update.

        Raises:
            NonFiniteError: current_kl is not finite; the coefficient would be lost.
            ValueError: num_sequences is negative.
        """
        current_kl = float(current_kl)  # a tensor would make one of the coefficient
        if not math.isfinite(current_kl):
            raise NonFiniteError(
                f"The KL controller was given current_kl={current_kl}: the log-probs of this step are broken.",
                "current_kl",
            )
        checked("num_sequences", num_sequences, "the sequences since the last update", minimum=0.0)
        error = min(max(current_kl / self.target - 1.0, -0.2), 0.2)
        moved = self.coef * (1.0 + error * min(num_sequences / self.horizon, 1.0))
        self.coef = float(min(max(moved, SMALLEST), LARGEST)) if self.coef else 0.0

    def state_dict(self) -> dict[str, float]:
        """What a resumed run goes on with: the coefficient; target and horizon are the configuration's."""
        return {"coef": self.coef}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Take up the coefficient of `state_dict`.

        Raises:
            ValueError: it is the state of another controller, or the coefficient is not a finite number of at least 0.
        """
        _check_keys("adaptive KL controller", state, {"coef"})
        coef = state["coef"]
        if not in_range(coef, 0.0):
            raise ValueError(
                f"The state of an adaptive KL controller has coef={coef}: it is not a finite number of at least 0. It "
                "was saved by a broken run; resume from an earlier checkpoint."
            )
        self.coef = float(coef)


@dataclass
class Monitor:
    """Notices when the KL stays outside a range; it only counts, whoever feeds it prints."""

    low: float = 0.01
    high: float = 0.1
    patience: int = 20
    """Consecutive steps outside on the same side before it speaks."""
    _side: str = field(default="", init=False)
    _steps: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        limits = in_range(self.low, 0.0) and in_range(self.high, self.low, above_minimum=True)
        if not (limits and in_range(self.patience, 1.0)):
            raise ValueError(
                f"A KL monitor needs 0 <= low < high and a patience of at least 1 step, got low={self.low}, "
                f"high={self.high}, patience={self.patience}."
            )

    def update(self, current_kl: float) -> str | None:
        """Count one step; return a warning at the `patience`-th one outside, once for each time that it leaves.

        Args:
            current_kl: mean KL per token between policy and reference of this step; NaN counts as too high.
        """
        side = "below" if current_kl < self.low else "within" if current_kl <= self.high else "above"
        self._steps = self._steps + 1 if side == self._side else 1
        self._side = side
        if side == "within" or self._steps != self.patience:
            return None
        if side == "above":
            return (
                f"The KL to the reference has been above {self.high:g} for {self.patience} steps (now "
                f"{current_kl:.4g}): the policy drifts away from the model it started from, which often means that it "
                "exploits the reward. Read some generations; then try a larger KL coefficient first "
                "(algorithm.kl_ctrl.kl_coef in the reward, actor_rollout_ref.actor.kl_loss_coef in the loss), or a "
                "smaller learning rate."
            )
        return (
            f"The KL to the reference has been below {self.low:g} for {self.patience} steps (now {current_kl:.4g}): "
            "the policy hardly moves, which is normal only at the very beginning. Try a smaller KL coefficient first "
            "(algorithm.kl_ctrl.kl_coef in the reward, actor_rollout_ref.actor.kl_loss_coef in the loss), or a larger "
            "learning rate."
        )

    def state_dict(self) -> dict[str, str | int]:
        """The side and the steps counted so far, so that a resumed run warns at the same step."""
        return {"side": self._side, "steps": self._steps}

    def load_state_dict(self, state: Mapping[str, str | int]) -> None:
        """Take up the count of `state_dict`.

        Raises:
            ValueError: it is not the state of a KL monitor.
        """
        _check_keys("KL monitor", state, {"side", "steps"})
        self._side, self._steps = str(state["side"]), int(state["steps"])


def _check_keys(what: str, state: Mapping[str, object], expected: set[str]) -> None:
    if set(state) != expected:
        raise ValueError(
            f"The state of a {what} holds {', '.join(sorted(expected)) or 'nothing'}, but this one holds "
            f"{', '.join(sorted(state)) or 'nothing'}: it was saved by something else; resume with the configuration "
            "that saved it."
        )
