"""Rewards: what a reward function is, the rules that come with the package, and how rows are scored.

A reward function is ``compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs)``, plain or
async, and returns a number or a mapping with "score". `score_all` calls it, `place_rewards` writes its numbers to
tokens. Only `place_rewards` needs torch, which is imported at its first use.
"""

from typing import TYPE_CHECKING, Any

from verl_algos.rewards import arithmetic, gsm8k
from verl_algos.rewards.dispatch import RULES, default_compute_score
from verl_algos.rewards.loading import check_signature, load_custom
from verl_algos.rewards.scoring import score_all
from verl_algos.rewards.types import RewardError, RewardFunction, RewardLoadError, RewardResult, RewardRow, Score

if TYPE_CHECKING:
    from verl_algos.rewards.placement import place_rewards

__all__ = [
    "RULES",
    "RewardError",
    "RewardFunction",
    "RewardLoadError",
    "RewardResult",
    "RewardRow",
    "Score",
    "arithmetic",
    "check_signature",
    "default_compute_score",
    "gsm8k",
    "load_custom",
    "place_rewards",
    "score_all",
]


def __getattr__(name: str) -> Any:
    if name != "place_rewards":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from verl_algos.rewards.placement import place_rewards

    globals()[name] = place_rewards
    return place_rewards


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
