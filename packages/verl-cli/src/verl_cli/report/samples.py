"""Validation samples of a run: what the policy answered, beside what the initial model did."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Sample:
    """One validation response; of the initial model only what the run recorded.

    Attributes:
        step: training step of the policy that answered.
        data_source: data source of the prompt.
        prompt: text of the prompt.
        generation: the policy's response.
        initial_generation: the response of the policy before training, if the run validated then.
        ground_truth: what the reward compares with.
        score: the response's score.
        initial_score: the score of initial_generation.
        finish_reason: why the response ended, `stop` or `length`; empty where the run did not record it.
    """

    step: int
    data_source: str
    prompt: str
    generation: str
    initial_generation: str | None
    ground_truth: str
    score: float
    initial_score: float | None = None
    finish_reason: str = ""

    @classmethod
    def from_row(cls, row: Any) -> Sample:
        """The sample of a line of val_samples.jsonl; what is missing or of another kind raises."""
        initial = row.get("initial_generation")
        return cls(
            step=int(row["step"]),
            data_source=str(row["data_source"]),
            prompt=str(row["prompt"]),
            generation=str(row["generation"]),
            initial_generation=None if initial is None else str(initial),
            ground_truth=str(row["ground_truth"]),
            score=float(row["score"]),
            finish_reason=str(row.get("finish_reason") or ""),
        )


def last_validation(samples: Iterable[Sample]) -> list[Sample]:
    """The samples of the last step, each with the score and the response that the initial model had for the prompt.

    The initial model's are those of step 0: the n-th response to a prompt is compared with its n-th response. The
    samples may come from a stream: only those two steps are kept.
    """
    first: list[Sample] = []
    last: list[Sample] = []
    for sample in samples:
        if last and sample.step < last[0].step:
            continue
        if last and sample.step > last[0].step:
            first, last = first or last, []
        last.append(sample)
    if not first or first[0].step != 0:
        return last
    answers: dict[tuple[str, str], list[Sample]] = defaultdict(list)
    for sample in reversed(first):
        answers[sample.data_source, sample.prompt].append(sample)
    return [_beside(sample, answers[sample.data_source, sample.prompt]) for sample in last]


def _beside(sample: Sample, answers: list[Sample]) -> Sample:
    """The sample with the next of the initial model's answers, which is taken off the list."""
    if not answers:
        return sample
    before = answers.pop()
    return replace(sample, initial_generation=before.generation, initial_score=before.score)


def spread(items: Sequence[T], count: int) -> list[T]:
    """At most `count` of the items, evenly spaced."""
    count = min(count, len(items))
    return [items[index * len(items) // count] for index in range(count)]


def sampling(settings: Mapping[str, Any]) -> str:
    """A sentence on how validation responses were drawn, from the keys of a run's configuration."""
    prefix = "actor_rollout_ref.rollout.val_kwargs."
    temperature = settings.get(f"{prefix}temperature")
    if not isinstance(temperature, int | float):
        return "How responses were sampled is not recorded."
    if temperature == 0 or settings.get(f"{prefix}do_sample") is False:
        return "Responses are greedy (temperature 0)."
    rules = [f"temperature {temperature:g}"]
    if isinstance(top_p := settings.get(f"{prefix}top_p"), int | float) and top_p < 1:
        rules.append(f"top_p {top_p:g}")
    if isinstance(top_k := settings.get(f"{prefix}top_k"), int) and top_k > 0:
        rules.append(f"top_k {top_k}")
    if isinstance(n := settings.get(f"{prefix}n"), int) and n > 1:
        rules.append(f"{n} responses a prompt")
    return f"Responses are sampled ({', '.join(rules)})."
