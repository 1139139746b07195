"""The run directory: its files, its checkpoints, its lock."""

import subprocess
import sys
from pathlib import Path

import pytest
from verl_cli.errors import UserError
from verl_cli.run import checkpoints
from verl_cli.run.run_dir import RunDir, write_atomically


def write_model(folder: Path) -> None:
    (folder / "actor").mkdir()
    (folder / "actor" / "model").write_text("weights")


def fail_half_way(folder: Path) -> None:
    write_model(folder)
    raise OSError("no space left")


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be made"), RunDir(tmp_path / "file" / "run").lock():
        pass


def test_a_checkpoint_that_fails_half_way_leaves_nothing_and_keeps_the_last(tmp_path: Path) -> None:
    """D14: keep 1, and the save of step 2 fails."""
    run_dir = RunDir(tmp_path)
    run_dir.save_checkpoint(1, write_model, keep=1)
    with pytest.raises(OSError, match="no space left"):
        run_dir.save_checkpoint(2, fail_half_way, keep=1)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["global_step_1", "latest_checkpointed_iteration.txt"]
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "1\n"
    assert [checkpoint.step for checkpoint in run_dir.checkpoints()] == [1]


def test_what_is_not_complete_is_not_seen(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.save_checkpoint(10, write_model)
    run_dir.save_checkpoint(9, write_model)
    (tmp_path / "global_step_11").mkdir()
    (tmp_path / "global_step_12x").mkdir()
    assert [checkpoint.step for checkpoint in run_dir.checkpoints()] == [9, 10]
    run_dir.save_checkpoint(11, write_model)  # takes the place of the unfinished one
    assert [checkpoint.step for checkpoint in run_dir.checkpoints()] == [9, 10, 11]


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda folder: (folder / "actor" / "model").write_text("weight"), "6 bytes instead of 7"),
        (lambda folder: (folder / "actor" / "model").unlink(), "it lacks actor/model"),
        (lambda folder: (folder / "complete.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "complete.json").write_text('{"format": 7, "file_bytes": {}}'), "format is 7"),
    ],
)
def test_damage_is_named(tmp_path: Path, break_it: object, said: str) -> None:
    saved = RunDir(tmp_path).save_checkpoint(1, write_model)
    assert checkpoints.damage(saved.path) is None
    assert callable(break_it)
    break_it(saved.path)
    assert said in str(checkpoints.damage(saved.path))
    with pytest.raises(UserError, match="is damaged"):
        checkpoints.open_checkpoint(saved.path)


def test_rotation_never_deletes_the_last_good_one(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    for step in (1, 2, 3):
        run_dir.save_checkpoint(step, write_model)
    (tmp_path / "global_step_3" / "actor" / "model").unlink()
    checkpoints.rotate(tmp_path, 1)
    assert [checkpoint.step for checkpoint in run_dir.checkpoints()] == [2, 3]
    assert checkpoints.damage(tmp_path / "global_step_2") is None


def test_what_killed_processes_left_is_cleared(tmp_path: Path) -> None:
    (tmp_path / ".global_step_3.abc.partial" / "actor").mkdir(parents=True)
    (tmp_path / ".summary.json.abc.partial").write_text("{")
    (tmp_path / ".mine").write_text("")
    checkpoints.clear_partial(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == [".mine"]


HOLDER = """
import sys
from pathlib import Path
from verl_cli.run.run_dir import RunDir

with RunDir(Path(sys.argv[1])).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_run_directory_has_one_writer_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    command = [sys.executable, "-c", HOLDER, str(run_dir.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            assert run_dir.is_in_use()
            with pytest.raises(UserError, match="is in use"), run_dir.lock():
                pass
        finally:
            holder.kill()
    assert not run_dir.is_in_use()
    with run_dir.lock():
        assert run_dir.path.is_dir()
    assert list(run_dir.path.iterdir()) == []


def test_a_lock_leaves_no_folder_that_it_made(tmp_path: Path) -> None:
    with RunDir(tmp_path / "run").lock():
        pass
    assert not (tmp_path / "run").exists()


def test_a_text_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, "old")
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]
