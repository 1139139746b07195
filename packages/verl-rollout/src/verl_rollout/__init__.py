"""Rollout engines for LLM post-training, with verified weight updates."""

from importlib.metadata import version

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

__version__ = version("verl-rollout")
