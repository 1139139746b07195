"""Coefficients of the KL penalty, and the watch over what they achieve."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from verl_algos.errors import NonFiniteError


@dataclass
class FixedController:
    """A KL coefficient that stays."""

    coef: float

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
    target: float
    """The KL per token to hold, above 0."""
    horizon: int
    """Sequences over which the coefficient may change by 20 %, above 0; more of them in one update change no more."""

    def __post_init__(self) -> None:
        if not (self.target > 0 and self.horizon > 0):
            raise ValueError(
                f"An adaptive KL controller needs target and horizon above 0, got {self.target}, {self.horizon}."
            )

    def update(self, current_kl: float, num_sequences: int) -> None:
        """Multiply the coefficient by ``1 + clip(current_kl / target - 1, -0.2, 0.2) * min(n / horizon, 1)``.

        n is `num_sequences`. The published rule has no ``min``. It is a step of an integral controller of log(coef),
        which holds while the step is small: with more than ``5 * horizon`` sequences the factor could fall below 0,
        and the coefficient would reward divergence. One measurement therefore changes it by at most 20 %.

        Args:
            current_kl: mean KL over sequences that have tokens (`apply_kl_to_rewards` measures it).
            num_sequences: sequences since the last update.

        Raises:
            NonFiniteError: current_kl is not finite; the coefficient would be lost.
        """
        if not math.isfinite(current_kl):
            raise NonFiniteError(
                f"The KL controller was given current_kl={current_kl}: the log-probs of this step are broken.",
                "current_kl",
            )
        error = min(max(current_kl / self.target - 1.0, -0.2), 0.2)
        self.coef *= 1.0 + error * min(num_sequences / self.horizon, 1.0)

    def state_dict(self) -> dict[str, float]:
        """What a resumed run goes on with: the coefficient; target and horizon are the configuration's."""
        return {"coef": self.coef}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Take up the coefficient of `state_dict`.

        Raises:
            ValueError: it is the state of another controller, or the coefficient is not finite.
        """
        _check_keys("adaptive KL controller", state, {"coef"})
        if not math.isfinite(state["coef"]):
            raise ValueError(f"The state of an adaptive KL controller has coef={state['coef']}: it is not finite.")
        self.coef = float(state["coef"])


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
        if not (0.0 <= self.low < self.high and self.patience >= 1):
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
