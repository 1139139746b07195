"""Scoring responses with the configured reward: a function in worker processes, or a model."""

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np
from verl_algos import rewards
from verl_algos.rewards import Failure, RewardFunction, RewardModel, RewardRow, Score, overlong
from verl_data import Prompt, require_known_data_sources

from verl_cli.config import RewardConfig, RewardModelConfig
from verl_cli.reward_workers import reward_workers

#: Failures that are told one by one; the others are only counted.
_TOLD = 3
#: How a runner names the response that failed.
_PLACE = re.compile(r"failed on row \d+ \(")
#: A row that failed: it has no reward, which is not the same as a bad one.
_NOT_SCORED = math.nan
#: The largest finite float32.
_LARGEST = float(np.finfo(np.float32).max)
#: The class for reward.reward_model.model_path.
_HF_MODEL = "pkg://verl_algos.rewards:HfRewardModel"


@dataclass(frozen=True)
class Scored:
    """The scores of a list of N responses."""

    rewards: np.ndarray
    """(N,) float32: what training maximises; NaN for a response that could not be scored."""
    scores: list[Score]
    """The same rewards as the function gave them, with what it reported beside each, such as "acc" and "pred"."""
    extra: Mapping[str, np.ndarray]
    """Every number that was reported, by name: (N,) float32, NaN where a response has none. "score" is the function's
    own, before an overlong penalty."""
    failures: Mapping[int, Failure]
    """Why responses could not be scored, by index; each says itself which response to which row it is."""
    means: dict[str, float]
    """reward/<name>: the mean of every number that was reported beside the reward."""
    counts: dict[str, float]
    """reward/timeout, reward/exception, reward/unparsable and reward/workers_replaced."""

    @property
    def metrics(self) -> dict[str, float]:
        """Means and counts."""
        return self.means | self.counts


@dataclass(frozen=True)
class Scorer:
    """The reward of a run. A context manager; `close` ends the workers, which the first `score` starts."""

    runner: rewards.RewardRunner
    max_response_tokens: int
    """From where the overlong penalty counts back."""
    overlong: rewards.overlong.OverlongConfig = field(default_factory=overlong.OverlongConfig)
    """The penalty; not enabled unless asked for."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        self.runner.close()

    def check(self, data_sources: Mapping[str, str]) -> None:
        """Raise DataError if a data source (met first at that place) has no rule.

        A function of one's own, a rule that is chosen by name and a model take them all.
        """
        if self.runner.function is rewards.default_compute_score and "rule" not in self.runner.kwargs:
            require_known_data_sources(
                data_sources,
                rewards.RULES,
                "Correct the column that data.reward_fn_key names; choose a rule for all rows with "
                "reward.custom_reward_function.reward_kwargs={rule: NAME}, of "
                f"{', '.join(rewards.NAMED_RULES)}; or score with a function of your own, "
                "compute_score(data_source, solution_str, ground_truth, extra_info): "
                "reward.custom_reward_function.path=FILE.py",
            )

    def score(self, prompts: Sequence[Prompt], texts: Sequence[str], *, response_tokens: Sequence[int]) -> Scored:
        """Score each response by its text, and by its length where there is an overlong penalty.

        Args:
            prompts: of each response.
            texts: the responses, without special tokens.
            response_tokens: how many tokens of each were sampled.

        Raises:
            RewardError: every response, of at least two, failed: the function is broken, and not the responses.
        """
        rows = [self._row(prompt, text) for prompt, text in zip(prompts, texts, strict=True)]
        try:
            result = self.runner.score(rows)
        except rewards.RewardError as error:
            which = _Names(prompts)[error.row]
            message = where_failed(str(error), which)
            if which not in message:
                message = f"{message.rstrip('.')} ({which})."
            raise rewards.RewardError(message, error.row, error.data_source) from error
        raw = result.scores
        failures = _named(result.failures, prompts)
        if len(rows) > 1 and len(failures) == len(rows):
            raise rewards.RewardError(
                f"None of {len(rows)} responses could be scored. The first: {failures[0].message.rstrip('.')}. Repair "
                "the function (reward.num_workers=0 runs it in this process, where a debugger sees it), or raise "
                "reward.cpu_seconds or reward.wall_seconds.",
                0,
                rows[0].data_source,
            )
        punished = overlong.apply(raw, response_tokens, self.max_response_tokens, self.overlong)
        scores = [raw[index] if index in failures else score for index, score in enumerate(punished)]
        numbers = _numbers(scores)
        return Scored(
            rewards=np.array([score.score for score in scores], dtype=np.float32),
            scores=scores,
            extra={
                **{name: values.astype(np.float32) for name, values in numbers.items()},
                "score": np.array([score.score for score in raw], dtype=np.float32),
            },
            failures=failures,
            means={
                f"reward/{name}": float(np.nanmean(values))
                for name, values in numbers.items()
                if not np.isnan(values).all()
            },
            counts=result.metrics,
        )

    def _row(self, prompt: Prompt, text: str) -> RewardRow:
        extra = prompt.extra_info
        if isinstance(self.runner.function, RewardModel):  # which reads the conversation
            extra = {**extra, "prompt": prompt.messages}
        return RewardRow(prompt.data_source, text, prompt.ground_truth, extra)


def _numbers(scores: Sequence[Score]) -> dict[str, np.ndarray]:
    """Every number that is reported beside a score, by name: (N,) float64, NaN where it is missing or not finite."""
    columns: dict[str, np.ndarray] = {}
    for index, score in enumerate(scores):
        for name, value in score.extra.items():
            if isinstance(value, bool | int | float):
                column = columns.setdefault(name, np.full(len(scores), np.nan))
                column[index] = value if -_LARGEST <= value <= _LARGEST else np.nan
    return columns


def where_failed(message: str, which: str) -> str:
    """A runner's message that names a response by its place in the call, naming it as `which` instead."""
    return _PLACE.sub(lambda _: f"failed on {which} (", message, count=1)


class _Names:
    """How a user finds each response of a call: by its number among those to the same row of the data."""

    def __init__(self, prompts: Sequence[Prompt]) -> None:
        self._prompts = prompts
        self._of_prompt: dict[tuple[int, int], list[int]] = {}
        for index, prompt in enumerate(prompts):
            self._of_prompt.setdefault((prompt.row, prompt.group), []).append(index)

    def __getitem__(self, index: int) -> str:
        prompt = self._prompts[index]
        alike = self._of_prompt[prompt.row, prompt.group]
        number = f"response {alike.index(index) + 1} of {len(alike)}" if len(alike) > 1 else "the response"
        return f"{number} to row {prompt.row} of the data files"

    def within(self, message: str, index: int) -> str:
        """The message about a response with its name in it, once."""
        told = where_failed(message, self[index])
        return told if self[index] in told else f"{self[index]}: {message}"


def _named(failures: Mapping[int, Failure], prompts: Sequence[Prompt]) -> dict[int, Failure]:
    """The failures with the name of the response in each message."""
    if not failures:
        return {}
    names = _Names(prompts)
    return {index: told._replace(message=names.within(told.message, index)) for index, told in failures.items()}


def tell_failures(scored: Scored, where: str) -> None:
    """Say on stderr which responses could not be scored and why: the first few, and how many more there are."""
    for failure in list(scored.failures.values())[:_TOLD]:
        print(f"{where}: a response could not be scored ({failure.kind}): {failure.message}", file=sys.stderr)
    if (more := len(scored.failures) - _TOLD) > 0:
        print(f"{where}: {more} more responses could not be scored.", file=sys.stderr)


def load_scorer(config: RewardConfig, *, device: str) -> Scorer:
    """Load the user's reward function or model, or the rules that verl-algos has for known data sources.

    Workers are not started yet.

    Args:
        config: resolved.
        device: where a model from a Hugging Face folder runs, unless its kwargs say otherwise.

    Raises:
        RewardLoadError: there is no such function or model, or it does not fit its options.
    """
    function: RewardFunction | RewardModel
    if config.reward_model.enable:
        function, options = load_reward_model(config.reward_model, device), {}
    else:
        function, options = load_function(config), config.custom_reward_function.reward_kwargs
    punished = config.reward_kwargs.overlong_buffer_cfg
    return Scorer(
        rewards.RewardRunner(
            function,
            options,
            num_workers=reward_workers(config),
            cpu_seconds=config.cpu_seconds,
            wall_seconds=config.wall_seconds,
            memory_mb=config.memory_mb,
            failed_score=_NOT_SCORED,
        ),
        max_response_tokens=config.reward_kwargs.max_resp_len,
        overlong=overlong.OverlongConfig(
            enable=config.reward_manager.name == "dapo" and punished.enable,
            len=punished.len,
            penalty_factor=punished.penalty_factor,
            log=punished.log,
        ),
    )


def load_function(config: RewardConfig) -> RewardFunction:
    """The user's own function, or the rules.

    Raises:
        RewardLoadError: there is no such function or rule, or it does not fit its options.
    """
    custom = config.custom_reward_function
    if custom.path is not None:
        function = rewards.load_custom(custom.path, custom.name)
        rewards.check_signature(function, custom.reward_kwargs)
        return function
    rule = custom.reward_kwargs.get("rule")
    if rule is not None and rule not in rewards.NAMED_RULES:
        raise rewards.RewardLoadError(
            f"There is no reward rule {rule!r}, which reward.custom_reward_function.reward_kwargs.rule names. There "
            f"are: {', '.join(rewards.NAMED_RULES)}."
        )
    return rewards.default_compute_score


def load_reward_model(config: RewardModelConfig, device: str) -> RewardModel:
    """The user's own class, or the model in a Hugging Face folder.

    Raises:
        RewardLoadError: there is no such class or folder, or it cannot be loaded.
    """
    if config.path is not None:
        return rewards.load_model(config.path, config.kwargs)
    return rewards.load_model(_HF_MODEL, {"path": config.model_path, "device": device, **config.kwargs})
