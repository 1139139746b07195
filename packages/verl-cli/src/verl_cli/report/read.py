"""What a run directory says of its run."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_cli.errors import UserError
from verl_cli.tracking import METRICS_FILE

# A diverged run may log numbers whose sums and differences overflow; beyond this they are left out like infinities.
_DRAWABLE = 1e100


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
    """

    step: int
    data_source: str
    prompt: str
    generation: str
    initial_generation: str | None
    ground_truth: str
    score: float
    initial_score: float | None


@dataclass(frozen=True)
class Run:
    """Everything that the report shows.

    Attributes:
        name: name of the run directory.
        metrics: for each step, in order, the metrics that are finite numbers.
        samples: the samples of the last validation, in the order of the validation prompts.
        summary: content of summary.json, empty while the run has none.
        config: text of config.yaml, empty if it is missing.
    """

    name: str
    metrics: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    summary: Mapping[str, Any] = field(default_factory=dict)
    config: str = ""

    def series(self, name: str) -> dict[int, float]:
        """Value of one metric by step."""
        return {step: values[name] for step, values in self.metrics.items() if name in values}

    def names(self) -> list[str]:
        """Names of all metrics, sorted."""
        return sorted({name for values in self.metrics.values() for name in values})


def read_run(run_dir: Path) -> Run:
    """Read a run directory; what the run did not write (yet) is empty.

    Raises:
        UserError: there is no such folder, or one of its files is not what a run writes.
    """
    if not run_dir.is_dir():
        raise UserError(f"There is no run directory {run_dir}; give the folder that holds a run's {METRICS_FILE}.")
    summary, config = run_dir / "summary.json", run_dir / "config.yaml"
    try:
        return Run(
            name=run_dir.resolve().name,
            metrics=_read_metrics(run_dir / METRICS_FILE),
            samples=_read_samples(run_dir / "val_samples.jsonl"),
            summary=json.loads(summary.read_text("utf-8")) if summary.exists() else {},
            config=config.read_text("utf-8") if config.exists() else "",
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"The run directory {run_dir} holds a file that no run writes ({type(error).__name__}: {error}); restore "
            f"metrics.jsonl, val_samples.jsonl and summary.json as the run left them."
        ) from error


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; the last line does not count while its writer has not ended it."""
    if not path.exists():
        return []
    rows = []
    for number, line in enumerate(path.read_text("utf-8").split("\n")[:-1], start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"line {number} of {path.name} is not JSON: {error}") from error
    return rows


def _read_metrics(path: Path) -> dict[int, dict[str, float]]:
    """Finite metrics by step, in order; of a metric that a step logged twice the last value stays."""
    steps: dict[int, dict[str, float]] = defaultdict(dict)
    for row in _read_lines(path):
        numbers = {name: float(value) for name, value in row["data"].items() if value is not None}
        steps[int(row["step"])].update({name: value for name, value in numbers.items() if abs(value) < _DRAWABLE})
    return dict(sorted(steps.items()))


def _read_samples(path: Path) -> list[Sample]:
    """The samples of the last validation, each with the score that the initial model had on the same prompt."""
    rows = _read_lines(path)
    if not rows:
        return []
    first, last = min(int(row["step"]) for row in rows), max(int(row["step"]) for row in rows)
    # The n-th response to a prompt is compared with the n-th response that the initial model gave to it.
    initial_scores: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        if int(row["step"]) == first:
            initial_scores[row["data_source"], row["prompt"]].append(float(row["score"]))
    samples = []
    for row in rows:
        if int(row["step"]) != last:
            continue
        before: str | None = row.get("initial_generation")
        scores = initial_scores[row["data_source"], row["prompt"]]
        samples.append(
            Sample(
                step=last,
                data_source=str(row["data_source"]),
                prompt=str(row["prompt"]),
                generation=str(row["generation"]),
                initial_generation=before,
                ground_truth=str(row["ground_truth"]),
                score=float(row["score"]),
                initial_score=scores.pop(0) if before is not None and scores else None,
            )
        )
    return samples
