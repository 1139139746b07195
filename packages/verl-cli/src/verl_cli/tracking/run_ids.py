"""`trackers.json`: under which id each service knows the run, so that a resumed run goes on as the same one."""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

TRACKERS_FILE = "trackers.json"


class RunIds:
    """The ids of a run at its services, and up to which step their rows are known to be complete.

    Shared by the threads of all loggers. A file that cannot be read counts as empty: the services then get a new run.
    """

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / TRACKERS_FILE
        self._lock = threading.Lock()
        try:
            found: Any = json.loads(self._path.read_text("utf-8"))
        except (OSError, ValueError):
            found = {}
        self._entries: dict[str, dict[str, Any]] = found if isinstance(found, dict) else {}

    def id(self, service: str) -> str | None:
        """The id of the run at a service; None if it has none yet."""
        value = self._entries.get(service, {}).get("id")
        return value if isinstance(value, str) else None

    def complete(self, service: str) -> int:
        """The last step whose rows the service has for certain; -1 if there is none."""
        value = self._entries.get(service, {}).get("complete", -1)
        return value if isinstance(value, int) else -1

    def write(self, service: str, run_id: str, *, complete: int | None = None) -> None:
        """Note the id of the run at a service and, where it matters, the last step whose rows it has."""
        with self._lock:
            entry: dict[str, Any] = {"id": run_id}
            if complete is not None:
                entry["complete"] = complete
            if self._entries.get(service) != entry:
                self._entries[service] = entry
                partial = self._path.with_name(f".{TRACKERS_FILE}.{os.getpid()}.partial")
                partial.write_text(json.dumps(self._entries, indent=2) + "\n", "utf-8")
                partial.replace(self._path)


class Progress:
    """Which steps a service has that neither forgets rows nor refuses to take them twice.

    The rows of a step are complete once a later step is logged. A resumed run logs steps again that the killed process
    had logged already; they are the same, and `skip` keeps them from showing twice.
    """

    def __init__(self, ids: RunIds, service: str, run_id: str) -> None:
        self._ids, self._service, self._run_id = ids, service, run_id
        self._complete = ids.complete(service)
        self._logged = self._complete
        ids.write(service, run_id, complete=self._complete)

    def skip(self, step: int) -> bool:
        """Whether the service has the rows of this step from an earlier process."""
        return step <= self._complete

    def logged(self, step: int) -> None:
        """Note that rows of this step were given; all earlier steps are complete."""
        if step > self._logged:
            self._logged = step
            with suppress(OSError):  # a full disk: the row itself was delivered
                self._ids.write(self._service, self._run_id, complete=step - 1)

    def finished(self) -> None:
        """Note that everything was delivered."""
        self._ids.write(self._service, self._run_id, complete=self._logged)
