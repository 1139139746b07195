"""The loggers of third parties, for real: what their own readers find after a run was killed and resumed."""

import json
import math
import os
import pty
import re
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_cli.tracking import RunInfo, network
from verl_cli.tracking.mlflow import MetricNames, MlflowTracker
from verl_cli.tracking.run_ids import RunIds
from verl_cli.tracking.tensorboard import TensorboardTracker

SCORE, ACCURACY, NAN = "critic/score/mean", "val-core/openai/gsm8k/acc/mean@4", "not finite"
KILLED_IN, CHECKPOINT, LAST = 6, 4, 8

RUN = """
import signal, sys
from pathlib import Path
from verl_cli.config import TrainerConfig
from verl_cli.tracking import trackers_for

logger, run_dir, first, last, resumed = sys.argv[1].split(","), Path(sys.argv[2]), *sys.argv[3:6]
config = TrainerConfig(logger=logger, project_name="sums", experiment_name="first try")
values = {"data.train_files": ["a.parquet"], "trainer.seed": 1, "trainer.device": None, "trainer.logger": logger}
tracker = trackers_for(config, run_dir, 8, values, int(resumed) if resumed else None)
for step in range(int(first), int(last) + 1):
    if step % 2 == 0:
        sample = {"prompt": "1+1=", "generation": f"{step}|`2`", "ground_truth": "2", "score": step / 8}
        tracker.log_samples(step, [sample, {**sample, "initial_generation": None}])
    tracker.log(step, {"critic/score/mean": step / 8, "not finite": float("nan")})
    if step % 2 == 0:
        tracker.log(step, {"val-core/openai/gsm8k/acc/mean@4": step / 16})
if sys.argv[6:] == ["then hang"]:
    signal.pause()
tracker.close()
print("trained to the end", flush=True)
"""


def environment(home: Path, **variables: str) -> dict[str, str]:
    """The environment of a user without settings of their own."""
    foreign = re.compile("WANDB|SWANLAB|MLFLOW|TENSORBOARD|NETRC|.*_proxy$", re.IGNORECASE)
    inherited = {name: value for name, value in os.environ.items() if not foreign.match(name)}
    silent = {"DO_NOT_TRACK": "true", "WANDB_ERROR_REPORTING": "false"}
    return inherited | silent | {"HOME": str(home), "NO_COLOR": "1"} | variables


def command(logger: str, run_dir: Path, first: int, last: int, resumed: int | None, *more: str) -> list[str]:
    numbers = [str(first), str(last), "" if resumed is None else str(resumed)]
    return [sys.executable, "-c", RUN, logger, str(run_dir), *numbers, *more]


def run_on_terminal(arguments: list[str], env: dict[str, str], folder: Path) -> str:
    """Run a command on a terminal, where wandb and swanlab would ask for a key, and return what it showed."""
    master, terminal = pty.openpty()
    child = subprocess.Popen(
        arguments,
        env=env | {"COLUMNS": "1000"},
        cwd=folder,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            shown += os.read(master, 65536)
        except OSError:  # the child has left the terminal
            break
    os.close(master)
    assert child.wait() == 0, shown.decode()
    assert "trained to the end" in shown.decode()
    return shown.decode()


def wait_for(what: Callable[[], bool]) -> None:
    """Wait until the loggers have written something, in their own time."""
    for _ in range(6000):
        try:
            if what():
                return
        except (OSError, ValueError, KeyError, sqlite3.Error):
            pass  # not there yet, or half there
        time.sleep(0.02)
    raise AssertionError("the loggers did not write what was logged")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in step 6, resumed from the checkpoint of step 4, and finished."""
    home = tmp_path_factory.mktemp("home")
    folder, everything = home / "run", "tensorboard,wandb,mlflow,swanlab"
    env = environment(home, WANDB_ENTITY="team")

    def everything_is_written() -> bool:
        ids = json.loads((folder / "trackers.json").read_text())
        database = f"file:{folder / 'mlflow' / 'mlflow.db'}?mode=ro"
        with closing(sqlite3.connect(database, uri=True)) as store:
            (steps,) = store.execute("select max(step) from metrics where key like 'val-core%'").fetchone()
        return "swanlab" in ids and "wandb" in ids and steps == KILLED_IN

    with (home / "log").open("w+") as log:
        killed = subprocess.Popen(
            command(everything, folder, 0, KILLED_IN, None, "then hang"), env=env, cwd=home, stdout=log, stderr=log
        )
        try:
            wait_for(everything_is_written)
        finally:
            killed.send_signal(signal.SIGKILL)
            killed.wait()
    metrics = folder / "metrics.jsonl"
    rows = metrics.read_text("utf-8").splitlines(keepends=True)
    metrics.write_text("".join(row for row in rows if json.loads(row)["step"] <= CHECKPOINT), "utf-8")
    resumed = command(everything, folder, CHECKPOINT + 1, LAST, CHECKPOINT)
    shown = run_on_terminal(resumed, env, home)
    assert " logger " not in shown
    (home / "shown").write_text(shown)
    # Everything that a run produces lies in its directory.
    assert not {"mlruns", "wandb", "swanlog", "runs", "tensorboard_log", "mlflow.db"} & {
        path.name for path in home.iterdir()
    }
    return folder


ALL_STEPS = list(range(LAST + 1))
EVEN_STEPS = ALL_STEPS[::2]


def events_of(folder: Path, tag: str) -> list[tuple[int, Any]]:
    """What TensorBoard shows of a tag: step and value."""
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    events: Any = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, make_ndarray(event.tensor_proto).tolist()) for event in events.Tensors(tag)]


def test_tensorboard_shows_every_step_once(run_dir: Path) -> None:
    folder = run_dir / "tensorboard"
    assert events_of(folder, SCORE) == [(step, step / 8) for step in ALL_STEPS]
    assert events_of(folder, ACCURACY) == [(step, step / 16) for step in EVEN_STEPS]
    assert str([value for _, value in events_of(folder, NAN)]) == str([math.nan] * len(ALL_STEPS))
    texts = events_of(folder, "val/generations/text_summary")
    assert [step for step, _ in texts] == EVEN_STEPS
    assert b"    8|`2`" in texts[-1][1][0]
    (config,) = events_of(folder, "config/text_summary")[-1][1]
    assert b"trainer.seed: 1" in config and b'data.train_files: ["a.parquet"]' in config


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of an offline file: chunks of a LevelDB log, in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    data, place, record = path.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        record += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last chunk
            found: Any = wandb_internal_pb2.Record()
            found.ParseFromString(record)
            record = b""
            yield found


def test_wandb_has_every_step_once_in_one_run(run_dir: Path) -> None:
    folders = sorted((run_dir / "wandb").glob("offline-run-*"))
    assert len(folders) == 2
    runs, rows = [], []
    for folder in folders:
        (path,) = folder.glob("*.wandb")
        for record in wandb_records(path):
            if record.HasField("run"):
                runs.append(record.run)
            elif record.HasField("history"):
                items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                rows.append((record.history.step.num, items, folder))
    (run_id,) = {run.run_id for run in runs}
    assert run_id == json.loads((run_dir / "trackers.json").read_text())["wandb"]["id"]
    assert {(run.entity, run.project, run.display_name) for run in runs} == {("team", "sums", "first try")}
    config = {update.key: json.loads(update.value_json) for update in runs[-1].config.update}
    assert config["trainer"]["seed"] == 1 and config["data"] == {"train_files": ["a.parquet"]}
    # The file of the process that was killed may lack its last rows; the next one sends all, each step once, and the
    # service drops what it has. Training and validation of a step are one row.
    before, resumed = ([row for row in rows if row[2] == folder] for folder in folders)
    scores = [(step, step / 8) for step in ALL_STEPS]
    assert [(step, float(items[SCORE])) for step, items, _ in resumed] == scores
    assert [(step, float(items[SCORE])) for step, items, _ in before] == scores[: len(before)]
    assert [(step, float(items[ACCURACY])) for step, items, _ in resumed if ACCURACY in items] == [
        (step, step / 16) for step in EVEN_STEPS
    ]
    # The table accumulates rows, over the resume as well.
    *_, (_, items, folder) = [row for row in rows if "val/generations/path" in row[1]]
    table = json.loads((folder / "files" / json.loads(items["val/generations/path"])).read_text())
    assert table["columns"] == ["step", "prompt", "generation", "ground_truth", "score", "initial_generation"]
    assert [row[0] for row in table["data"]] == [step for step in EVEN_STEPS for _ in range(2)]
    assert table["data"][-1] == [8.0, "1+1=", "8|`2`", "2", 1.0, None]


# SQLAlchemy and alembic speak of their own next releases.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_mlflow_has_every_step_once_in_one_run(run_dir: Path) -> None:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{run_dir / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("sums")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_id == json.loads((run_dir / "trackers.json").read_text())["mlflow"]["id"]
    assert (run.info.run_name, run.info.status) == ("first try", "FINISHED")
    assert run.data.params["trainer.seed"] == "1"
    assert run.data.params["data.train_files"] == '["a.parquet"]'

    def history(name: str) -> list[tuple[int, float]]:
        return [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]

    assert history(SCORE) == [(step, step / 8) for step in ALL_STEPS]
    assert history("val-core/openai/gsm8k/acc/mean_at_4") == [(step, step / 16) for step in EVEN_STEPS]
    assert [step for step, _ in history(NAN)] == ALL_STEPS
    files = {file.path for file in client.list_artifacts(run.info.run_id, "val_generations")}
    assert files == {f"val_generations/step_{step}.json" for step in EVEN_STEPS}
    samples = json.loads(
        (run_dir / "mlflow/artifacts" / run.info.run_id / "artifacts/val_generations/step_8.json").read_text()
    )
    assert samples[0]["generation"] == "8|`2`"


def test_swanlab_has_all_steps_in_one_run(run_dir: Path) -> None:
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    folders = sorted((run_dir / "swanlab").glob("run-*"))
    assert len(folders) == 2
    run_id = json.loads((run_dir / "trackers.json").read_text())["swanlab"]["id"]
    assert [folder.name.split("-")[-1] for folder in folders] == [run_id] * 2
    (path,) = folders[-1].glob("*.swanlab")
    reader = DataStoreReader()
    reader.open(path)
    scores, text = [], ""
    for data in reader:
        record = Record()
        record.ParseFromString(data)
        text += str(record)
        if record.HasField("scalar") and record.scalar.key == SCORE:
            scores.append((record.scalar.step, record.scalar.value.number))
    reader.close()
    # Rows that the kill took are there again; where the service has a step already, it ignores it.
    assert scores == [(step, step / 8) for step in ALL_STEPS]
    assert "sums" in text and "first try" in text
    config = (folders[-1] / "files" / "config.yaml").read_text("utf-8")
    assert "a.parquet" in config
    assert any("8|`2`" in file.read_text("utf-8") for file in (folders[-1] / "media/text").iterdir())


def test_without_a_key_nothing_is_asked_and_the_run_is_offline(run_dir: Path) -> None:
    shown = (run_dir.parent / "shown").read_text()
    assert len(re.findall(r"wandb writes offline.*no API key: set WANDB_API_KEY", shown)) == 1, shown
    assert len(re.findall(r"swanlab writes offline.*no API key: set SWANLAB_API_KEY", shown)) == 1, shown


def test_without_a_network_nothing_waits_and_the_run_is_offline(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    keys = {
        "WANDB_API_KEY": "a" * 40,
        "SWANLAB_API_KEY": "a" * 21,
        "WANDB_BASE_URL": nobody,
        "SWANLAB_API_HOST": nobody,
    }
    env = environment(tmp_path, **keys)
    shown = run_on_terminal(command("wandb,swanlab", tmp_path / "run", 0, 1, None), env, tmp_path)
    for logger in ("wandb", "swanlab"):
        assert len(re.findall(rf"{logger} writes offline.*{nobody} cannot be reached", shown)) == 1, shown
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert list((tmp_path / "run" / "swanlab").glob("run-*/*.swanlab"))


def test_a_host_that_swallows_everything_counts_as_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "PROBE_SECONDS", 0.2)
    monkeypatch.setenv("no_proxy", "*")
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not network.reachable(f"http://127.0.0.1:{server.getsockname()[1]}")
    assert not network.reachable("http://127.0.0.1:1")
    assert not network.reachable("no url")


@pytest.mark.parametrize("answer", ["200 OK", "404 Not Found", "407 Proxy Authentication Required"])
def test_any_answer_means_that_there_is_a_network(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())

        thread = threading.Thread(target=serve)
        thread.start()
        assert network.reachable(f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join()


FULL = """
import resource, signal, sys, time
from pathlib import Path
from verl_cli.config import TrainerConfig
from verl_cli.tracking import trackers_for

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
tracker = trackers_for(TrainerConfig(logger=["tensorboard"]), Path(sys.argv[1]), 9, {})
while not list(Path(sys.argv[1]).glob("tensorboard/*")):
    time.sleep(0.05)
resource.setrlimit(resource.RLIMIT_FSIZE, (600, resource.RLIM_INFINITY))
for step in range(1, 10):
    tracker.log(step, {f"metric/{number}": 1.0 for number in range(4)})
tracker.close()
print("trained to the end", file=sys.stderr, flush=True)
"""


def test_a_disk_that_is_full_for_tensorboard_stops_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=environment(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    # TensorBoard's own thread prints its traceback as well.
    found = re.findall(r"The tensorboard logger [a-z ]*\(OSError: \[Errno 27\] File too large\)", done.stderr)
    assert len(found) == 1, done.stderr
    assert re.search(r"The tensorboard logger lacks \d of 9 records of this run; metrics\.jsonl has all", done.stderr)
    assert "trained to the end" in done.stderr


def test_a_logger_that_is_new_to_a_resumed_run_gets_the_earlier_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "events"))
    earlier = [(step, {"a": float(step)}) for step in range(3)]
    tracker = TensorboardTracker(RunInfo("p", "r", tmp_path / "run", {}, resumed_from=2, earlier=earlier))
    tracker.log(3, {"a": 3.0})
    tracker.close()
    assert events_of(tmp_path / "events", "a") == [(step, float(step)) for step in range(4)]
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_mlflow_logs_where_its_environment_variables_say(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    shutil.copy(run_dir / "mlflow" / "mlflow.db", tmp_path / "store.db")
    store = f"sqlite:///{tmp_path / 'store.db'}"
    client = MlflowClient(tracking_uri=store)
    experiment = client.create_experiment("theirs", artifact_location=(tmp_path / "artifacts").as_uri())
    run_id = client.create_run(experiment).info.run_id
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setenv("MLFLOW_RUN_ID", run_id)
    monkeypatch.setenv("DO_NOT_TRACK", "true")
    (tmp_path / "run").mkdir()
    ids = RunIds(tmp_path / "run")
    for _ in range(2):
        tracker = MlflowTracker(RunInfo("ours", "r", tmp_path / "run", {"a": 1}), ids)
        tracker.log(1, {"a@b": 1.0, "a_at_b": 2.0})
        tracker.close()
    assert [metric.value for metric in client.get_metric_history(run_id, "a_at_b")] == [1.0]
    assert [metric.value for metric in client.get_metric_history(run_id, "a_at_b_2")] == [2.0]
    assert client.get_experiment_by_name("ours") is None
    # A run that the store has lost is begun anew.
    monkeypatch.delenv("MLFLOW_RUN_ID")
    ids.write("mlflow", "0" * 32)
    tracker = MlflowTracker(RunInfo("theirs", "again", tmp_path / "run", {"a": 1}), ids)
    tracker.close()
    assert ids.id("mlflow") not in (None, run_id, "0" * 32)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.text(max_size=20)
        | st.text("ab", min_size=245, max_size=260)
        | st.text("a@_/. .:", max_size=8)
        | st.sampled_from(["mean@4", "mean_at_4", "../x", "/", "."]),
        unique=True,
        max_size=8,
    )
)
def test_metric_names_become_different_names_that_mlflow_takes(names: list[str]) -> None:
    from mlflow.utils import validation

    validate: Any = validation._validate_metric_name
    clean = MetricNames()
    written = [clean.clean(name) for name in names]
    for name in written:
        validate(name)
    assert len(set(written)) == len(names)
    assert [clean.clean(name) for name in names] == written
