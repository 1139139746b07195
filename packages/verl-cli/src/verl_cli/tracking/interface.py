"""What a tracker is, and what every tracker is told about its run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


class Tracker(Protocol):
    """Receives the metrics of a run."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics of one training step (0 is before training); a step may be logged more than once."""

    def log_samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Record validation responses: prompt, generation, ground_truth, score, data_source."""

    def close(self) -> None:
        """Record what is still held back; nothing is logged afterwards. A second call does nothing."""


@dataclass(frozen=True)
class RunInfo:
    """A run as its trackers know it."""

    project: str
    name: str
    directory: Path
    """The run directory; everything that a tracker writes lies in it, unless its own environment variable says else."""
    config: Mapping[str, Any]
    """The resolved configuration by dotted key."""
    resumed_from: int | None = None
    """Steps that were done when this process began; a service may have rows of later steps already, from a process that
    was killed. None at the first start."""
    earlier: Sequence[tuple[int, Mapping[str, float]]] = ()
    """The rows up to there, as metrics.jsonl has them: a service gets those that it lacks, because a kill lost them or
    because the logger is new to the run."""


def say(text: str) -> None:
    """Tell the user something in one line on standard error, if there still is one."""
    if sys.stderr is None:
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, ValueError):
        # The terminal is gone: nobody is left to tell, and the training is worth more.
        return


def told(error: BaseException) -> str:
    """The kind of an error and the first line of what it says."""
    lines = str(error).strip().splitlines()
    return type(error).__name__ + (f": {lines[0]}" if lines else "")
