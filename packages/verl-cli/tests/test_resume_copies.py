"""Runs that go on from the copies of another place.

10 responses are scored in each validation and 16 in each step.
"""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from killed_runs import Runs, logged, outcome, quiet, refusal, steps
from verl_cli.commands.train import run_training


def test_a_run_goes_on_from_its_copies_when_its_directory_is_gone(
    runs: Runs, tmp_path: Path, uninterrupted: Path
) -> None:
    run_dir, copies = tmp_path / "run", tmp_path / "copies"
    url: dict[str, Any] = {"trainer__default_hdfs_dir": f"file://{copies}"}
    assert runs.run(run_dir, kill_at=10 + 4 * 16 + 2 * 10 + 1, **url, trainer__save_freq=2) == -signal.SIGKILL
    shutil.rmtree(run_dir)
    (copies / "global_step_6" / "actor").mkdir(parents=True)  # a copy that was cut short has no mark
    assert runs.run(run_dir, **url) == 0
    assert steps(run_dir) == [4, 5, 6, 7]
    assert outcome(run_dir) == outcome(uninterrupted)
    assert steps(copies) == [2, 4, 5, 6, 7]
    assert outcome(copies) == outcome(run_dir)
    assert (copies / "report.html").exists()


def test_a_named_copy_can_be_gone_on_from(runs: Runs, tmp_path: Path, uninterrupted: Path) -> None:
    branch = tmp_path / "branch"
    path = f"file://{uninterrupted}/global_step_5"
    assert runs.run(branch, trainer__resume_mode="path", trainer__resume_from_path=path) == 0
    assert outcome(branch) == outcome(uninterrupted)


def test_a_place_that_takes_no_copies_does_not_stop_the_run(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    run_dir = tmp_path / "run"
    run_training(
        runs.command(
            run_dir,
            trainer__total_training_steps=2,
            trainer__default_hdfs_dir=f"file://{tmp_path}/file/copies",
            trainer__logger="[]",
        )
    )
    assert "could not be copied" in capsys.readouterr().err
    assert [row["data"].get("checkpoint/copy_failed") for row in logged(run_dir)] == [None, 1.0, 1.0]
    assert "cannot be opened" in refusal(
        runs.command(tmp_path / "other", trainer__default_hdfs_dir="nosuch://bucket/run"), capsys
    )


def test_another_runs_copies_are_not_gone_on_with(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copies = {"trainer__default_hdfs_dir": f"file://{tmp_path}/copies"}
    run_training(quiet(runs, tmp_path / "a", **copies))
    stored = (tmp_path / "copies" / "metrics.jsonl").read_bytes()
    run_training(quiet(runs, tmp_path / "b", algorithm__gamma=0.5, trainer__total_training_steps=1))
    message = refusal(quiet(runs, tmp_path / "b", algorithm__gamma=0.5, **copies), capsys)
    assert "algorithm.gamma was 1.0 and is now 0.5" in message
    disabled = quiet(runs, tmp_path / "c", algorithm__gamma=0.5, trainer__resume_mode="disable", **copies)
    assert "already holds a run" in refusal(disabled, capsys)
    assert (tmp_path / "copies" / "metrics.jsonl").read_bytes() == stored
    same = quiet(runs, tmp_path / "a", trainer__default_hdfs_dir=tmp_path / "a")
    assert "same folder" in refusal(same, capsys)


def test_a_damaged_copy_is_passed_over(runs: Runs, tmp_path: Path, uninterrupted: Path) -> None:
    copies = tmp_path / "copies"
    shutil.copytree(uninterrupted, copies)
    (copies / "global_step_7" / "trainer_state.json").unlink()
    model = copies / "global_step_6" / "actor" / "huggingface" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    (copies / "summary.json").unlink()
    assert runs.run(tmp_path / "run", trainer__default_hdfs_dir=copies) == 0
    assert steps(tmp_path / "run") == [5, 6, 7]
    assert outcome(tmp_path / "run") == outcome(uninterrupted)


@pytest.mark.parametrize("at", ["fetch_file", "fetch_checkpoint"])
def test_a_kill_while_fetching_copies_loses_nothing(
    runs: Runs, tmp_path: Path, uninterrupted: Path, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from verl_cli.run.copies import Copies

    copies = tmp_path / "copies"
    shutil.copytree(uninterrupted, copies)
    shutil.rmtree(copies / "global_step_7")
    (copies / "summary.json").unlink()
    command = quiet(runs, tmp_path / "run", trainer__default_hdfs_dir=copies, trainer__total_training_steps=7)

    def killed(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Copies, at, killed)
        with pytest.raises(SystemExit):
            run_training(command)
    run_training(command)
    assert outcome(tmp_path / "run") == outcome(uninterrupted)
