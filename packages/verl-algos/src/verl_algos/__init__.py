"""Advantages, losses, KL and rewards of LLM reinforcement learning as pure functions.

A module is imported at its first use: `names`, and what loads and runs reward functions, need no torch.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl_algos import (
        advantages,
        aggregation,
        errors,
        estimators,
        evaluation,
        health,
        import_path,
        kl,
        logprobs,
        loss_options,
        masked,
        names,
        policy_losses,
        preference_losses,
        rewards,
        rollout_correction,
        rollout_correction_options,
        value_losses,
    )

__version__ = version("verl-algos")

__all__ = [
    "__version__",
    "advantages",
    "aggregation",
    "errors",
    "estimators",
    "evaluation",
    "health",
    "import_path",
    "kl",
    "logprobs",
    "loss_options",
    "masked",
    "names",
    "policy_losses",
    "preference_losses",
    "rewards",
    "rollout_correction",
    "rollout_correction_options",
    "value_losses",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")  # which makes it an attribute: the next access finds it


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
