r"""The reward of reasoning-gym's rows: each task's own scorer, on what stands between <answer> and </answer>.

pip install 'verl-data[reasoning-gym]'
python -m verl_data.processors.reasoning_gym --tasks chain_sum,leg_counting --size 2000 --local_save_dir data/gym
verl-cli train data.train_files=data/gym/train.parquet data.val_files=data/gym/validation.parquet \
    reward.custom_reward_function.path=examples/reasoning_gym/reward.py actor_rollout_ref.model.path=MODEL ...
"""

from collections.abc import Mapping
from typing import Any

from verl_data.processors.reasoning_gym import score_response


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Score a response; answered and unreadable are logged beside it."""
    if extra_info is None or "entry" not in extra_info:
        raise ValueError(f"A row of {data_source} has no extra_info.entry, so it is none that verl_data wrote.")
    return score_response(solution_str, extra_info)
