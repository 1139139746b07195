"""What a run directory says of its run."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from verl_cli.errors import UserError
from verl_cli.report.failure import Failure, is_current, last_failure
from verl_cli.report.samples import Sample, last_validation
from verl_cli.tracking import METRICS_FILE

T = TypeVar("T")

WARNINGS_FILE = "warnings.jsonl"

# A diverged run may log numbers whose sums and differences overflow; beyond this they count as not finite.
_DRAWABLE = 1e100
# Files of which a run directory holds at least one.
_OF_A_RUN = ("config.yaml", METRICS_FILE, "val_samples.jsonl", "summary.json")


@dataclass(frozen=True)
class Warned:
    """A warning of the run's health monitors."""

    step: int
    name: str
    message: str


@dataclass(frozen=True)
class Run:
    """Everything that a report shows of a run.

    Attributes:
        path: the run directory.
        metrics: for each step, in order, the metrics that are finite numbers.
        not_finite: for each metric that was not a finite number at some steps, those steps, in order.
        warnings: what the health monitors warned of, in order.
        samples: the samples of the last validation, in the order of the validation prompts.
        summary: content of summary.json, empty while the run has none.
        config: text of config.yaml, empty if it is missing.
        settings: the keys of config.yaml by dotted name.
        failure: what ended the run, where it is a failure that error.log tells of.
        problems: a paragraph for each file that is not what a run writes; the rest of the run is here all the same.
    """

    path: Path
    metrics: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    not_finite: Mapping[str, list[int]] = field(default_factory=dict)
    warnings: list[Warned] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    summary: Mapping[str, Any] = field(default_factory=dict)
    config: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Name of the run directory."""
        return self.path.resolve().name

    def series(self, name: str) -> dict[int, float]:
        """Value of one metric by step."""
        return {step: values[name] for step, values in self.metrics.items() if name in values}

    def names(self) -> list[str]:
        """Names of all metrics, sorted."""
        return sorted({name for values in self.metrics.values() for name in values})


def holds_run(run_dir: Path) -> bool:
    """Whether a folder holds anything that a run writes."""
    return any((run_dir / name).exists() for name in _OF_A_RUN)


def read_run(run_dir: Path) -> Run:
    """Read a run directory; what the run did not write (yet) is empty, what cannot be read is in `problems`.

    Raises:
        UserError: there is no such folder, or nothing of a run in it.
    """
    if not run_dir.is_dir():
        raise UserError(f"There is no run directory {run_dir}; give the folder that holds a run's {METRICS_FILE}.")
    if not holds_run(run_dir):
        raise UserError(
            f"The folder {run_dir} holds no run: {', '.join(_OF_A_RUN)} are all missing. Give the folder that a run "
            f"was written to (trainer.default_local_dir)."
        )
    problems: list[str] = []
    log = run_dir / "error.log"
    metrics, not_finite = _read_metrics(run_dir / METRICS_FILE, problems)
    config, settings = _read_config(run_dir / "config.yaml", problems)
    summary = _read_summary(run_dir / "summary.json", problems)
    return Run(
        path=run_dir,
        metrics=metrics,
        not_finite=not_finite,
        warnings=list(_rows(run_dir / WARNINGS_FILE, _warned_of_row, problems)),
        samples=last_validation(_rows(run_dir / "val_samples.jsonl", Sample.from_row, problems)),
        summary=summary,
        config=config,
        settings=settings,
        failure=last_failure(_read_text(log, problems)) if is_current(run_dir, log) else None,
        problems=problems,
    )


def _read_text(path: Path, problems: list[str]) -> str:
    """Text of a file, empty where it is missing; bytes that are not UTF-8 become replacement characters."""
    try:
        return path.read_bytes().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        problems.append(_unreadable(path, error))
        return ""


def _rows(path: Path, parse: Callable[[Any], T], problems: list[str]) -> Iterator[T]:
    """The objects of a JSON-lines file, one after the other: a long run's samples need not fit into memory.

    The last line does not count while its writer has not ended it.
    """
    wrong = []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    try:
                        row = parse(json.loads(line))
                    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                        wrong.append((number, _reason(error)))
                    else:
                        yield row
    except FileNotFoundError:
        return
    except OSError as error:
        problems.append(_unreadable(path, error))
    if wrong:
        (first, reason), others = wrong[0], len(wrong) - 1
        more = f" (and {others} more line{'s' if others > 1 else ''})" if others else ""
        problems.append(
            f"Line {first}{more} of {path} is not what a run writes: {reason}. It is left out here; restore the file "
            f"as the run left it, or remove the line."
        )


def _unreadable(path: Path, error: OSError) -> str:
    return f"{path} cannot be read ({error.strerror}) and is left out. Make it readable for this user."


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON ({error.msg.removesuffix(' at')} at character {error.pos + 1})"
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    if isinstance(error, KeyError):
        return f"{error.args[0]!r} is missing"
    return str(error)


def _read_metrics(path: Path, problems: list[str]) -> tuple[dict[int, dict[str, float]], dict[str, list[int]]]:
    """Finite metrics by step, in order, and where others were; of what a step logged twice the last value stays."""
    logged: dict[int, dict[str, float]] = defaultdict(dict)
    for step, values in _rows(path, _metrics_of_row, problems):
        logged[step].update(values)
    steps: dict[int, dict[str, float]] = {}
    not_finite: dict[str, list[int]] = defaultdict(list)
    for step, values in sorted(logged.items()):
        steps[step] = {name: value for name, value in values.items() if abs(value) < _DRAWABLE}
        for name in values.keys() - steps[step].keys():
            not_finite[name].append(step)
    return steps, dict(not_finite)


def _metrics_of_row(row: Any) -> tuple[int, dict[str, float]]:
    return int(row["step"]), {name: math.nan if value is None else float(value) for name, value in row["data"].items()}


def _warned_of_row(row: Any) -> Warned:
    return Warned(int(row["step"]), str(row["name"]), str(row["message"]))


def _read_config(path: Path, problems: list[str]) -> tuple[str, dict[str, Any]]:
    text = _read_text(path, problems)
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"Line {mark.line + 1} of {path}" if mark else str(path)
        reason = getattr(error, "problem", None) or "it holds characters that YAML does not allow"
        problems.append(f"{place} is not YAML: {reason}. Its keys are left out here; restore it as the run left it.")
        return text, {}
    if not isinstance(tree, dict | None):
        problems.append(f"{path} holds no keys, and is left out here; restore it as the run left it.")
        return text, {}
    return text, _flatten(tree or {}, "")


def _flatten(tree: Mapping[Any, Any], prefix: str) -> dict[str, Any]:
    """Nested mappings to dotted names."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return flat


def _read_summary(path: Path, problems: list[str]) -> dict[str, Any]:
    text = _read_text(path, problems)
    if not text:
        return {}
    try:
        summary = json.loads(text)
    except json.JSONDecodeError as error:
        problems.append(
            f"Line {error.lineno} of {path} is not JSON: {error.msg}. It is left out here; restore the file as the run "
            f"left it."
        )
        return {}
    if not isinstance(summary, dict):
        problems.append(f"{path} is not a JSON object, and is left out here; restore it as the run left it.")
        return {}
    return summary
