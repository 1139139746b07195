"""KL between the policy and a reference: estimators per token, exact over the vocabulary, in the reward and as a loss,
controllers of the coefficient."""

from verl_algos.kl._controllers import AdaptiveController, FixedController, Monitor
from verl_algos.kl._estimators import loss, penalty
from verl_algos.kl._full import full
from verl_algos.kl._in_reward import apply_kl_to_rewards
from verl_algos.names import PENALTIES, STRAIGHT_THROUGH

__all__ = [
    "PENALTIES",
    "STRAIGHT_THROUGH",
    "AdaptiveController",
    "FixedController",
    "Monitor",
    "apply_kl_to_rewards",
    "full",
    "loss",
    "penalty",
]
