"""The tracker interface and the composition of a run's trackers."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from verl_cli.errors import UserError
from verl_cli.tracking.console import ConsoleTracker
from verl_cli.tracking.jsonl import JsonlTracker

METRICS_FILE = "metrics.jsonl"


class Tracker(Protocol):
    """Receives the metrics of a run. A fault of its medium is an OSError."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record the metrics of one training step (0 is before training)."""

    def close(self) -> None:
        """Record what is still held back; nothing is logged afterwards. A second call does nothing."""


class _Trackers:
    """Several trackers as one; a tracker whose medium fails is reported once and never stops the training."""

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = dict(trackers)
        self._reported: set[str] = set()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, tracker in self._trackers.items():
            try:
                tracker.log(step, metrics)
            except (OSError, UnicodeError) as error:  # a terminal may not know a character
                self._report(f"The {name} tracker could not record step {step}", name, error)

    def close(self) -> None:
        for name, tracker in self._trackers.items():
            try:
                tracker.close()
            except OSError as error:
                self._report(f"The {name} tracker could not be closed", name, error)

    def _report(self, what: str, name: str, error: OSError | UnicodeError) -> None:
        if name in self._reported:
            return
        self._reported.add(name)
        try:
            print(f"{what}: {error}. Training goes on; further faults of it are not reported.", file=sys.stderr)
        except OSError:
            # Standard error is gone too (a closed terminal): nobody is left to tell, and the training is worth more.
            return


def trackers_for(names: Sequence[str], run_dir: Path, total_steps: int) -> Tracker:
    """The trackers of a run as one.

    `metrics.jsonl` in the run directory is always written.

    Args:
        names: the values of `trainer.logger`: `console`, and `file` or `jsonl` for the file that is written anyway.
        run_dir: the run directory; it is made if it is missing.
        total_steps: training steps of the whole run, for the time left.

    Raises:
        UserError: a name is not known.
        OSError: the run directory cannot be written.
    """
    if unknown := sorted(set(names) - {"console", "file", "jsonl"}):
        raise UserError(
            f"trainer.logger names {', '.join(unknown)}, which this version does not have; choose among console, "
            f"file and jsonl. Every run writes its {METRICS_FILE}, which other tools can read."
        )
    trackers: dict[str, Tracker] = {"file": JsonlTracker(run_dir / METRICS_FILE)}
    if "console" in names:
        trackers["console"] = ConsoleTracker(total_steps)
    return _Trackers(trackers)
