"""The folder that holds everything a run produces: its files, its lock, and what belongs to no run yet."""

import fcntl
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_cli.errors import UserError
from verl_cli.run import checkpoints
from verl_cli.run.checkpoints import Checkpoint

_LOCK = ".lock"


@dataclass(frozen=True)
class RunDir:
    """Paths of a run: config.yaml, metrics.jsonl, val_samples.jsonl, warnings.jsonl, global_step_N/, summary.json,
    report.html."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """The metrics, one JSON object a step."""
        return self.path / "metrics.jsonl"

    @property
    def samples(self) -> Path:
        """Validation samples, one JSON object a line."""
        return self.path / "val_samples.jsonl"

    @property
    def warnings(self) -> Path:
        """What the health monitors warned of, one JSON object a line; not there without a warning."""
        return self.path / "warnings.jsonl"

    @property
    def rows(self) -> tuple[Path, ...]:
        """The files that grow with every step, whose rows have a "step"."""
        return (self.metrics, self.samples, self.warnings)

    @property
    def summary(self) -> Path:
        """Headline numbers of a finished run."""
        return self.path / "summary.json"

    @property
    def trackers(self) -> Path:
        """Under which ids the loggers know the run."""
        return self.path / "trackers.json"

    @property
    def records(self) -> tuple[Path, ...]:
        """What the run writes about itself, and copies beside its checkpoints."""
        return (self.config, *self.rows, self.trackers, self.summary)

    def checkpoints(self) -> list[Checkpoint]:
        """The complete checkpoints, the oldest first."""
        return checkpoints.complete(self.path)

    def save_checkpoint(self, step: int, write: Callable[[Path], None], *, keep: int | None = None) -> Checkpoint:
        """Write a checkpoint, then say that it is the latest, then delete all but the `keep` newest."""
        folder = checkpoints.save(self.path, step, write)
        write_atomically(self.path / "latest_checkpointed_iteration.txt", f"{step}\n")  # as users know it; never read
        checkpoints.rotate(self.path, keep)
        return Checkpoint(step, folder)

    def is_taken(self) -> bool:
        """Whether the folder holds a run, finished or not."""
        return self.config.exists() or self.metrics.exists() or bool(self.checkpoints())

    def check_usable(self) -> None:
        """Raise UserError if the folder cannot be made or written to."""
        parent = next(folder for folder in (self.path, *self.path.absolute().parents) if folder.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise UserError(
                f"The run directory {self.path} cannot be made: {parent} is not a folder that may be written to. "
                f"Choose another with trainer.default_local_dir=DIR."
            )

    def is_in_use(self) -> bool:
        """Whether another process holds the folder."""
        try:
            descriptor = os.open(self.path / _LOCK, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:  # a file system without locks
            return False
        finally:
            os.close(descriptor)
        return False

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Make the folder and hold it for this process; the system lets go of it however the process ends.

        Raises UserError if another process holds it.
        """
        self.check_usable()
        made = not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(self.path / _LOCK, self.path)
        try:
            yield
        finally:
            (self.path / _LOCK).unlink(missing_ok=True)
            os.close(descriptor)
            if made and not any(self.path.iterdir()):
                self.path.rmdir()

    def discard(self) -> None:
        """Remove what a run left that failed before its first step was complete, so that it can be started again."""
        for path in (*self.records, self.path / "report.html"):
            path.unlink(missing_ok=True)

    def read_config(self) -> str | None:
        """The text of config.yaml; None if there is none."""
        if not self.config.exists():
            return None
        try:
            return self.config.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{self.config} is not UTF-8 text ({error}). Restore it as the run wrote it.") from error

    def write_config(self, text: str) -> None:
        """Write config.yaml, which marks the folder as taken."""
        write_atomically(self.config, text)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json."""
        write_atomically(self.summary, json.dumps(summary, indent=2) + "\n")


def _acquire(path: Path, run_dir: Path) -> int:
    """Lock a file and return its descriptor."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise UserError(
                f"The run directory {run_dir} is in use: another process on this machine or file system is writing a "
                "run into it. Wait for it or stop it, or give this run its own: trainer.default_local_dir=DIR."
            ) from None
        except OSError as error:  # some network file systems have no locks; a run without one is worth more than none
            print(
                f"The file system of {run_dir} has no locks ({error.strerror}): nothing keeps a second run out of it.",
                file=sys.stderr,
            )
            return descriptor
        if path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
        os.close(descriptor)  # whoever held it removed the file between the two calls


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that it is there whole or not at all."""
    descriptor, partial = tempfile.mkstemp(prefix=f".{path.name}.", suffix=checkpoints.PARTIAL, dir=path.parent)
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
