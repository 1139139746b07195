"""The folder that holds everything a run produces."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_cli.errors import UserError


@dataclass(frozen=True)
class RunDir:
    """Paths of a run: config.yaml, metrics.jsonl, val_samples.jsonl, global_step_N/, summary.json, report.html."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def samples(self) -> Path:
        """Validation samples, one JSON object a line."""
        return self.path / "val_samples.jsonl"

    @property
    def summary(self) -> Path:
        """Headline numbers of a finished run."""
        return self.path / "summary.json"

    def check_free(self) -> None:
        """Raise UserError if the folder already holds a run, or cannot be made."""
        if self.config.exists() or (self.path / "metrics.jsonl").exists() or any(self.path.glob("global_step_*")):
            raise UserError(
                f"The run directory {self.path} already holds a run, which would be overwritten. Give this run its "
                f"own: trainer.default_local_dir=DIR (or another trainer.experiment_name), or remove the folder if "
                f"you no longer need it. This version cannot go on with an earlier run."
            )
        parent = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise UserError(
                f"The run directory {self.path} cannot be made: {parent} is not a folder that may be written to. "
                f"Choose another with trainer.default_local_dir=DIR."
            )

    def create(self, config_text: str) -> None:
        """Make the folder and write the configuration, which marks it as taken: of two runs at once one fails."""
        self.check_free()
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with self.config.open("x", encoding="utf-8") as file:
                file.write(config_text)
        except FileExistsError:
            self.check_free()

    def discard(self) -> None:
        """Remove what a run left that failed before its first step was complete, so that it can be started again."""
        for name in ("config.yaml", "metrics.jsonl", "val_samples.jsonl", "report.html"):
            (self.path / name).unlink(missing_ok=True)
        if self.path.is_dir() and not any(self.path.iterdir()):
            self.path.rmdir()

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json."""
        write_atomically(self.summary, json.dumps(summary, indent=2) + "\n")

    def save_checkpoint(self, step: int, write: Callable[[Path], None]) -> Path:
        """Let `write` fill a folder and give it its name, global_step_N, only when it is complete."""
        final = self.path / f"global_step_{step}"
        partial = Path(tempfile.mkdtemp(prefix=f".global_step_{step}.", dir=self.path))
        try:
            write(partial)
            partial.chmod(0o755)
            partial.rename(final)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        write_atomically(self.path / "latest_checkpointed_iteration.txt", f"{step}\n")
        return final


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that it is there whole or not at all."""
    descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(partial).chmod(0o644)
        Path(partial).replace(path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise
