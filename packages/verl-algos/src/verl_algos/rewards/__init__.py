"""Rewards: what a reward function is, the rules that come with the package, and how rows are scored.

A reward function is ``compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs)``, plain or
async, and returns a number or a mapping with "score". `score_all` calls it, `place_rewards` writes its numbers to
tokens.
"""

from verl_algos.rewards import arithmetic, gsm8k
from verl_algos.rewards.dispatch import RULES, default_compute_score
from verl_algos.rewards.loading import load_custom
from verl_algos.rewards.placement import place_rewards
from verl_algos.rewards.scoring import score_all
from verl_algos.rewards.types import RewardError, RewardFunction, RewardLoadError, RewardResult, RewardRow, Score

__all__ = [
    "RULES",
    "RewardError",
    "RewardFunction",
    "RewardLoadError",
    "RewardResult",
    "RewardRow",
    "Score",
    "arithmetic",
    "default_compute_score",
    "gsm8k",
    "load_custom",
    "place_rewards",
    "score_all",
]
