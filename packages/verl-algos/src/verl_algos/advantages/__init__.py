"""Advantages of sampled tokens from rewards, values and groups.

An estimator is a function of token columns, padded (B, T) or packed (T,) with cu_seqlens, that returns
``(advantages, returns)`` in the same shape: exactly 0 at tokens that the mask excludes, whatever the inputs hold there.
The mask is the one of sampled tokens: tokens that the policy did not sample (tool output, padding) are skipped without
discounting, and rewards of tokens that only the loss mask rejects still count. What each estimator needs is in
`verl_algos.estimators`.
"""

from verl_algos.advantages._dispatch import REQUIRED_INPUTS, compute, describe
from verl_algos.advantages._group_relative import gpg, grpo, grpo_passk, opo, reinforce_plus_plus_baseline, rloo
from verl_algos.advantages._multi_reward import gdpo
from verl_algos.advantages._reward_to_go import gae, reinforce_plus_plus, remax
from verl_algos.advantages._scored import scored_sequences, singleton_groups
from verl_algos.advantages._token_baseline import (
    optimal_token_baseline,
    sum_pi_squared,
    tir_optimal_token_baseline,
)

__all__ = [
    "REQUIRED_INPUTS",
    "compute",
    "describe",
    "gae",
    "gdpo",
    "gpg",
    "grpo",
    "grpo_passk",
    "opo",
    "optimal_token_baseline",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "rloo",
    "scored_sequences",
    "singleton_groups",
    "sum_pi_squared",
    "tir_optimal_token_baseline",
]
