"""Scoring the current policy on the validation prompts."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_algos.rewards import Failure, Score
from verl_data import Prompt

from verl_cli.config import RunConfig
from verl_cli.controller import WorkerGroup
from verl_cli.evaluation.responses import Response, prompts_per_call, respond
from verl_cli.evaluation.validation_metrics import Outcome, accuracy, validation_metrics
from verl_cli.scoring import Scorer, tell_failures

_INITIAL = "initial_generation"


@dataclass(frozen=True)
class ValidationResult:
    """Scores of every validation response, with its text."""

    metrics: dict[str, float]
    """See `validation_metrics`; val-aux/response_length/{mean,clip_ratio}; and the counts val-aux/reward/{timeout,
    exception,unparsable,workers_replaced}."""
    accuracy: float
    """Mean over all responses."""
    samples: list[dict[str, Any]]
    """One per response, see `_sample`; those to one prompt stand side by side, prompts in the order of the rows."""


def validate(
    config: RunConfig,
    prompts: Sequence[Prompt],
    rollout: WorkerGroup,
    scorer: Scorer,
    tokenizer: Any,
    progress: Callable[[int], None] | None = None,
) -> ValidationResult:
    """Generate `val_kwargs.n` responses for each validation prompt and score them.

    A response that could not be scored counts as 0, is counted, and has the reason under "failure" in its sample.

    Args:
        config: the run's, or that of an evaluation.
        prompts: in the order of their rows.
        rollout: the engine with the weights to validate.
        scorer: the reward function.
        tokenizer: of the model.
        progress: called with the number of prompts that are done, again and again.
    """
    responses: list[Response] = []
    size = prompts_per_call(config)
    for begin in range(0, len(prompts), size):
        responses += respond(config, prompts[begin : begin + size], rollout, tokenizer)
        if progress is not None:
            progress(min(begin + size, len(prompts)))
    scored = scorer.score(
        [response.prompt for response in responses],
        [response.text for response in responses],
        response_tokens=[len(response.token_ids) for response in responses],
    )
    tell_failures(scored, "Validation")
    rated = {
        response.prompt.data_source
        for response, score in zip(responses, scored.scores, strict=True)
        if "acc" in score.extra
    }
    outcomes, samples = [], []
    for index, (response, score) in enumerate(zip(responses, scored.scores, strict=True)):
        failure = scored.failures.get(index)
        counted = score if failure is None else _failed(failure, rated=response.prompt.data_source in rated)
        outcomes.append(Outcome(response.prompt.row, response.prompt.data_source, *counted))
        samples.append(_sample(response, counted, tokenizer))
    cut = [sample["finish_reason"] == "length" for sample in samples]
    metrics = validation_metrics(outcomes) | {
        **{f"val-aux/{name}": value for name, value in scored.counts.items()},
        "val-aux/response_length/mean": sum(sample["response_length"] for sample in samples) / len(samples),
        "val-aux/response_length/clip_ratio": sum(cut) / len(cut),
    }
    return ValidationResult(metrics, accuracy(outcomes), samples)


def _failed(failure: Failure, *, rated: bool) -> Score:
    """What a response counts that could not be scored; `rated` if others of its data source have an accuracy."""
    return Score(0.0, {"failure": f"{failure.kind}: {failure.message}"} | ({"acc": 0.0} if rated else {}))


def _sample(response: Response, score: Score, tokenizer: Any) -> dict[str, Any]:
    """What is stored of a response: with what the reward function reported (acc, pred, ...) under its own names."""
    prompt = response.prompt
    sample = {
        "data_source": prompt.data_source,
        "row": prompt.row,
        "repeat": response.repeat,
        "prompt": tokenizer.decode(prompt.prompt_ids),
        "generation": response.text,
        "ground_truth": prompt.ground_truth,
        "score": score.score,
        "response_length": len(response.token_ids),
        "finish_reason": response.finish_reason,
    }
    taken = {*sample, "step", _INITIAL}
    return sample | {
        f"reward/{name}" if name in taken else name: _as_json(value) for name, value in score.extra.items()
    }


def _as_json(value: Any) -> Any:
    """The value, or what JSON has in its place: null for a number that is not finite, text for any other object."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _as_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(entry) for entry in value]
    return value if isinstance(value, str | bool | int | None) else str(value)


class SampleLog:
    """Appends validation samples to `val_samples.jsonl`, each beside what the initial model answered.

    The initial model's answers are those of step 0; a run that goes on after an interruption finds them in the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._initial: dict[tuple[int, int], Mapping[str, Any]] | None = None

    def write(self, step: int, result: ValidationResult) -> None:
        """Write the samples of one validation."""
        if step == 0:
            self._initial = _by_repeat(result.samples)
        elif self._initial is None:
            self._initial = _by_repeat(_samples_of_step_0(self._path))
        lines = [
            json.dumps({"step": step, **sample, _INITIAL: self._before(sample)}, ensure_ascii=False)
            for sample in result.samples
        ]
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in lines))

    def _before(self, sample: Mapping[str, Any]) -> str | None:
        """What the initial model answered; None where it was not asked, or the row held another prompt then."""
        initial = (self._initial or {}).get((sample["row"], sample["repeat"]))
        return initial["generation"] if initial is not None and initial["prompt"] == sample["prompt"] else None


def _by_repeat(samples: Sequence[Mapping[str, Any]]) -> dict[tuple[int, int], Mapping[str, Any]]:
    return {(sample["row"], sample["repeat"]): sample for sample in samples}


def _samples_of_step_0(path: Path) -> list[dict[str, Any]]:
    """The samples of step 0, which stand first in the file; none if it does not exist."""
    samples: list[dict[str, Any]] = []
    if path.exists():
        with path.open(encoding="utf-8") as file:
            for line in file:
                if not line.endswith("\n") or (sample := json.loads(line))["step"] != 0:
                    break
                samples.append(sample)
    return samples
