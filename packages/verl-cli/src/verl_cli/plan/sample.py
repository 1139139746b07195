"""One real prompt of the run, and what the reward says of a right and of an empty answer to it."""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_algos.rewards import RewardError, RewardLoadError, RewardRow, score_all
from verl_data import DataConfig, DataError

from verl_cli.config import RewardConfig
from verl_cli.plan.data import LookedAt
from verl_cli.plan.tokenizing import ShownPrompt
from verl_cli.scoring import Scorer, load_scorer


@dataclass(frozen=True)
class Tried:
    """A response that the reward was called on."""

    what: str
    response: str
    score: float
    extra: dict[str, Any]
    """What the function said beside the score."""


@dataclass(frozen=True)
class Sample:
    """A training prompt."""

    location: str
    prompt: str
    """As the model sees it, special tokens included."""
    tokens: int
    truncated: bool
    data_source: str
    ground_truth: Any
    tried: list[Tried]


@dataclass
class RewardLook:
    """What became of the reward."""

    tried: list[Tried] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def sample_of(row: LookedAt, shown: ShownPrompt, tried: list[Tried], config: DataConfig) -> Sample:
    """Put together what is shown of a row."""
    return Sample(
        location=row.location,
        prompt=shown.text,
        tokens=shown.tokens,
        truncated=shown.truncated,
        data_source=row.row[config.reward_fn_key],
        ground_truth=row.row["reward_model"]["ground_truth"],
        tried=tried,
    )


def look_at_reward(
    config: RewardConfig, data: DataConfig, row: LookedAt | None, sources: Mapping[str, str]
) -> RewardLook:
    """Load the reward function, check that it knows every data source, and call it on answers to `row`."""
    found = RewardLook()
    # What the user's function prints must not get between the lines of the plan.
    with contextlib.redirect_stdout(sys.stderr):
        try:
            scorer = load_scorer(config)
            scorer.check(sources)
        except (RewardLoadError, DataError) as error:
            found.problems.append(str(error))
            return found
        if row is not None:
            try:
                _try(found, scorer, row.row, data)
            except RewardError as error:
                found.problems.append(str(error))
    return found


def _try(found: RewardLook, scorer: Scorer, row: Mapping[str, Any], data: DataConfig) -> None:
    """Score an empty answer, and ways to write the ground truth until one earns another score."""
    truth, extra = row["reward_model"]["ground_truth"], row.get("extra_info") or {}

    def score(what: str, response: str) -> float:
        asked = RewardRow(row[data.reward_fn_key], response, truth, extra)
        (result,) = score_all(scorer.function, [asked], scorer.options)
        found.tried.append(Tried(what, response, result.score, result.extra))
        return result.score

    empty = score("an empty response", "")
    right = list(_right_answers(truth, extra))
    for what, response in right:
        if score(what, response) != empty:
            found.tried[1:-1] = []  # ways of writing that this reward does not take
            return
    found.tried[2:] = []
    others = f" (nor is it in {', '.join(repr(text) for _, text in right[1:])})" if right[1:] else ""
    found.warnings.append(
        f"The reward gives {empty:g} to an empty response and to the ground truth alike{others}, so it may not tell "
        f"answers apart. If it expects another form of answer, this means nothing; otherwise nothing will be learnt."
    )


def _right_answers(truth: Any, extra: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    text = truth if isinstance(truth, str) else json.dumps(truth, ensure_ascii=False)
    yield "the ground truth", text
    yield "the ground truth after ####", f"#### {text}"
    yield "the ground truth in a box", f"\\boxed{{{text}}}"
    if isinstance(answer := extra.get("answer"), str):
        yield "extra_info.answer", answer
