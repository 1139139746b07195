"""Rewards: what a reward function is, the rules that come with the package, and how rows are scored.

A reward function is ``compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs)``, plain or
async, and returns a number or a mapping with "score"; a `RewardModel` scores batches of rows. `score_all` calls either
and stops at the first row that fails; `RewardRunner` calls functions in worker processes with limits, and counts what
fails. `place_rewards` writes the numbers to tokens. It alone needs torch, which is imported at its first use, like
everything of the extras.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from verl_algos.rewards import (
    arithmetic,
    boxed,
    code_tests,
    formats,
    geo3k,
    gsm8k,
    math_dapo,
    math_reward,
    multiple_choice,
    overlong,
    sandbox,
    search_qa,
)
from verl_algos.rewards.dispatch import NAMED_RULES, RULES, default_compute_score
from verl_algos.rewards.loading import check_signature, load_custom, load_model, load_model_class
from verl_algos.rewards.results import RESERVED_NAMES
from verl_algos.rewards.runner import RewardRunner, RunnerResult, WorkerStartError
from verl_algos.rewards.scoring import score_all
from verl_algos.rewards.types import (
    Failure,
    MissingExtraError,
    RewardError,
    RewardFunction,
    RewardLoadError,
    RewardModel,
    RewardResult,
    RewardRow,
    Score,
)
from verl_algos.rewards.weighted import Part, WeightedSum

if TYPE_CHECKING:
    from verl_algos.rewards.hf_model import HfRewardModel
    from verl_algos.rewards.judge import JudgeRewardModel
    from verl_algos.rewards.placement import place_rewards

__all__ = [
    "NAMED_RULES",
    "RESERVED_NAMES",
    "RULES",
    "Failure",
    "HfRewardModel",
    "JudgeRewardModel",
    "MissingExtraError",
    "Part",
    "RewardError",
    "RewardFunction",
    "RewardLoadError",
    "RewardModel",
    "RewardResult",
    "RewardRow",
    "RewardRunner",
    "RunnerResult",
    "Score",
    "WeightedSum",
    "WorkerStartError",
    "arithmetic",
    "boxed",
    "check_signature",
    "code_tests",
    "default_compute_score",
    "formats",
    "geo3k",
    "gsm8k",
    "load_custom",
    "load_model",
    "load_model_class",
    "math_dapo",
    "math_reward",
    "multiple_choice",
    "overlong",
    "place_rewards",
    "sandbox",
    "score_all",
    "search_qa",
]

_LAZY = {"place_rewards": "placement", "HfRewardModel": "hf_model", "JudgeRewardModel": "judge"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
