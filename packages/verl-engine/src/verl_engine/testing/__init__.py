"""Conformance kit: every training engine passes the same suite; also a tiny model, random batches and the plain "
"oracle."""

from verl_engine.testing.batches import count, random_batch
from verl_engine.testing.conformance import EngineConformance, engine_config, full_weights, suite_device
from verl_engine.testing.losses import PolicyLoss, ValueLoss
from verl_engine.testing.plain import PlainEngine
from verl_engine.testing.ranks import RankPool
from verl_engine.testing.tiny import tiny_model

__all__ = [
    "EngineConformance",
    "PlainEngine",
    "PolicyLoss",
    "RankPool",
    "ValueLoss",
    "count",
    "engine_config",
    "full_weights",
    "random_batch",
    "suite_device",
    "tiny_model",
]
