"""Scoring responses with the configured reward function."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from verl_algos import rewards
from verl_algos.rewards import Score
from verl_data import Prompt, require_known_data_sources

from verl_cli.config import RewardConfig


@dataclass(frozen=True)
class Scored:
    """The scores of a list of responses."""

    rewards: np.ndarray
    """(N,) float32: what training maximises."""
    scores: list[Score]
    """The same rewards as the function gave them, with what it reported beside each, such as "acc" and "pred"."""
    metrics: dict[str, float]
    """reward/<name>: the mean of every number that the function reported beside the reward."""


@dataclass(frozen=True)
class Scorer:
    """A reward function with its options."""

    function: rewards.RewardFunction
    options: Mapping[str, Any]

    def check(self, data_sources: Mapping[str, str]) -> None:
        """Raise DataError if a data source (met first at that place) has no rule; an own function takes them all."""
        if self.function is rewards.default_compute_score:
            require_known_data_sources(
                data_sources,
                rewards.RULES,
                "Correct the column that data.reward_fn_key names, or score with a function of your own, "
                "compute_score(data_source, solution_str, ground_truth, extra_info): "
                "reward.custom_reward_function.path=FILE.py",
            )

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Scored:
        """Score each response by its text alone."""
        rows = [
            rewards.RewardRow(prompt.data_source, text, prompt.ground_truth, prompt.extra_info)
            for prompt, text in zip(prompts, texts, strict=True)
        ]
        try:
            scores = rewards.score_all(self.function, rows, self.options)
        except rewards.RewardError as error:
            row = prompts[error.row].row
            message = f"{error} The prompt is row {row} of the data files, counted from 0 through all of them."
            raise rewards.RewardError(message, error.row, error.data_source) from error
        numbers: dict[str, list[float]] = {}
        for score in scores:
            for name, value in score.extra.items():
                if isinstance(value, bool | int | float):
                    numbers.setdefault(name, []).append(float(value))
        return Scored(
            rewards=np.array([score.score for score in scores], dtype=np.float32),
            scores=scores,
            metrics={f"reward/{name}": float(np.mean(values)) for name, values in numbers.items()},
        )


def load_scorer(config: RewardConfig) -> Scorer:
    """Load the user's reward function, or the rules that verl-algos has for known data sources."""
    custom = config.custom_reward_function
    if custom.path is None:
        return Scorer(rewards.default_compute_score, custom.reward_kwargs)
    function = rewards.load_custom(custom.path, custom.name)
    rewards.check_signature(function, custom.reward_kwargs)
    return Scorer(function, custom.reward_kwargs)
