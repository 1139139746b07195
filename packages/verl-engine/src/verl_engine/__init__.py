"""Training engines for LLM post-training over packed sequences: FSDP2."""

from importlib.metadata import version

from verl_engine.config import EngineConfig, FsdpConfig, ModelConfig, OptimConfig
from verl_engine.errors import CheckpointError, EngineError, ModelError
from verl_engine.fsdp import FsdpEngine
from verl_engine.interface import (
    Denominators,
    Loss,
    Metrics,
    MetricTerm,
    Output,
    Part,
    TrainEngine,
    WeightMetadata,
    WeightSource,
)
from verl_engine.outputs import next_token_targets
from verl_engine.process_group import init_single_process
from verl_engine.schedule import lr_multiplier

__version__ = version("verl-engine")

__all__ = [
    "CheckpointError",
    "Denominators",
    "EngineConfig",
    "EngineError",
    "FsdpConfig",
    "FsdpEngine",
    "Loss",
    "MetricTerm",
    "Metrics",
    "ModelConfig",
    "ModelError",
    "OptimConfig",
    "Output",
    "Part",
    "TrainEngine",
    "WeightMetadata",
    "WeightSource",
    "__version__",
    "init_single_process",
    "lr_multiplier",
    "next_token_targets",
]
