"""The numbers of a validation: how the responses to each prompt did, averaged over the prompts of a data source."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_algos import evaluation

#: What a reward function calls the answer that it found in a response, and whether it is right.
_PREDICTION, _ACCURACY = "pred", "acc"
_REWARD = "reward"


@dataclass(frozen=True)
class Outcome:
    """How one response was scored."""

    row: int
    """The row of its prompt: responses of one row are a group."""
    data_source: str
    reward: float
    extra: Mapping[str, Any]
    """What the reward function reported beside the reward."""


def validation_metrics(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Compute the metrics of a validation under their published names; the order of the outcomes does not matter.

    ``val-core/{data_source}/{variable}/`` has mean@n, best@n and maj@n, n being the responses of a prompt. The variable
    is `acc` where the reward function reports it, else `reward`. ``val-aux/{data_source}/{name}/`` has the rest (std@n,
    worst@n, and best, worst and maj at k = 2, 4, 8, ... below n), and all of them for `reward` and every other number
    that the function reports. maj is there where it reports a prediction (`pred`). With n = 1 there is mean@1 only.

    Every statistic is taken per prompt and averaged over prompts. A number that some responses lack, or for which they
    have no finite value, is taken from the prompts whose responses all have it; val-aux/{data_source}/{name}/missing
    counts the responses that lack it.
    """
    metrics: dict[str, float] = {}
    for source, of_source in _by_source(outcomes).items():
        prompts = _by_row(of_source)
        n = len(prompts[0])
        core = _core_variable(of_source)
        votes = any(_PREDICTION in outcome.extra for outcome in of_source)
        for name in (core, *(name for name in _variables(of_source) if name != core)):
            values = [[_number(outcome, name) for outcome in prompt] for prompt in prompts]
            if lacking := sum(value is None for of_prompt in values for value in of_prompt):
                metrics[f"val-aux/{source}/{name}/missing"] = lacking
            of_prompts = [
                _statistics([value for value in of_prompt if value is not None], _votes(prompt) if votes else None)
                for prompt, of_prompt in zip(prompts, values, strict=True)
                if None not in of_prompt
            ]
            for statistic in of_prompts[0] if of_prompts else ():
                headline = name == core and statistic in (f"mean@{n}", f"best@{n}", f"maj@{n}")
                metrics[f"val-{'core' if headline else 'aux'}/{source}/{name}/{statistic}"] = math.fsum(
                    of_prompt[statistic] for of_prompt in of_prompts
                ) / len(of_prompts)
    return metrics


def accuracy(outcomes: Sequence[Outcome]) -> float:
    """Mean over all responses of what is `acc` or else `reward` in their data source."""
    values = []
    for of_source in _by_source(outcomes).values():
        core = _core_variable(of_source)
        values += [value for outcome in of_source if (value := _number(outcome, core)) is not None]
    return evaluation.mean_at_n(values)


def _by_source(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    sources = sorted({outcome.data_source for outcome in outcomes})
    return {source: [outcome for outcome in outcomes if outcome.data_source == source] for source in sources}


def _by_row(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    prompts: dict[int, list[Outcome]] = {}
    for outcome in outcomes:
        prompts.setdefault(outcome.row, []).append(outcome)
    return list(prompts.values())


def _core_variable(outcomes: Sequence[Outcome]) -> str:
    return _ACCURACY if all(_number(outcome, _ACCURACY) is not None for outcome in outcomes) else _REWARD


def _variables(outcomes: Sequence[Outcome]) -> list[str]:
    """The reward, and every name under which the function reported a number at least once."""
    names = {
        name for outcome in outcomes for name, value in outcome.extra.items() if isinstance(value, bool | int | float)
    }
    return [_REWARD, *sorted(names - {_REWARD, _PREDICTION})]


def _number(outcome: Outcome, name: str) -> float | None:
    """A finite number that was reported for a response, else None."""
    if name == _REWARD:
        return outcome.reward
    value = outcome.extra.get(name)
    if not isinstance(value, bool | int | float):
        return None
    try:
        return number if math.isfinite(number := float(value)) else None
    except OverflowError:  # a whole number beyond float64
        return None


def _votes(outcomes: Sequence[Outcome]) -> list[str]:
    """The answers, as text: they may be anything that JSON holds. A response without one votes for null."""
    return [json.dumps(outcome.extra.get(_PREDICTION), sort_keys=True, default=str) for outcome in outcomes]


def _statistics(values: Sequence[float], votes: Sequence[str] | None) -> dict[str, float]:
    """Every statistic of the responses to one prompt."""
    n = len(values)
    found = {f"mean@{n}": evaluation.mean_at_n(values)}
    if n == 1:
        return found
    found[f"std@{n}"] = evaluation.std_at_n(values)
    for k in (*(2**power for power in range(1, n.bit_length()) if 2**power < n), n):
        found[f"best@{k}"] = evaluation.best_at_k(values, k)
        found[f"worst@{k}"] = evaluation.worst_at_k(values, k)
        if votes is not None:
            found[f"maj@{k}"] = evaluation.maj_at_k(values, votes, k)
    return found
