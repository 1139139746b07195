"""The default reward function: a rule for each known data_source."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from verl_algos.rewards import arithmetic, gsm8k
from verl_algos.rewards.types import RewardResult

#: The rule of each data_source: a function of the response and the ground truth, with options of its own.
RULES: Mapping[str, Callable[..., RewardResult]] = MappingProxyType(
    {
        "openai/gsm8k": gsm8k.compute_score,
        "verl/arithmetic": arithmetic.compute_score,
    }
)


def default_compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> RewardResult:
    """Score a response by the rule of its data_source; `kwargs` are the rule's own options (``method="flexible"``).

    Raises:
        ValueError: there is no rule for this data_source.
        TypeError: the rule does not know an option.
    """
    if data_source not in RULES:
        raise ValueError(
            f"No reward rule for data_source {data_source!r}. Known: {', '.join(sorted(RULES))}. "
            "Correct the data_source column, or supply your own function "
            "compute_score(data_source, solution_str, ground_truth, extra_info=None) with "
            "reward.custom_reward_function.path=FILE.py reward.custom_reward_function.name=compute_score."
        )
    return RULES[data_source](solution_str, ground_truth, **kwargs)
