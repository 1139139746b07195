"""The tracker of `metrics.jsonl`, and what a resumed run does with such files."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_cli.errors import UserError


class JsonlTracker:
    """One JSON object a line: `{"step": 3, "data": {"critic/score/mean": 0.25}}`.

    A line is in the file when `log` returns, and on the disk after `sync`; a reader never meets half a line, except at
    the end of a run that was killed while writing it: the next run that appends to the file removes it. Numbers that
    are not finite are null. A file that was replaced (`cut_rows`) or removed meanwhile is opened anew.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._open()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line. Where that fails, the file is left as it was before and the OSError is raised."""
        if not self._path.exists() or not os.path.samestat(self._path.stat(), os.fstat(self._file.fileno())):
            self._file.close()
            self._open()
        data = {name: _json_number(value) for name, value in metrics.items()}
        line = json.dumps({"step": step, "data": data}, ensure_ascii=False, allow_nan=False).encode() + b"\n"
        try:
            written = 0
            while written < len(line):
                written += self._file.write(line[written:])
        except OSError:
            self._file.truncate(self._end)
            raise
        self._end += len(line)

    def log_samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Nothing: the samples have a file of their own, `val_samples.jsonl`."""

    def sync(self) -> None:
        """Bring the file to the disk, so that not even a power cut takes a line away."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Bring the file to the disk and close it."""
        if not self._file.closed:
            try:
                self.sync()
            finally:
                self._file.close()

    def _open(self) -> None:
        self._file = self._path.open("a+b", buffering=0)
        self._end = self._end_of_last_line()
        self._file.truncate(self._end)

    def _end_of_last_line(self) -> int:
        """Offset in bytes behind the last line feed."""
        end = self._file.seek(0, os.SEEK_END)
        while end > 0:
            start = max(0, end - 65536)
            self._file.seek(start)
            found = self._file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
        return 0


def cut_rows(path: Path, last_step: int) -> None:
    """Remove every row behind `last_step` from a JSON-lines file whose rows have a "step", and a torn last line.

    The file is replaced at once, by one that is on the disk: whoever reads it meanwhile, or a kill, sees the old or the
    new one. A file that needs no cut is left alone, and one that is not there stays so.

    Raises:
        UserError: a row is not what a run writes.
        OSError: the new file cannot be written; the old one is then as it was.
    """
    if not path.exists():
        return
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    partial = Path(name)
    try:
        changed = False
        with os.fdopen(descriptor, "wb") as new, path.open("rb") as old:
            for number, line in enumerate(old, start=1):
                if line.endswith(b"\n") and _step(path, number, line) <= last_step:
                    new.write(line)
                else:
                    changed = True
            new.flush()
            os.fsync(new.fileno())
        if changed:
            partial.chmod(path.stat().st_mode & 0o777)
            partial.replace(path)
            _sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def last_step(path: Path) -> int | None:
    """The step of the last whole row of such a file; None if it has none or is not there."""
    if not path.exists():
        return None
    found = None
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                found = (number, line)
    return None if found is None else _step(path, *found)


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """The whole rows of a metrics.jsonl, in order; what is null there was not finite. Raises as `cut_rows` does."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):
                step, data = _step(path, number, line), json.loads(line).get("data", {})
                if not isinstance(data, dict):
                    raise UserError(f"Line {number} of {path} has no metrics. Restore the file as the run left it.")
                yield step, {name: math.nan if value is None else value for name, value in data.items()}


def _step(path: Path, number: int, line: bytes) -> int:
    try:
        step = json.loads(line)["step"]
    except (ValueError, TypeError, KeyError):
        step = None
    if not isinstance(step, int):
        raise UserError(
            f'Line {number} of {path} is not a row of a run ({{"step": ..., ...}}), so the run cannot go on from it. '
            f"Restore the file as the run left it, or remove that line."
        )
    return step


def _sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _json_number(value: float) -> float | int | None:
    """The value as JSON has it: integers stay integers, numbers that are not finite become null."""
    if isinstance(value, int):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else None
