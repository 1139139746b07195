"""Keeps a third-party logger away from the training: its own thread, a bounded buffer, and no fault that gets out."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verl_cli.tracking.interface import Tracker, say, told

#: Records that wait for a logger; one is enough for a step, so a full buffer means that the logger hangs.
BUFFERED_RECORDS = 1000
#: Seconds that the end of a run waits for a logger.
CLOSE_SECONDS = 120.0
#: Seconds between the attempts at a record.
PAUSES = (1.0, 5.0)
#: Records lost one after the other after which a logger is given up.
GIVE_UP_AFTER = 5


class BackgroundTracker:
    """A tracker that another thread starts, feeds and closes.

    Whatever the logger raises is told once; a record is tried three times, and a logger that loses five in a row, or
    does not start, is given up. One that hangs holds up nothing: records wait in a buffer, and are dropped when it is
    full. At the end `close` waits for a limited time and says how many records the logger does not have; metrics.jsonl
    has them all.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], Tracker],
        *,
        buffered_records: int = BUFFERED_RECORDS,
        close_seconds: float = CLOSE_SECONDS,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        self._name, self._start = name, start
        self._buffered_records, self._close_seconds, self._pauses = buffered_records, close_seconds, pauses
        self._records: deque[Callable[[Tracker], None]] = deque()
        self._change = threading.Condition()
        self._ending = threading.Event()
        self._closed = False
        self._reported = False
        self._given_up = False
        self._given, self._delivered, self._lost_in_a_row = 0, 0, 0
        # A daemon: a logger that hangs must not keep the process alive either.
        self._thread = threading.Thread(target=self._run, name=f"{name} logger", daemon=True)
        self._thread.start()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand over one row. A value that is no number is a fault of this program and is raised here."""
        row = {name: float(value) for name, value in metrics.items()}
        self._put(lambda tracker: tracker.log(step, row))

    def log_samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Hand over validation samples."""
        rows = [dict(sample) for sample in samples]
        self._put(lambda tracker: tracker.log_samples(step, rows))

    def end(self) -> None:
        """Tell the logger that nothing more comes, without waiting for it."""
        with self._change:
            self._ending.set()
            self._change.notify()

    def close(self) -> None:
        """Wait until the logger has everything, or for its time limit."""
        if self._closed:
            return
        self._closed = True
        self.end()
        self._thread.join(self._close_seconds)
        hangs = self._thread.is_alive()
        if lost := self._given - self._delivered:
            waited = f" did not answer within {self._close_seconds:g} s and" if hangs else ""
            say(
                f"The {self._name} logger{waited} lacks {lost} of {self._given} records of this run; metrics.jsonl has "
                f"all metrics."
            )
        elif hangs:
            say(
                f"The {self._name} logger did not finish within {self._close_seconds:g} s and is left alone; "
                f"metrics.jsonl has all metrics."
            )

    def _put(self, record: Callable[[Tracker], None]) -> None:
        with self._change:
            self._given += 1
            if self._given_up:
                return
            if len(self._records) < self._buffered_records:
                self._records.append(record)
                self._change.notify()
                return
        self._report(
            f"The {self._name} logger has not taken a record for {self._buffered_records} records; new ones are dropped"
        )

    def _take(self) -> Callable[[Tracker], None] | None:
        """The next record; None when there will be no more."""
        with self._change:
            while not self._records and not self._ending.is_set():
                self._change.wait()
            return self._records.popleft() if self._records else None

    def _run(self) -> None:
        try:
            tracker = self._start()
        except (Exception, SystemExit) as error:  # noqa: BLE001 (a third party: it raises types of its own)
            self._give_up()
            self._report(f"The {self._name} logger could not be started ({told(error)})")
            return
        while not self._given_up and (record := self._take()) is not None:
            self._deliver(tracker, record)
        try:
            tracker.close()
        except (Exception, SystemExit) as error:  # noqa: BLE001 (as above)
            self._report(f"The {self._name} logger could not be closed ({told(error)})")

    def _deliver(self, tracker: Tracker, record: Callable[[Tracker], None]) -> None:
        """Give one record to the logger, several times if it fails."""
        for pause in (*self._pauses, None):
            try:
                record(tracker)
            except (Exception, SystemExit) as error:  # noqa: BLE001 (as above)
                if pause is not None:
                    self._ending.wait(pause)
                    continue
                self._report(f"The {self._name} logger lost a record ({told(error)})")
                self._lost_in_a_row += 1
                if self._lost_in_a_row == GIVE_UP_AFTER:
                    self._give_up()
                    say(f"The {self._name} logger is given up: it lost {GIVE_UP_AFTER} records in a row.")
            else:
                self._delivered += 1
                self._lost_in_a_row = 0
            return

    def _give_up(self) -> None:
        with self._change:
            self._given_up = True
            self._records.clear()

    def _report(self, what: str) -> None:
        if not self._reported:
            self._reported = True
            say(f"{what}. Training goes on; further faults of it are only counted.")
