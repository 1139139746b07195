"""`trackers.json`: under which id each service knows the run, so that a resumed run goes on as the same one."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

TRACKERS_FILE = "trackers.json"


class RunIds:
    """The ids of a run at its services.

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

    def write(self, service: str, run_id: str) -> None:
        """Note the id of the run at a service."""
        with self._lock:
            entry: dict[str, Any] = {"id": run_id}
            if self._entries.get(service) != entry:
                self._entries[service] = entry
                partial = self._path.with_name(f".{TRACKERS_FILE}.{os.getpid()}.partial")
                partial.write_text(json.dumps(self._entries, indent=2) + "\n", "utf-8")
                partial.replace(self._path)
