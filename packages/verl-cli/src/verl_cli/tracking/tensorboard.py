"""The TensorBoard logger: event files in `tensorboard/` of the run directory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_cli.tracking.interface import RunInfo


class TensorboardTracker:
    """Scalars by step; the configuration and validation samples as text.

    Environment: TENSORBOARD_DIR is the folder of the event files, one for each run: of runs that share one, the newest
    is shown.
    """

    def __init__(self, run: RunInfo) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = Path(os.environ.get("TENSORBOARD_DIR") or run.directory / "tensorboard")
        is_new = not any(folder.glob("*tfevents*"))
        # Readers drop what earlier event files of the folder say about this step and later ones. They do so only from
        # the second such mark on: a first start makes one as well.
        purge = 0 if is_new or run.resumed_from is None else run.resumed_from + 1
        self._writer: Any = SummaryWriter(str(folder), purge_step=purge)
        config = "\n".join(f"    {key}: {json.dumps(value, default=str)}" for key, value in run.config.items())
        self._writer.add_text("config", config, purge)
        for step, metrics in run.earlier if is_new else ():
            self._add(step, metrics)
        self._writer.flush()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a scalar for every metric."""
        self._add(step, metrics)
        self._writer.flush()

    def _add(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def log_samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Write the samples as one Markdown text."""
        texts = [
            "\n\n".join(f"**{name}**\n\n" + _indented(value) for name, value in sample.items()) for sample in samples
        ]
        self._writer.add_text("val/generations", "\n\n---\n\n".join(texts), step)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


def _indented(value: Any) -> str:
    """A value as a block that Markdown shows as it is."""
    return "\n".join(f"    {line}" for line in str(value).splitlines() or [""])
