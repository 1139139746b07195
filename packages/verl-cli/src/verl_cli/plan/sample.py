"""One real prompt of the run, and what the reward says of a right and of an empty answer to it."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from verl_algos.rewards import RewardLoadError, RewardRow, WorkerStartError
from verl_data import DataConfig, DataError, Prompt

from verl_cli.config import RewardConfig
from verl_cli.plan.data import LookedAt
from verl_cli.plan.reward import find_reward_model, what_scores
from verl_cli.plan.tokenizing import ShownPrompt
from verl_cli.reported import as_response, unreported
from verl_cli.reward_workers import workers_warning
from verl_cli.scoring import Scorer, load_scorer, where_failed

_LEFT_OUT = "In training such a response is left out of its step and counted; in validation it counts as 0."
_REPAIR = "Repair the function, or raise reward.cpu_seconds, reward.wall_seconds or reward.memory_mb if it needs more."


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

    what: str = ""
    """What scores."""
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


@dataclass(frozen=True)
class Wanted:
    """Numbers that training needs beside the score."""

    numbers: Mapping[str, str] = field(default_factory=dict)
    """Each with the key that asks for it."""
    rows: Sequence[LookedAt] = ()
    """A training row of each data source."""


def look_at_reward(
    config: RewardConfig,
    data: DataConfig,
    row: LookedAt | None,
    sources: Mapping[str, str],
    wanted: Wanted = Wanted(),
) -> RewardLook:
    """Load the reward function, check that it knows every data source, and call it on answers to `row`.

    Where it can be called, it is tried for the numbers that are `wanted`. A reward model is looked for and not made: it
    may be as large as the model that is trained, or cost money.
    """
    found = RewardLook()
    if warning := workers_warning(config):
        found.warnings.append(warning)
    # What the user's code prints must not get between the lines of the plan.
    with _stdout_on_stderr():
        try:
            if config.reward_model.enable:
                if config.reward_model.path or config.reward_model.model_path:
                    find_reward_model(config.reward_model)
                    found.what = what_scores(config, sources)
                return found
            # One worker, also where the run has none: a function that hangs must not hang the plan.
            scorer = load_scorer(replace(config, num_workers=1), device="cpu")
            found.what = what_scores(config, sources)
            scorer.check(sources)
        except (RewardLoadError, DataError) as error:
            found.problems.append(str(error))
            return found
        if row is not None:
            with scorer:
                _try(found, scorer, row, data)
            if not found.problems:
                prompts = [_prompt(number, of_source.row, data) for number, of_source in enumerate(wanted.rows)]
                found.problems += unreported(scorer, prompts, wanted.numbers)
    return found


def _prompt(number: int, row: Mapping[str, Any], data: DataConfig) -> Prompt:
    """A row as the loader gives it, without what only the model reads."""
    return Prompt(
        row=number,
        group=0,
        prompt_ids=[],
        messages=row[data.prompt_key],
        data_source=row[data.reward_fn_key],
        ground_truth=row["reward_model"]["ground_truth"],
        extra_info=row.get("extra_info") or {},
        fields={},
        truncated=False,
    )


@contextlib.contextmanager
def _stdout_on_stderr() -> Iterator[None]:
    """Let this process, and those that it starts, write to stderr what they write to stdout."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


class _CannotScoreError(Exception):
    """The function was called and gave no reward."""


def _try(found: RewardLook, scorer: Scorer, tried: LookedAt, data: DataConfig) -> None:
    """Score an empty answer, and ways to write the ground truth until one earns another score."""
    row = tried.row
    truth, extra = row["reward_model"]["ground_truth"], row.get("extra_info") or {}

    def score(what: str, response: str) -> float:
        asked = RewardRow(row[data.reward_fn_key], response, truth, extra)
        try:
            result = scorer.runner.score([asked])
        except (RewardLoadError, WorkerStartError) as error:
            raise _CannotScoreError(str(error).rstrip(".")) from error
        if result.failures:
            message = where_failed(result.failures[0].message, f"{what} to {tried.location}")
            raise _CannotScoreError(f"{what.capitalize()} cannot be scored: {message.rstrip('.')}")
        found.tried.append(Tried(what, response, *result.scores[0]))
        return result.scores[0].score

    right = list(_right_answers(truth, extra))
    empty, failure = None, ""
    try:
        empty = score("an empty response", "")
    except _CannotScoreError as error:
        failure = str(error)
    try:
        for what, response in right:
            if score(what, response) != empty:
                found.tried[:] = [*found.tried[: empty is not None], found.tried[-1]]  # other ways are not taken
                if empty is None:
                    found.warnings.append(f"{failure}. {_LEFT_OUT}")
                return
    except _CannotScoreError as error:
        found.problems.append(f"{failure}. {error}. {_REPAIR}" if empty is None else f"{error}. {_REPAIR}")
        return
    found.tried[2:] = []
    others = f" (nor is it in {', '.join(repr(text) for _, text in right[1:])})" if right[1:] else ""
    found.warnings.append(
        f"The reward gives {empty:g} to an empty response and to the ground truth alike{others}, so it may not tell "
        f"answers apart. If it expects another form of answer, this means nothing; otherwise nothing will be learnt."
    )


def _right_answers(truth: Any, extra: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    text = as_response(truth)
    yield "the ground truth", text
    yield "the ground truth after ####", f"#### {text}"
    yield "the ground truth in a box", f"\\boxed{{{text}}}"
    if isinstance(answer := extra.get("answer"), str):
        yield "extra_info.answer", answer
