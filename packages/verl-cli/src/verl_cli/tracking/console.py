"""Metrics on standard output: plain lines, or a live table with the time left where a person is watching."""

from __future__ import annotations

import errno
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from verl_cli.tracking.names import validation_results

_ROWS_SHOWN = 12

# Heading and metric of each column; of several metrics the first that is there is shown.
_COLUMNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("reward", ("critic/score/mean",)),
    ("KL to reference", ("actor/reward_kl_penalty", "actor/kl_loss")),
    ("length in tokens", ("response_length/mean",)),
    ("tokens/s", ("perf/throughput",)),
    ("s/step", ("perf/time_per_step", "timing_s/step")),
)


def _number(value: float) -> str:
    """A number with four significant digits, whole numbers in full."""
    if isinstance(value, int) or (math.isfinite(value) and value.is_integer() and abs(value) < 1e15):
        return str(int(value))
    return f"{value:.4g}"


def _plain_line(step: int, metrics: Mapping[str, float]) -> str:
    return " ".join([f"step: {step}", *(f"{name}: {_number(value)}" for name, value in metrics.items())])


def _row(metrics: Mapping[str, float]) -> dict[str, str]:
    """The cells of one step by heading, without those whose metric is missing."""
    cells = {}
    for heading, names in _COLUMNS:
        if (value := next((metrics[name] for name in names if name in metrics), None)) is not None:
            cells[heading] = _number(value)
    accuracies = [_number(metrics[result.name]) for result in validation_results(metrics)]
    if accuracies:
        cells["validation"] = " ".join(accuracies)
    return cells


class ConsoleTracker:
    """Shows the metrics of each step on a stream.

    Where the stream is no terminal, a step is one line of all its metrics: `step: 287 actor/pg_loss: 0.0123 ...`. On a
    terminal it is a row of a live table of the first validation and the last steps (reward, KL, length, throughput,
    validation) under a bar with the time left; what else is printed meanwhile scrolls above the table.
    """

    def __init__(
        self,
        total_steps: int,
        stream: TextIO | None = None,
        *,
        first_step: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Show steps up to `total_steps`, of which `first_step` were done before this process began."""
        self._console = Console(file=stream if stream is not None else sys.stdout)
        self._first_validation: tuple[int, dict[str, str]] | None = None
        self._steps: deque[tuple[int, dict[str, str]]] = deque(maxlen=_ROWS_SHOWN)
        self._live: Live | None = None
        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            expand=True,
            # Seconds: the time left is estimated from the steps of this window; a step may take many minutes.
            speed_estimate_period=6 * 3600,
            get_time=clock,
        )
        self._task = self._progress.add_task("training", total=total_steps, completed=first_step)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show one step; metrics of a step that was shown already join its row."""
        if not self._console.is_terminal or self._console.is_dumb_terminal:
            self._write(_plain_line(step, metrics))
            return
        cells = _row(metrics)
        if self._steps and self._steps[-1][0] == step:
            self._steps[-1][1].update(cells)
        else:
            self._steps.append((step, cells))
        if self._first_validation is None and "validation" in cells:
            self._first_validation = self._steps[-1]
        self._progress.update(self._task, completed=step)
        # The table is made here, not by the thread that refreshes the clocks, which must not see it half-changed.
        shown = Group(self._progress, _table(self._rows()))
        if self._live is None:
            self._live = Live(shown, console=self._console, refresh_per_second=2)
            self._live.start()
        self._live.update(shown, refresh=True)

    def log_samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Show validation responses, a line each."""
        for sample in samples:
            line = (
                f"step {step}: {sample['prompt']!r} -> {sample['generation']!r} "
                f"(ground truth {sample['ground_truth']!r}, score {sample['score']:g})"
            )
            if self._live is None:
                self._write(line)
            else:
                self._console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)

    def _write(self, line: str) -> None:
        """Write a line as it is. A stream that was closed under us is a medium that fails, like a full disk."""
        if self._console.file.closed:
            raise OSError(errno.EBADF, "the stream is closed")
        self._console.file.write(line + "\n")
        self._console.file.flush()

    def _rows(self) -> list[tuple[int, dict[str, str]]]:
        """The rows to show: the first validation stays when its step has left the last ones."""
        first = self._first_validation
        kept = [first] if first is not None and first[0] < self._steps[0][0] else []
        return [*kept, *self._steps]

    def close(self) -> None:
        """Leave the last table on the terminal and end its refreshing."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _table(steps: Iterable[tuple[int, dict[str, str]]]) -> Table:
    """The last steps as a table with only the columns that have a value."""
    rows = list(steps)
    headings = [*(heading for heading, _ in _COLUMNS), "validation"]
    shown = [heading for heading in headings if any(heading in cells for _, cells in rows)]
    table = Table("step", *shown, expand=True)
    for column in table.columns:
        column.justify = "right"
    for step, cells in rows:
        table.add_row(str(step), *(cells.get(heading, "") for heading in shown))
    return table
