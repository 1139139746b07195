"""Where the metrics of a run go: `metrics.jsonl` in its run directory, the console, and the loggers of others.

Metric names are the published ones (`critic/score/mean`, `actor/ppo_kl`, `timing_s/gen`, ...). The step is always given
by the caller: no tracker counts by itself, so a step that logs twice or a resumed run cannot shift the numbering.
"""

from verl_cli.tracking.background import BackgroundTracker
from verl_cli.tracking.console import ConsoleTracker
from verl_cli.tracking.interface import RunInfo, Tracker
from verl_cli.tracking.jsonl import JsonlTracker, cut_rows, last_step, read_rows
from verl_cli.tracking.names import Validation, validation_results
from verl_cli.tracking.run_ids import TRACKERS_FILE
from verl_cli.tracking.trackers import (
    LOGGERS,
    METRICS_FILE,
    Trackers,
    check_loggers,
    install_advice,
    missing_loggers,
    trackers_for,
)

__all__ = [
    "LOGGERS",
    "METRICS_FILE",
    "TRACKERS_FILE",
    "BackgroundTracker",
    "ConsoleTracker",
    "JsonlTracker",
    "RunInfo",
    "Tracker",
    "Trackers",
    "Validation",
    "check_loggers",
    "cut_rows",
    "install_advice",
    "last_step",
    "missing_loggers",
    "read_rows",
    "trackers_for",
    "validation_results",
]
