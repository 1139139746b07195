"""For whoever tests a rollout engine: a tiny model folder, weight sources, and the suite that every backend passes."""

from verl_rollout.testing.conformance import CHECKS, Check, MakeEngine
from verl_rollout.testing.model import build_tiny_model
from verl_rollout.testing.weights import ModuleSource, TensorSource

__all__ = ["CHECKS", "Check", "MakeEngine", "ModuleSource", "TensorSource", "build_tiny_model"]
