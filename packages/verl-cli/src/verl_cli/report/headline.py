"""The numbers of a run that a reader looks for first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from verl_cli.report.read import Run
from verl_cli.report.scale import duration, number


def change(values: Mapping[int, float]) -> str:
    """First and last value of a metric as HTML, or the only one."""
    first, last = values[min(values)], values[max(values)]
    return f"{last:.3f}" if len(values) == 1 else f"<small>{first:.3f} &rarr;</small> {last:.3f}"


def steps(run: Run) -> int:
    """Training steps that were logged."""
    return max(run.metrics, default=0)


def tokens(run: Run) -> float:
    """Prompt and response tokens of all training steps."""
    return sum(run.series("perf/total_num_tokens").values())


def throughput(run: Run) -> float | None:
    """Tokens per second and device over the whole run: all tokens by all time, not a mean of rates."""
    rates, counts = run.series("perf/throughput"), run.series("perf/total_num_tokens")
    both = [step for step in counts if rates.get(step, 0.0) > 0.0]
    seconds = sum(counts[step] / rates[step] for step in both)
    return sum(counts[step] for step in both) / seconds if seconds > 0.0 else None


def time(run: Run) -> tuple[str, str]:
    """How long the run took, or its training steps so far, and a note that says which; empty where it is not known."""
    seconds = run.summary.get("seconds")
    if isinstance(seconds, int | float):
        return duration(seconds), ""
    of_steps = sum(run.series("timing_s/step").values())
    return (duration(of_steps), "in training steps so far") if of_steps else ("", "")


def seed(run: Run) -> str:
    """The seed, empty where it is not recorded."""
    value = run.summary.get("seed", run.settings.get("trainer.seed"))
    return "" if value is None else str(value)


def subject(run: Run) -> str:
    """Algorithm, model and data of a run in a line, as far as its configuration tells."""
    settings: Mapping[str, Any] = run.settings
    parts = [
        str(settings[key])
        if key == "algorithm.adv_estimator"
        else ", ".join(PurePath(str(path)).name for path in _list(settings[key]))
        for key in ("algorithm.adv_estimator", "actor_rollout_ref.model.path", "data.train_files")
        if settings.get(key)
    ]
    return " \N{MIDDLE DOT} ".join(parts)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def tiles(run: Run, validations: Mapping[str, tuple[str, str]]) -> list[tuple[str, str, str]]:
    """What stands above the charts: name, value as HTML, and a note.

    `validations` has, for the title of a tile, the metric and what it is.
    """
    result = []
    for title, (metric, statistic) in validations.items():
        values = run.series(metric)
        first, last = min(values), max(values)
        gain = (
            f", {values[last] - values[first]:+.3f} from step {first} to {last}" if first < last else f", step {last}"
        )
        result.append((title, change(values), statistic + gain))
    if scores := run.series("critic/score/mean"):
        result.append(("Mean score in training", change(scores), "first and last step"))
    if run.metrics:
        count = tokens(run)
        result.append(("Steps", str(steps(run)), f"{number(count)} tokens" if count else ""))
    if rate := throughput(run):
        result.append(("Throughput", number(rate), "tokens per second and device"))
    took, what = time(run)
    if took:
        result.append(("Duration", took, what))
    if value := seed(run):
        result.append(("Seed", value, ""))
    return result
