"""Training engines for LLM post-training over packed sequences: FSDP2.

A name is imported at its first use: `EngineConfig` and its parts, `lr_multiplier` and the errors need no torch.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl_engine.config import EngineConfig, FsdpConfig, ModelConfig, OptimConfig
    from verl_engine.errors import CheckpointError, EngineError, ModelError
    from verl_engine.fsdp import FsdpEngine
    from verl_engine.interface import (
        Denominators,
        Loss,
        Output,
        Part,
        TrainEngine,
        WeightMetadata,
        WeightSource,
    )
    from verl_engine.metrics import Metric, Metrics, Reducer, merge_metrics, over_steps
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
    "Metric",
    "Metrics",
    "ModelConfig",
    "ModelError",
    "OptimConfig",
    "Output",
    "Part",
    "Reducer",
    "TrainEngine",
    "WeightMetadata",
    "WeightSource",
    "__version__",
    "init_single_process",
    "lr_multiplier",
    "merge_metrics",
    "next_token_targets",
    "over_steps",
]

#: The module of each public name, imported at its first use.
_MODULES = {
    "CheckpointError": "errors",
    "Denominators": "interface",
    "EngineConfig": "config",
    "EngineError": "errors",
    "FsdpConfig": "config",
    "FsdpEngine": "fsdp",
    "Loss": "interface",
    "Metric": "metrics",
    "Metrics": "metrics",
    "ModelConfig": "config",
    "ModelError": "errors",
    "OptimConfig": "config",
    "Output": "interface",
    "Part": "interface",
    "Reducer": "metrics",
    "TrainEngine": "interface",
    "WeightMetadata": "interface",
    "WeightSource": "interface",
    "init_single_process": "process_group",
    "lr_multiplier": "schedule",
    "merge_metrics": "metrics",
    "next_token_targets": "outputs",
    "over_steps": "metrics",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
