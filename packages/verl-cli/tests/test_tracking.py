"""Trackers: what stands in metrics.jsonl and on the console, and what happens when a medium fails."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_cli.errors import UserError
from verl_cli.tracking import ConsoleTracker, JsonlTracker, trackers_for, validation_results

Metrics = dict[str, float]


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
    assert "0.125" not in last, "only the last steps are shown"
    assert last.count("1234") == 12


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
    for number, names in enumerate((["console"], ["file"], [], ["console", "file"])):
        tracker = trackers_for(names, tmp_path / str(number), total_steps=1)
        tracker.log(1, {"critic/score/mean": 0.5})
        tracker.close()
        assert read(tmp_path / str(number) / "metrics.jsonl") == [{"step": 1, "data": {"critic/score/mean": 0.5}}]
        assert capsys.readouterr().out == ("step: 1 critic/score/mean: 0.5\n" if "console" in names else "")


def test_an_unknown_logger_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"trainer\.logger names wandb, .* console, file and jsonl"):
        trackers_for(["console", "wandb"], tmp_path / "run", total_steps=1)
    assert not (tmp_path / "run").exists()


FAULTS = """
import resource, signal, sys
from pathlib import Path
from verl_cli.tracking import trackers_for

tracker = trackers_for(["console"], Path(sys.argv[1]), total_steps=9)
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
    assert lines[1].startswith("The file tracker could not record step 4: [Errno 27]")
    assert lines[2] == "trained to the end"
    assert [row["step"] for row in read(tmp_path / "metrics.jsonl")] == [1, 2, 3]


def test_a_fault_of_the_program_is_not_swallowed(tmp_path: Path) -> None:
    tracker = trackers_for([], tmp_path, total_steps=1)
    with pytest.raises((TypeError, ValueError)):
        tracker.log(1, {"critic/score/mean": "high"})  # type: ignore[dict-item]
    tracker.close()
