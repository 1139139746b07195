"""The composition of a run's trackers from `trainer.logger`."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_cli.errors import UserError
from verl_cli.tracking.background import BackgroundTracker
from verl_cli.tracking.console import ConsoleTracker
from verl_cli.tracking.interface import RunInfo, Tracker, say
from verl_cli.tracking.jsonl import JsonlTracker, read_rows
from verl_cli.tracking.run_ids import RunIds

if TYPE_CHECKING:
    from verl_cli.config import TrainerConfig

METRICS_FILE = "metrics.jsonl"

#: The values of `trainer.logger`; the last four need packages, which the extra of the same name installs.
LOGGERS = ("console", "jsonl", "file", "tensorboard", "wandb", "mlflow", "swanlab")


class Trackers:
    """Several trackers as one. A tracker whose medium fails is reported once and never stops the training.

    Faults of this program, such as a metric that is no number, are raised.
    """

    def __init__(self, file: JsonlTracker, others: Mapping[str, Tracker]) -> None:
        self._file = file
        # The file is first: whatever becomes of the others, it has the row.
        self._trackers: dict[str, Tracker] = {"file": file, **others}
        self._reported: set[str] = set()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics of one training step (0 is before training); a step may be logged more than once."""
        self._each(f"could not record step {step}", lambda tracker: tracker.log(step, metrics))

    def log_samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Show validation responses: prompt, generation, ground_truth, score, data_source."""
        self._each(f"could not show the samples of step {step}", lambda tracker: tracker.log_samples(step, samples))

    def sync(self) -> None:
        """Bring metrics.jsonl to the disk."""
        self._attempt("file", "could not be brought to the disk", self._file.sync)

    def close(self) -> None:
        """Record what is still held back, waiting for each logger only for a limited time."""
        for tracker in self._trackers.values():
            if isinstance(tracker, BackgroundTracker):
                tracker.end()  # all of them finish at the same time
        self._each("could not be closed", lambda tracker: tracker.close())

    def _each(self, what: str, act: Callable[[Tracker], None]) -> None:
        for name, tracker in self._trackers.items():
            self._attempt(name, what, partial(act, tracker))

    def _attempt(self, name: str, what: str, act: Callable[[], None]) -> None:
        try:
            act()
        except (OSError, UnicodeError) as error:  # a terminal may not know a character
            if name not in self._reported:
                self._reported.add(name)
                full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
                remedy = " Free some space." if full else ""
                say(
                    f"The {name} tracker {what}: {error}.{remedy} Training goes on; further faults of it are not "
                    f"reported."
                )


def check_loggers(names: Sequence[str]) -> None:
    """Raise UserError if a name is not known or needs a package that is not installed; nothing is imported."""
    choices = ", ".join(LOGGERS)
    if unknown := sorted(set(names) - set(LOGGERS)):
        raise UserError(
            f"trainer.logger names {', '.join(unknown)}, which does not exist; choose among {choices}. Every run "
            f"writes its {METRICS_FILE}, which other tools can read."
        )
    if missing := missing_loggers(names):
        raise UserError(
            f"trainer.logger names {' and '.join(missing)}, whose packages are not installed. "
            f"{install_advice(missing)}, or leave the name out: {METRICS_FILE} in the run directory has every metric "
            f"anyway."
        )


def missing_loggers(names: Sequence[str]) -> list[str]:
    """The loggers among the names whose packages are not installed."""
    return [name for name in names if name in _THIRD_PARTIES and not all(map(_installed, _modules(name)))]


def install_advice(names: Sequence[str]) -> str:
    """How to install the packages of loggers, without a full stop."""
    extras = " ".join(f"--extra {name}" for name in names)
    return (
        f"Install them with `pip install 'verl-cli[{','.join(names)}]'` (in a clone of the repository: start the "
        f"program with `uv run --package verl-cli {extras} verl-cli ...`)"
    )


def _modules(logger: str) -> tuple[str, ...]:
    """What a logger imports; MLflow needs a database driver only where it keeps the database itself."""
    local_mlflow = logger == "mlflow" and not os.environ.get("MLFLOW_TRACKING_URI")
    return (logger, "sqlalchemy", "alembic") if local_mlflow else (logger,)


def _installed(module: str) -> bool:
    """Whether a package is there; a folder of that name in the working directory (./wandb) has no file to import."""
    spec = find_spec(module)
    return spec is not None and spec.origin is not None


def trackers_for(
    config: TrainerConfig,
    run_dir: Path,
    total_steps: int,
    config_values: Mapping[str, Any],
    resumed_from: int | None = None,
) -> Trackers:
    """The trackers of a run as one.

    `metrics.jsonl` in the run directory is always written. Loggers of third parties start in threads of their own.

    Args:
        config: `logger` names the trackers, `project_name` and `experiment_name` the run.
        run_dir: the run directory; it is made if it is missing.
        total_steps: training steps of the whole run, for the time left.
        config_values: the resolved configuration by dotted key, which every logger records.
        resumed_from: steps that were done when this process began, behind which metrics.jsonl was cut already; None at
            the first start.

    Raises:
        UserError: a name is not known, or its package is not installed.
        OSError: the run directory cannot be written.
    """
    check_loggers(config.logger)
    others: dict[str, Tracker] = {}
    file = JsonlTracker(run_dir / METRICS_FILE)
    if "console" in config.logger and sys.stdout is not None:
        others["console"] = ConsoleTracker(total_steps, first_step=resumed_from or 0)
    third_parties = [name for name in _THIRD_PARTIES if name in config.logger]
    if third_parties:
        earlier = [] if resumed_from is None else list(read_rows(run_dir / METRICS_FILE))
        run = RunInfo(config.project_name, config.experiment_name, run_dir, dict(config_values), resumed_from, earlier)
        ids = RunIds(run_dir)
        for name in third_parties:
            others[name] = BackgroundTracker(name, partial(_THIRD_PARTIES[name], run, ids))
    return Trackers(file, others)


# The third parties are imported where they start: each in the thread of its own logger.
def _tensorboard(run: RunInfo, ids: RunIds) -> Tracker:
    from verl_cli.tracking.tensorboard import TensorboardTracker

    return TensorboardTracker(run)


def _wandb(run: RunInfo, ids: RunIds) -> Tracker:
    from verl_cli.tracking.wandb import WandbTracker

    return WandbTracker(run, ids)


def _mlflow(run: RunInfo, ids: RunIds) -> Tracker:
    from verl_cli.tracking.mlflow import MlflowTracker

    return MlflowTracker(run, ids)


def _swanlab(run: RunInfo, ids: RunIds) -> Tracker:
    from verl_cli.tracking.swanlab import SwanlabTracker

    return SwanlabTracker(run, ids)


_THIRD_PARTIES: Mapping[str, Callable[[RunInfo, RunIds], Tracker]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb,
    "mlflow": _mlflow,
    "swanlab": _swanlab,
}
