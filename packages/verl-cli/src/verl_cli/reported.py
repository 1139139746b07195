"""Numbers that the reward function reports beside the score, as columns of the batch."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from verl_algos.rewards import RewardError
from verl_data import Prompt

from verl_cli.config import AlgorithmConfig
from verl_cli.config.keys import live_keys
from verl_cli.errors import UserError
from verl_cli.scoring import Scored, Scorer

_METRIC, _COMPONENTS = "algorithm.filter_groups.metric", "algorithm.gdpo_reward_keys"


def wanted_numbers(config: AlgorithmConfig) -> dict[str, str]:
    """The numbers that the reward of a run must report beside the score, each with the key that asks for it."""
    filtering = config.filter_groups
    wanted = {filtering.metric: _METRIC} if filtering.enable else {}
    return wanted | dict.fromkeys(config.gdpo_reward_keys, _COMPONENTS)


def column_name(reported: str) -> str:
    """The batch's column that holds a reported number, which is the name of its metric, too."""
    return f"reward/{reported}"


def reported_columns(scored: Scored, prompts: Sequence[Prompt], wanted: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Sequence columns (N,) float32 of reported numbers; NaN in the rows that could not be scored.

    Args:
        scored: the scores of N responses.
        prompts: the prompt of each response.
        wanted: each number's name, and the configuration key that asks for it.

    Raises:
        UserError: a response was scored, and the function did not report the number with it.
    """
    columns = {}
    has_reward = ~np.isnan(scored.rewards)
    for name, key in wanted.items():
        column = _column(scored, name)
        missing = np.flatnonzero(np.isnan(column) & has_reward)
        if missing.size == has_reward.sum() > 0:
            raise UserError(_not_reported(name, key, scored.extra))
        if missing.size:
            prompt = prompts[missing[0]]
            raise UserError(
                f"{_asks(name, key)}, which the reward reports for some responses and not for {missing.size} of "
                f"{int(has_reward.sum())}, the first to row {prompt.row} of the data files (data source "
                f"{prompt.data_source!r}). Let your function return {name!r} with every score, or set {key} to what it "
                f"always reports, such as score."
            )
        columns[column_name(name)] = column
    return columns


def unreported(scorer: Scorer, prompts: Sequence[Prompt], wanted: Mapping[str, str]) -> Iterator[str]:
    """Yield what would stop training because the reward does not report what the configuration asks for.

    The reward scores an empty response and the ground truth of each prompt, in a worker of its own: a function that
    remembers its calls meets in training what it would have met anyway. Where it can score neither, nothing is known.

    Args:
        scorer: of the run, with a function and not a model, which may be large or cost money.
        prompts: one of each data source, which may have rules of their own.
        wanted: as in `reported_columns`.
    """
    if not wanted or not prompts:
        return
    with replace(scorer, runner=replace(scorer.runner, num_workers=1)) as trial:
        found = [(prompt, scored) for prompt in prompts if (scored := _tried(trial, prompt)) is not None]
    for name, key in wanted.items():
        reports = [_reports(scored, name) for _, scored in found]
        if found and not any(of_prompt.any() for of_prompt in reports):
            yield _not_reported(name, key, {number for _, scored in found for number in scored.extra})
            continue
        for (prompt, scored), of_prompt in zip(found, reports, strict=True):
            if not of_prompt.any():
                yield _not_reported(name, key, scored.extra, f" for the data source {prompt.data_source!r}")
            elif not of_prompt.all():
                which = "the ground truth as a response" if of_prompt[0] else "an empty response"
                yield (
                    f"{_asks(name, key)}, which the reward does not report for {which} (data source "
                    f"{prompt.data_source!r}): training would stop at such a response. Let your function return "
                    f"{name!r} with every score, or set {key} to what it always reports, such as score."
                )


def as_response(ground_truth: Any) -> str:
    """A ground truth as a model would write it."""
    return ground_truth if isinstance(ground_truth, str) else json.dumps(ground_truth, ensure_ascii=False, default=str)


def _tried(scorer: Scorer, prompt: Prompt) -> Scored | None:
    """The scores of an empty response and of the ground truth; None where neither can be scored."""
    try:
        return scorer.score([prompt] * 2, ["", as_response(prompt.ground_truth)], response_tokens=[0, 1])
    except RewardError:  # training tells it, should it happen to what a model writes
        return None


def _reports(scored: Scored, name: str) -> np.ndarray:
    """Whether the number is reported with each score."""
    has_reward = ~np.isnan(scored.rewards)
    reports: np.ndarray = ~np.isnan(_column(scored, name))[has_reward]
    return reports


def _column(scored: Scored, name: str) -> np.ndarray:
    """What was reported under a name, (N,); NaN where nothing was."""
    return scored.extra.get(name, np.full(len(scored.rewards), np.nan, dtype=np.float32))


def _asks(name: str, key: str) -> str:
    default = ", its default" if key == _METRIC and name == live_keys()[_METRIC].derived else ""
    return f"{key} asks for {name!r}{default}"


def _not_reported(name: str, key: str, reported: Iterable[str], where: str = "") -> str:
    return (
        f"{_asks(name, key)}, which the reward does not report{where}; it reports {', '.join(sorted(reported))}. Set "
        f'{key} to what it reports, or let your function return it: {{"score": ..., "{name}": ...}}.'
    )
