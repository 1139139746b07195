"""How a run failed, from its error.log."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_ENTRY = re.compile(r"^===== .* =====$", re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):\n"


@dataclass(frozen=True)
class Failure:
    """The last failure of a run.

    Attributes:
        what: the exception and its message, the first line of it.
        where: phase and step, as far as they are known.
        log: what error.log says of it.
    """

    what: str
    where: str
    log: str


def last_failure(log: str) -> Failure | None:
    """The last entry of an error.log, to which every failure appends one; None where it is empty."""
    entry = log[max((match.start() for match in _ENTRY.finditer(log)), default=0) :].strip()
    if not entry:
        return None
    # Of chained exceptions the last is the one that ended the run; its message is the first line that is not indented.
    _, found, after = entry.rpartition(_TRACEBACK)
    lines = after.splitlines() if found else entry.splitlines()
    what = next((line for line in lines if line and not line.startswith((" ", "====="))), lines[0])
    fields = dict(re.findall(r"^(step|phase): (.+)$", entry.partition(_TRACEBACK)[0], re.MULTILINE))
    known = [f"{name} {fields[name]}" for name in ("phase", "step") if fields.get(name, "none") != "none"]
    return Failure(what, " of ".join(known), entry)


def is_current(run_dir: Path, log: Path) -> bool:
    """Whether a log is of the run's last attempt: starting and going on write config.yaml, ending writes a summary."""
    if not log.exists():
        return False
    config, summary = run_dir / "config.yaml", run_dir / "summary.json"
    later = [path for path in (config, summary) if path.exists()]
    return all(path.stat().st_mtime_ns <= log.stat().st_mtime_ns for path in later)
