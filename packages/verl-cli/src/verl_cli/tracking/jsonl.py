"""The tracker of `metrics.jsonl`."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path


class JsonlTracker:
    """One JSON object a line: `{"step": 3, "data": {"critic/score/mean": 0.25}}`.

    A line is in the file when `log` returns; a reader never meets half a line, except at the end of a run that was
    killed while writing it: the next run that appends to the file removes it. Numbers that are not finite are null.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a+b", buffering=0)
        self._end = self._end_of_last_line()
        self._file.truncate(self._end)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line. Where that fails, the file is left as it was before and the OSError is raised."""
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

    def close(self) -> None:
        """Bring the file to the disk and close it."""
        if not self._file.closed:
            try:
                os.fsync(self._file.fileno())
            finally:
                self._file.close()

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


def _json_number(value: float) -> float | int | None:
    """The value as JSON has it: integers stay integers, numbers that are not finite become null."""
    if isinstance(value, int):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else None
