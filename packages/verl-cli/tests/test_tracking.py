"""Trackers: what stands in metrics.jsonl and on the console, and what happens when a medium fails."""

from __future__ import annotations

import importlib.machinery
import io
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_cli.config import TrainerConfig
from verl_cli.errors import UserError
from verl_cli.tracking import (
    LOGGERS,
    BackgroundTracker,
    ConsoleTracker,
    JsonlTracker,
    Tracker,
    Trackers,
    check_loggers,
    cut_rows,
    last_step,
    read_rows,
    trackers_for,
    validation_results,
)

Metrics = dict[str, float]
SAMPLE = {"prompt": "1+1=", "generation": " 2\n", "ground_truth": "2", "score": 0.5, "data_source": "addition"}


def trackers(logger: list[str], run_dir: Path, *, resumed_from: int | None = None) -> Trackers:
    return trackers_for(TrainerConfig(logger=logger), run_dir, 9, {"trainer.logger": logger}, resumed_from)


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.dictionaries(st.text(max_size=20), st.floats() | st.integers(), max_size=5))
    )
)
def test_every_line_is_the_step_as_it_was_logged(rows: list[tuple[int, Metrics]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run" / "metrics.jsonl"
        tracker = JsonlTracker(path)
        for step, metrics in rows:
            tracker.log(step, metrics)
        tracker.close()
        tracker.close()
        # JSON text is split at line feeds only: names may hold other line breaks.
        lines = path.read_text("utf-8").split("\n")[:-1]
    assert len(lines) == len(rows)
    for line, (step, metrics) in zip(lines, rows, strict=True):
        finite = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        assert json.loads(line) == {"step": step, "data": finite}
        assert "NaN" not in line or any("NaN" in name for name in metrics)


def test_a_line_can_be_read_as_soon_as_it_is_logged(tmp_path: Path) -> None:
    tracker = JsonlTracker(tmp_path / "metrics.jsonl")
    tracker.log(0, {"actor/lr": 1e-6, "training/epoch": 0})
    assert read(tmp_path / "metrics.jsonl") == [{"step": 0, "data": {"actor/lr": 1e-6, "training/epoch": 0}}]
    tracker.close()


@pytest.mark.parametrize("torn", ["", '{"step": 2, "da', "x" * 200_000])
def test_a_line_torn_by_a_kill_is_removed_before_the_next_is_appended(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "data": {}}\n' + torn, "utf-8")
    tracker = JsonlTracker(path)
    tracker.log(2, {"a": 0.5})
    tracker.close()
    assert read(path) == [{"step": 1, "data": {}}, {"step": 2, "data": {"a": 0.5}}]


def test_a_file_that_is_cut_or_removed_while_it_is_open_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tracker = JsonlTracker(path)
    for step in (1, 2, 3):
        tracker.log(step, {})
    cut_rows(path, 2)
    tracker.log(3, {"again": 1})
    assert [row["step"] for row in read(path)] == [1, 2, 3]
    path.unlink()
    tracker.log(4, {})
    tracker.close()
    assert [row["step"] for row in read(path)] == [4]


def test_a_step_is_one_plain_line_where_the_stream_is_no_terminal() -> None:
    stream = io.StringIO()
    tracker = ConsoleTracker(total_steps=300, stream=stream)
    tracker.log(287, {"actor/pg_loss": 0.012345678, "perf/total_num_tokens": 3584.0, "actor/lr": 1e-6, "x": math.nan})
    tracker.close()
    assert stream.getvalue() == (
        "step: 287 actor/pg_loss: 0.01235 perf/total_num_tokens: 3584 actor/lr: 1e-06 x: nan\n"
    )


class Terminal(io.StringIO):
    """A stream that says that a person is watching."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_the_last_steps_and_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    tracker = ConsoleTracker(total_steps=20, stream=stream)
    tracker.log(0, {"val-core/addition/acc/mean@1": 0.125})
    for step in range(1, 21):
        tracker.log(step, {"critic/score/mean": step / 100, "response_length/mean": 2.5, "perf/throughput": 1234.0})
    tracker.log(20, {"val-core/addition/acc/mean@1": 0.875})
    tracker.close()
    tracker.close()
    last = stream.getvalue()[stream.getvalue().rindex("20/20") :]
    assert [name for name in ("reward", "length", "tokens/s", "validation", "KL") if name in last] == [
        "reward",
        "length",
        "tokens/s",
        "validation",
    ]
    assert "0.2 " in last
    assert "0.875" in last
    assert last.count("1234") == 12, "only the last steps are shown"
    assert "0.125" in last, "the first validation stays"


def test_the_time_left_after_a_resume_is_that_of_the_steps_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("NO_COLOR", "1")
    now = 1000.0
    stream = Terminal()
    tracker = ConsoleTracker(total_steps=100, stream=stream, first_step=90, clock=lambda: now)
    for step in (91, 92, 93):
        now += 60.0
        tracker.log(step, {"critic/score/mean": 0.5})
    tracker.close()
    last = stream.getvalue()[stream.getvalue().rindex("93/100") :]
    assert "left 0:07:00" in " ".join(last.split())


def test_validation_samples_are_shown_as_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "step 3: '1+1=' -> ' 2\\n' (ground truth '2', score 0.5)\n"
    stream = io.StringIO()
    ConsoleTracker(total_steps=9, stream=stream).log_samples(3, [SAMPLE, SAMPLE])
    assert stream.getvalue() == shown * 2
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    tracker = ConsoleTracker(total_steps=9, stream=terminal)
    tracker.log(3, {"critic/score/mean": 0.5})
    tracker.log_samples(3, [SAMPLE | {"prompt": "[bold]:smile:" + "x" * 200}])
    tracker.close()
    assert "'[bold]:smile:" + "x" * 200 + "' -> ' 2\\n'" in terminal.getvalue()


def test_validation_results_prefer_accuracy_and_the_most_sequences() -> None:
    names = [
        "val-core/openai/gsm8k/reward/mean@1",
        "val-core/openai/gsm8k/acc/mean@1",
        "val-core/openai/gsm8k/acc/mean@16",
        "val-core/addition/reward/mean@4",
        "val-core/addition/reward/best@4",
        "val-aux/addition/reward/mean@2",
        "critic/score/mean",
    ]
    assert [(result.source, result.variable, result.n) for result in validation_results(names)] == [
        ("addition", "reward", 4),
        ("openai/gsm8k", "acc", 16),
    ]


def test_the_file_is_always_written_and_the_console_where_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, names in enumerate((["console"], ["file"], ["jsonl"], [], ["console", "file"])):
        tracker = trackers(names, tmp_path / str(number))
        tracker.log(1, {"critic/score/mean": 0.5})
        tracker.log_samples(1, [SAMPLE])
        tracker.sync()
        tracker.close()
        assert read(tmp_path / str(number) / "metrics.jsonl") == [{"step": 1, "data": {"critic/score/mean": 0.5}}]
        shown = capsys.readouterr().out.splitlines()
        assert len(shown) == (2 if "console" in names else 0)
        assert not shown or shown[0] == "step: 1 critic/score/mean: 0.5"


def test_an_unknown_logger_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"trainer\.logger names wandbb, .* choose among console, .*, wandb, mlflow"):
        trackers(["console", "wandbb"], tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_every_logger_passes_the_check_where_the_extras_are_installed() -> None:
    check_loggers(LOGGERS)


@pytest.mark.parametrize(
    ("logger", "module"),
    [
        ("wandb", "wandb"),
        ("tensorboard", "tensorboard"),
        ("mlflow", "mlflow"),
        ("mlflow", "sqlalchemy"),
        ("swanlab",) * 2,
    ],
)
def test_a_logger_without_its_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, logger: str, module: str
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setitem(sys.modules, module, None)  # how Python notes that there is no such module
    with pytest.raises(UserError, match=rf"`pip install 'verl-cli\[{logger}\]'`") as raised:
        trackers(["console", logger], tmp_path / "run")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_all_missing_packages_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("wandb", "swanlab"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=r"names wandb and swanlab, .*`pip install 'verl-cli\[wandb,swanlab\]'`"):
        check_loggers(["wandb", "console", "swanlab"])


def test_a_folder_called_wandb_is_not_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "wandb").mkdir()  # as offline runs leave it in the working directory

    class OnlyTheFolder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
            return importlib.machinery.PathFinder.find_spec(name, [str(tmp_path)]) if name == "wandb" else None

    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(sys, "meta_path", [OnlyTheFolder, *sys.meta_path])
    with pytest.raises(UserError, match=r"verl-cli\[wandb\]"):
        check_loggers(["wandb"])


FAULTS = """
import resource, signal, sys
from pathlib import Path
from verl_cli.config import TrainerConfig
from verl_cli.tracking import trackers_for

tracker = trackers_for(TrainerConfig(logger=["console"]), Path(sys.argv[1]), 9, {})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (150, resource.RLIM_INFINITY))
for step in range(1, 10):
    tracker.log(step, {"critic/score/mean": step / 10})
tracker.close()
print("trained to the end", file=sys.stderr, flush=True)
import os
os._exit(0)  # standard output cannot be flushed: the interpreter's own complaint is not the subject here
"""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_reported_once_for_each_tracker_and_stops_nothing(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-c", FAULTS, str(tmp_path)]
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env={**os.environ, "NO_COLOR": "1"}
        )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("The console tracker could not record step 1: [Errno 28]")
    assert "Free some space. Training goes on" in lines[0]
    assert lines[1].startswith("The file tracker could not record step 4: [Errno 27]")
    assert lines[2] == "trained to the end"
    assert [row["step"] for row in read(tmp_path / "metrics.jsonl")] == [1, 2, 3]


STDOUT = """
import os, sys
from pathlib import Path
from verl_cli.config import TrainerConfig
from verl_cli.tracking import trackers_for

if sys.argv[2] == "closes":
    sys.stdout.close()
tracker = trackers_for(TrainerConfig(logger=["console"]), Path(sys.argv[1]), 3, {})
for step in range(1, 4):
    tracker.log(step, {"critic/score/mean": step / 10})
    tracker.log_samples(step, [{"prompt": "p", "generation": "g", "ground_truth": "t", "score": 1.0}])
tracker.close()
print("trained to the end", file=sys.stderr, flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("case", ["is absent", "closes", "is read no more"])
def test_standard_output_that_is_gone_stops_nothing(tmp_path: Path, case: str) -> None:
    command = [sys.executable, "-c", STDOUT, str(tmp_path), case]
    if case == "is absent":
        command = ["sh", "-c", 'exec "$@" >&-', "sh", *command]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    lines = done.stderr.splitlines()
    assert lines[-1] == "trained to the end"
    assert [line[:44] for line in lines[:-1]] == (
        [] if case == "is absent" else ["The console tracker could not record step 1:"]
    )
    assert [row["step"] for row in read(tmp_path / "metrics.jsonl")] == [1, 2, 3]


def test_a_fault_of_the_program_is_not_swallowed(tmp_path: Path) -> None:
    tracker = trackers([], tmp_path)
    with pytest.raises((TypeError, ValueError)):
        tracker.log(1, {"critic/score/mean": "high"})  # type: ignore[dict-item]
    tracker.close()
    logger = BackgroundTracker("any", Recorder)
    with pytest.raises(ValueError, match="high"):
        logger.log(1, {"critic/score/mean": "high"})  # type: ignore[dict-item]
    logger.close()


class Recorder:
    """The logger of a third party: remembers what it was given, and fails as it is told."""

    def __init__(self, faults: Sequence[BaseException | None] = (), *, at_close: BaseException | None = None) -> None:
        self.calls: list[tuple[int, list[str]]] = []
        self.samples: list[tuple[int, int]] = []
        self.closed = 0
        self._faults = list(faults)
        self._at_close = at_close

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._faults and (fault := self._faults.pop(0)) is not None:
            raise fault
        self.calls.append((step, list(metrics)))

    def log_samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        self.samples.append((step, len(samples)))

    def close(self) -> None:
        self.closed += 1
        if self._at_close is not None:
            raise self._at_close


class ServiceError(Exception):
    """A type that only the third party knows."""


def background(start: Any, **settings: Any) -> BackgroundTracker:
    return BackgroundTracker("service", start, pauses=(0.0, 0.0), **settings)


def test_every_call_carries_its_own_step() -> None:
    """G10: metrics of one step spread over several steps."""
    backend = Recorder()
    tracker = background(lambda: backend)
    for part in range(5):
        tracker.log(7, {f"part{part}": 1.0})
    tracker.log(8, {"training": 1.0})
    tracker.log(8, {"validation": 1.0})
    tracker.log_samples(8, [SAMPLE])
    tracker.close()
    tracker.close()
    assert [step for step, _ in backend.calls] == [7] * 5 + [8] * 2
    assert [names for _, names in backend.calls] == [[f"part{part}"] for part in range(5)] + [
        ["training"],
        ["validation"],
    ]
    assert backend.samples == [(8, 1)]
    assert backend.closed == 1


def test_a_row_is_what_it_was_when_it_was_logged() -> None:
    gate, seen = threading.Event(), []

    class Slow(Recorder):
        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            gate.wait(60)
            seen.append(dict(metrics))

    tracker = background(Slow)
    row = {"a": 1.0}
    tracker.log(1, row)
    row["a"] = 2.0
    gate.set()
    tracker.close()
    assert seen == [{"a": 1.0}]


@pytest.mark.parametrize("fault", [ServiceError("no such project\nsecond line"), RuntimeError("x"), SystemExit(1)])
def test_a_logger_that_does_not_start_is_reported_once(
    fault: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    def start() -> Tracker:
        raise fault

    tracker = background(start)
    for step in range(3):
        tracker.log(step, {"a": 1.0})
    tracker.close()
    told = type(fault).__name__ + ": " + str(fault).split("\n")[0]
    assert capsys.readouterr().err.splitlines() == [
        f"The service logger could not be started ({told}). Training goes on; further faults of it are only counted.",
        "The service logger lacks 3 of 3 records of this run; metrics.jsonl has all metrics.",
    ]


def test_a_fault_that_passes_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    backend = Recorder([ServiceError("busy"), OSError("busy"), None, None, RuntimeError("busy")])
    tracker = background(lambda: backend)
    for step in range(3):
        tracker.log(step, {"a": 1.0})
    tracker.close()
    assert [step for step, _ in backend.calls] == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_a_record_that_fails_three_times_is_lost_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    backend = Recorder([None, *[ServiceError("refused")] * 3], at_close=ServiceError("still refused"))
    tracker = background(lambda: backend)
    for step in range(4):
        tracker.log(step, {"a": 1.0})
    tracker.close()
    assert [step for step, _ in backend.calls] == [0, 2, 3]
    assert capsys.readouterr().err.splitlines() == [
        (
            "The service logger lost a record (ServiceError: refused). Training goes on; further faults of it are only "
            "counted."
        ),
        "The service logger lacks 1 of 4 records of this run; metrics.jsonl has all metrics.",
    ]


def test_a_logger_that_loses_everything_is_given_up_and_still_closed(capsys: pytest.CaptureFixture[str]) -> None:
    backend = Recorder([SystemExit(3)] * 1000)
    tracker = background(lambda: backend)
    for step in range(30):
        tracker.log(step, {"a": 1.0})
    tracker.close()
    assert backend.calls == [] and backend.closed == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("The service logger lost a record (SystemExit: 3).")
    assert lines[1:] == [
        "The service logger is given up: it lost 5 records in a row.",
        "The service logger lacks 30 of 30 records of this run; metrics.jsonl has all metrics.",
    ]


@pytest.mark.parametrize("where", ["start", "log", "close"])
def test_a_logger_that_hangs_holds_up_nothing(where: str, capsys: pytest.CaptureFixture[str]) -> None:
    gate = threading.Event()

    class Hanging(Recorder):
        def __init__(self) -> None:
            super().__init__()
            self.hang("start")

        def hang(self, here: str) -> None:
            if here == where:
                gate.wait(60)

        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            self.hang("log")

        def close(self) -> None:
            self.hang("close")

    tracker = background(Hanging, buffered_records=3, close_seconds=2)
    rows = 2 if where == "close" else 20
    for step in range(rows):
        tracker.log(step, {"a": 1.0})
    tracker.close()
    gate.set()
    lines = capsys.readouterr().err.splitlines()
    if where == "close":
        assert lines == [
            "The service logger did not finish within 2 s and is left alone; metrics.jsonl has all metrics."
        ]
    else:
        assert lines == [
            (
                "The service logger has not taken a record for 3 records; new ones are dropped. Training goes on; "
                "further faults of it are only counted."
            ),
            (
                "The service logger did not answer within 2 s and lacks 20 of 20 records of this run; metrics.jsonl "
                "has all metrics."
            ),
        ]


def row_of(step: int, size: int = 0) -> str:
    return json.dumps({"step": step, "data": {"a": "x" * size}}) + "\n"


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 200)), max_size=12),
    st.integers(-1, 10),
    st.sampled_from(["", "{", '{"step": 1', '{"step": 1, "data": {}}']),
)
def test_rows_behind_the_checkpoint_are_cut(rows: list[tuple[int, int]], step: int, torn: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        path.write_text("".join(row_of(*row) for row in rows) + torn, "utf-8")
        cut_rows(path, step)
        kept = [row for row in rows if row[0] <= step]
        assert path.read_text("utf-8") == "".join(row_of(*row) for row in kept)
        assert last_step(path) == (kept[-1][0] if kept else None)
        cut_rows(path, step)
        assert path.read_text("utf-8") == "".join(row_of(*row) for row in kept)
        assert list(Path(folder).iterdir()) == [path]


def test_rows_are_read_as_they_were_logged(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert list(read_rows(path)) == []
    tracker = JsonlTracker(path)
    tracker.log(1, {"a": 0.5, "b": math.inf})
    tracker.close()
    with path.open("a") as file:
        file.write('{"step": 2, "da')
    ((step, metrics),) = read_rows(path)
    assert step == 1 and metrics["a"] == 0.5 and math.isnan(metrics["b"])


def test_a_file_that_is_not_there_needs_no_cut(tmp_path: Path) -> None:
    cut_rows(tmp_path / "metrics.jsonl", 3)
    assert list(tmp_path.iterdir()) == []
    assert last_step(tmp_path / "metrics.jsonl") is None


def test_a_file_without_rows_to_cut_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(row_of(1), "utf-8")
    path.chmod(0o640)
    before = path.stat()
    cut_rows(path, 1)
    assert path.stat().st_ino == before.st_ino
    path.write_text(row_of(1) + row_of(2), "utf-8")
    cut_rows(path, 1)
    assert path.stat().st_mode == before.st_mode


@pytest.mark.parametrize("line", ["{", "[1]", '{"data": {}}', '{"step": "1"}', "null"])
def test_a_file_that_no_run_wrote_is_refused_and_left_alone(tmp_path: Path, line: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(row_of(1) + line + "\n" + row_of(2), "utf-8")
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"Line 2 of .*metrics\.jsonl is not a row of a run"):
        cut_rows(path, 1)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
