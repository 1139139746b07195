"""Scoring the current policy on the validation prompts."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from verl_data import Prompt
from verl_rollout import Request

from verl_cli.config import RunConfig
from verl_cli.controller import WorkerGroup
from verl_cli.scoring import Scorer


@dataclass(frozen=True)
class ValidationResult:
    """Scores of every validation response, with its text."""

    metrics: dict[str, float]
    """val-core/{data_source}/acc/mean@n, and numbers of lesser interest under val-aux/."""
    accuracy: float
    """Mean over all responses."""
    samples: list[dict[str, Any]]
    """One per response: prompt, generation, ground_truth, score, data_source."""


def validate(
    config: RunConfig, prompts: Sequence[Prompt], rollout: WorkerGroup, scorer: Scorer, tokenizer: Any
) -> ValidationResult:
    """Generate `val_kwargs.n` responses for each validation prompt and score them."""
    options = config.actor_rollout_ref.rollout
    n = options.val_kwargs.n
    of_rows = [prompt for prompt in prompts for _ in range(n)]
    requests = [
        Request(prompt_ids=prompt.prompt_ids, key=(0, index // n, index % n)) for index, prompt in enumerate(of_rows)
    ]
    completions = rollout.call(
        "generate", requests, sampling=options.validation_sampling(config.data.max_response_length)
    )
    texts = tokenizer.batch_decode([c.token_ids for c in completions], skip_special_tokens=True)
    scored = scorer.score(of_rows, texts)
    sources = np.array([prompt.data_source for prompt in of_rows])
    metrics = {
        f"val-core/{source}/acc/mean@{n}": float(scored.accuracy[sources == source].mean())
        for source in sorted(set(sources))
    }
    metrics |= {f"val-aux/{name}": value for name, value in scored.metrics.items()}
    metrics["val-aux/response_length/mean"] = float(np.mean([len(c.token_ids) for c in completions]))
    samples = [
        {
            "prompt": tokenizer.decode(prompt.prompt_ids),
            "generation": text,
            "ground_truth": prompt.ground_truth,
            "score": float(value),
            "data_source": prompt.data_source,
        }
        for prompt, text, value in zip(of_rows, texts, scored.accuracy, strict=True)
    ]
    return ValidationResult(metrics, float(scored.accuracy.mean()), samples)


class SampleLog:
    """Appends validation samples to `val_samples.jsonl`, each beside what the initial model answered."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._initial: list[str] | None = None

    def write(self, step: int, result: ValidationResult) -> None:
        """Write the samples of one validation."""
        if step == 0:
            self._initial = [sample["generation"] for sample in result.samples]
        initial: Sequence[str | None] = self._initial or [None] * len(result.samples)
        lines = [
            json.dumps({"step": step, **sample, "initial_generation": before}, ensure_ascii=False)
            for sample, before in zip(result.samples, initial, strict=True)
        ]
        with self._path.open("a", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in lines))
