"""Checkpoints of a run, `global_step_N/`: each is complete or is not seen."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from verl_cli.errors import UserError

#: Written last: the size in bytes of every other file. A folder without it is no checkpoint.
MARK = "complete.json"
#: How the names end of what is being written or deleted; such names begin with a dot.
PARTIAL = ".partial"
_PREFIX = "global_step_"
_FORMAT = 1


@dataclass(frozen=True, order=True)
class Checkpoint:
    """A checkpoint that was completely written."""

    step: int
    path: Path


def complete(run_dir: Path) -> list[Checkpoint]:
    """The complete checkpoints of a run, the oldest first."""
    found = [Checkpoint(step, path) for path in run_dir.glob(f"{_PREFIX}*") if (step := step_of(path)) is not None]
    return sorted(checkpoint for checkpoint in found if (checkpoint.path / MARK).is_file())


def step_of(path: Path) -> int | None:
    """The step that a checkpoint folder's name tells; None for another name."""
    number = path.name.removeprefix(_PREFIX)
    return int(number) if path.name.startswith(_PREFIX) and number.isdecimal() else None


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a complete checkpoint's files, if anything: a copy may have been cut short."""
    try:
        mark = json.loads((checkpoint / MARK).read_text("utf-8"))
        sizes, written = dict(mark["file_bytes"]), mark["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its {MARK} cannot be read ({type(error).__name__}: {error})"
    if written != _FORMAT:
        return f"its format is {written}, and this verl-cli reads {_FORMAT}"
    for name, size in sizes.items():
        path = checkpoint / name
        if not path.is_file():
            return f"it lacks {name}"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
    return None


def save(run_dir: Path, step: int, write: Callable[[Path], None]) -> Path:
    """Let `write` fill a folder; it gets its mark and then its name only when everything is on the disk.

    A folder of that name that is damaged or was never completed is replaced.
    """
    final = run_dir / f"{_PREFIX}{step}"
    partial = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=PARTIAL, dir=run_dir))
    try:
        write(partial)
        (partial / MARK).unlink(missing_ok=True)  # that of a copy
        files = sorted(path for path in partial.rglob("*") if path.is_file())
        sizes = {path.relative_to(partial).as_posix(): path.stat().st_size for path in files}
        mark = {"format": _FORMAT, "step": step, "file_bytes": sizes}
        (partial / MARK).write_text(json.dumps(mark, indent=1) + "\n", "utf-8")
        partial.chmod(0o755)
        for path in (*partial.rglob("*"), partial):
            _sync(path)
        if final.exists():
            remove(final)
        partial.rename(final)
        _sync(run_dir)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def rotate(run_dir: Path, keep: int | None) -> None:
    """Delete all but the `keep` newest complete checkpoints; None keeps all. What is damaged does not count as kept."""
    if keep is None:
        return
    good = [checkpoint for checkpoint in complete(run_dir) if damage(checkpoint.path) is None]
    for checkpoint in good[:-keep]:
        remove(checkpoint.path)


def remove(checkpoint: Path) -> None:
    """Delete a checkpoint: at whatever moment this is stopped, no half of it passes for a whole one."""
    doomed = checkpoint.with_name(f".{checkpoint.name}{PARTIAL}")
    shutil.rmtree(doomed, ignore_errors=True)
    checkpoint.rename(doomed)
    shutil.rmtree(doomed)


def clear_partial(run_dir: Path) -> None:
    """Remove what killed processes left half-written or half-deleted. Only for the holder of the folder's lock."""
    for path in run_dir.glob(f".*{PARTIAL}"):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def open_checkpoint(path: Path) -> Checkpoint:
    """A checkpoint that the user named; UserError if it is none, or damaged."""
    step = step_of(path)
    if step is None or not (path / MARK).is_file():
        raise UserError(
            f"{path} is not a complete checkpoint: that is a folder global_step_N of a run directory with {MARK} in "
            f"it, which is written last. Set trainer.resume_from_path to such a folder, or resume_mode=auto to find "
            f"the newest."
        )
    if (problem := damage(path)) is not None:
        raise UserError(f"The checkpoint {path} is damaged: {problem}. Name an earlier one, or copy this one again.")
    return Checkpoint(step, path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
