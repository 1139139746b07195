"""The Weights & Biases logger."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from verl_cli.config.keys import nest
from verl_cli.tracking.interface import RunInfo, say, told
from verl_cli.tracking.jsonl import cut_rows
from verl_cli.tracking.network import reachable
from verl_cli.tracking.run_ids import RunIds

_SERVICE = "wandb"
_TABLE = "val/generations"
#: Validation samples of the run so far: the table shows them all, also after a resume.
_TABLE_ROWS = "val_generations.jsonl"


class WandbTracker:
    """One run of a wandb project; offline where there is no API key or no network, which it says.

    The service drops rows of steps that it has already, so a resumed run, which sends all of its earlier rows again,
    shows none twice; an offline file may lack the last rows of a process that was killed. Rows of one step, such as
    those of training and of validation, become one.

    Environment: WANDB_ENTITY, WANDB_MODE, WANDB_DIR and everything else that wandb reads itself.
    """

    def __init__(self, run: RunInfo, ids: RunIds) -> None:
        import wandb

        self._wandb: Any = wandb
        folder = Path(os.environ.get("WANDB_DIR") or run.directory)
        folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.setup().settings
        mode, reason = _mode(settings.base_url)
        arguments: dict[str, Any] = {
            "project": run.project,
            "entity": os.environ.get("WANDB_ENTITY") or None,
            "name": run.name,
            "config": nest(run.config),
            "dir": str(folder),
            "id": ids.id(_SERVICE) or os.environ.get("WANDB_RUN_ID") or None,
            # The time limits keep a network that swallows everything from holding up the start and the end.
            "settings": wandb.Settings(
                silent=True, console="off", reinit="create_new", init_timeout=60, finish_timeout=100
            ),
        }
        if mode == "online":
            try:
                self._run: Any = self._wandb.init(mode="online", resume="allow", **arguments)
            except wandb.Error as error:
                mode, reason = "offline", f"it could not start online: {told(error)}"
        if mode != "online":
            self._run = self._wandb.init(mode=mode, **arguments)
        ids.write(_SERVICE, self._run.id)
        if mode == "online":
            say(f"wandb: {self._run.url}")
        elif mode == "offline":
            where = Path(self._run.dir).parent
            say(f"wandb writes offline to {where} ({reason}); upload it with: wandb sync {where}")
        self._table_rows = folder / "wandb" / _TABLE_ROWS
        self._table_rows.parent.mkdir(exist_ok=True)
        cut_rows(self._table_rows, -1 if run.resumed_from is None else run.resumed_from)
        for step, metrics in run.earlier:
            self.log(step, metrics)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the metrics to the step's row."""
        self._run.log(dict(metrics), step=step)

    def log_samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to the table of samples, and log the whole table: the page shows only the last one."""
        given = [{"step": step, **sample} for sample in samples]
        text = self._table_rows.read_text("utf-8") if self._table_rows.exists() else ""
        rows = [*(json.loads(line) for line in text.split("\n")[:-1]), *given]
        columns = list(dict.fromkeys(name for row in rows for name in row))
        data = [[_cell(row.get(name)) for name in columns] for row in rows]
        self._run.log({_TABLE: self._wandb.Table(columns=columns, data=data)}, step=step)
        with self._table_rows.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in given))

    def close(self) -> None:
        """Deliver what is left and end the run."""
        self._run.finish()


def _cell(value: Any) -> Any:
    """A table's column must hold one type: numbers stay, all else is text."""
    return float(value) if isinstance(value, int | float) else None if value is None else str(value)


def _mode(base_url: str) -> tuple[str, str]:
    """The mode to start in, and why it is not online."""
    if (wanted := os.environ.get("WANDB_MODE", "online")) not in ("online", "run", "shared"):
        return wanted, f"WANDB_MODE={wanted}"
    if not _has_key(base_url):
        return "offline", "no API key: set WANDB_API_KEY or run `wandb login`"
    if not reachable(base_url):
        return "offline", f"{base_url} cannot be reached"
    return "online", ""


def _has_key(base_url: str) -> bool:
    """Whether wandb would find credentials; where it finds none it asks for them, which must not happen in a run."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    try:
        path = os.environ.get("NETRC") or next(
            (str(file) for name in (".netrc", "_netrc") if (file := Path.home() / name).exists()), None
        )
        return path is not None and netrc(path).authenticators(urlsplit(base_url).netloc) is not None
    except (OSError, NetrcParseError, RuntimeError):  # RuntimeError: there is no home directory
        return False
