"""Advantages, losses, KL and rewards of LLM reinforcement learning as pure functions."""

from importlib.metadata import version

from verl_algos import advantages, aggregation, kl, logprobs, masked, policy_losses, rewards, value_losses

__version__ = version("verl-algos")

__all__ = [
    "__version__",
    "advantages",
    "aggregation",
    "kl",
    "logprobs",
    "masked",
    "policy_losses",
    "rewards",
    "value_losses",
]
