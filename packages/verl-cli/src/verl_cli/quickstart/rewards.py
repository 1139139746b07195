"""The reward of `verl-cli quickstart --constant-reward`."""

from collections.abc import Mapping
from typing import Any

from verl_algos.rewards import arithmetic


def constant_reward(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Pay every answer the same, and report beside it whether it was right."""
    return {"score": 1.0, "acc": float(arithmetic.compute_score(solution_str, ground_truth))}
