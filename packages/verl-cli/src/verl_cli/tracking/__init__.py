"""Where the metrics of a run go: `metrics.jsonl` in its run directory, and the console.

Metric names are the published ones (`critic/score/mean`, `actor/ppo_kl`, `timing_s/gen`, ...). The step is always given
by the caller: no tracker counts by itself, so a step that logs twice or a resumed run cannot shift the numbering.
"""

from verl_cli.tracking.console import ConsoleTracker
from verl_cli.tracking.jsonl import JsonlTracker
from verl_cli.tracking.names import Validation, validation_results
from verl_cli.tracking.trackers import METRICS_FILE, Tracker, trackers_for

__all__ = [
    "METRICS_FILE",
    "ConsoleTracker",
    "JsonlTracker",
    "Tracker",
    "Validation",
    "trackers_for",
    "validation_results",
]
