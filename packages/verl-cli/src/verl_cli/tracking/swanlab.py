"""The SwanLab logger."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from verl_cli.config.keys import nest
from verl_cli.tracking.interface import RunInfo, say, told
from verl_cli.tracking.network import reachable
from verl_cli.tracking.run_ids import RunIds

_SERVICE = "swanlab"


class SwanlabTracker:
    """One run of a SwanLab project; offline where there is no API key or no network, which it says.

    SwanLab ignores a metric of a step that the run has already, online and at `swanlab sync`. So a resumed run shows
    none twice, and is given all earlier rows again: offline the last ones are lost when a process is killed.

    Environment: SWANLAB_API_KEY, SWANLAB_MODE (online, local, offline, disabled), SWANLAB_LOG_DIR, and everything else
    that swanlab reads itself.
    """

    def __init__(self, run: RunInfo, ids: RunIds) -> None:
        import swanlab
        import swanlab.exceptions as swanlab_exceptions

        self._swanlab: Any = swanlab
        found = swanlab.Settings()
        mode, reason = _mode(found)
        settings: dict[str, Any] = {"interactive": False, "terminal": {"proxy_type": "none"}}
        if not (os.environ.get("SWANLAB_LOG_DIR") or os.environ.get("SWANLAB_LOGDIR")):
            settings["log_dir"] = run.directory / "swanlab"
        arguments: dict[str, Any] = {
            "project": run.project,
            "name": run.name,
            "config": nest(run.config),
            "id": ids.id(_SERVICE) or found.run.id,
            "resume": "allow",
            "settings": swanlab.Settings(**settings),
        }
        try:
            self._run: Any = swanlab.init(mode=mode, **arguments)
        except (OSError, RuntimeError, swanlab_exceptions.AuthenticationError) as error:  # its ApiError is an OSError
            if mode != "online":
                raise
            mode, reason = "offline", f"it could not start online: {told(error)}"
            self._run = swanlab.init(mode=mode, **arguments)
        ids.write(_SERVICE, str(self._run.id))
        if reason:
            say(f"swanlab writes offline ({reason}).")
        for step, metrics in run.earlier:
            self.log(step, metrics)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step."""
        self._run.log(dict(metrics), step=step)

    def log_samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Log each sample as a text."""
        texts = ["\n".join(f"{name}: {value}" for name, value in sample.items()) for sample in samples]
        self._run.log({"val/generations": [self._swanlab.Text(text) for text in texts]}, step=step)

    def close(self) -> None:
        """Deliver what is left and end the run."""
        self._run.finish()


def _mode(settings: Any) -> tuple[str, str]:
    """The mode to start in, and why it is not the one that was wanted."""
    if settings.mode != "online":
        return str(settings.mode), ""
    if settings.api_key is None:
        return "offline", "no API key: set SWANLAB_API_KEY or run `swanlab login`"
    if not reachable(settings.api_host):
        return "offline", f"{settings.api_host} cannot be reached"
    return "online", ""
