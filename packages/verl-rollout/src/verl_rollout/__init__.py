"""Rollout engines for LLM post-training, with verified weight updates.

A name is imported at its first use: the configuration, requests, sampling and the errors need no torch.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl_rollout.config import RolloutConfig, ValConfig
    from verl_rollout.errors import ModelNotFoundError, NonFiniteLogitsError, RolloutError
    from verl_rollout.hf import HfRollout
    from verl_rollout.interface import (
        Completion,
        Endpoint,
        FinishReason,
        Request,
        RolloutEngine,
        Sampling,
        SentWeight,
        SyncReport,
        WeightMetadata,
        WeightSource,
        WeightStream,
    )
    from verl_rollout.weights import InProcessEndpoint, WeightSender

__version__ = version("verl-rollout")

__all__ = [
    "Completion",
    "Endpoint",
    "FinishReason",
    "HfRollout",
    "InProcessEndpoint",
    "ModelNotFoundError",
    "NonFiniteLogitsError",
    "Request",
    "RolloutConfig",
    "RolloutEngine",
    "RolloutError",
    "Sampling",
    "SentWeight",
    "SyncReport",
    "ValConfig",
    "WeightMetadata",
    "WeightSender",
    "WeightSource",
    "WeightStream",
]

#: The module of each public name, imported at its first use.
_MODULES = {
    "Completion": "interface",
    "Endpoint": "interface",
    "FinishReason": "interface",
    "HfRollout": "hf",
    "InProcessEndpoint": "weights",
    "ModelNotFoundError": "errors",
    "NonFiniteLogitsError": "errors",
    "Request": "interface",
    "RolloutConfig": "config",
    "RolloutEngine": "interface",
    "RolloutError": "errors",
    "Sampling": "interface",
    "SentWeight": "interface",
    "SyncReport": "interface",
    "ValConfig": "config",
    "WeightMetadata": "interface",
    "WeightSender": "weights",
    "WeightSource": "interface",
    "WeightStream": "interface",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
