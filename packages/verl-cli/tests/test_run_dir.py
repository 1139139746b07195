from pathlib import Path

import pytest
from verl_cli.errors import UserError
from verl_cli.run_dir import RunDir, write_atomically


def test_a_folder_that_holds_a_run_is_not_taken(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.check_free()
    run_dir.create("a: 1\n")
    with pytest.raises(UserError, match=r"already holds a run.*trainer\.default_local_dir"):
        RunDir(tmp_path / "run").check_free()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be made"):
        RunDir(tmp_path / "file" / "run").check_free()


def test_a_checkpoint_that_fails_half_way_leaves_nothing_and_keeps_the_last(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.save_checkpoint(1, lambda folder: (folder / "model").mkdir())

    def fail(folder: Path) -> None:
        (folder / "model").mkdir()
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        run_dir.save_checkpoint(2, fail)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["global_step_1", "latest_checkpointed_iteration.txt"]
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "1\n"


def test_a_text_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_atomically(path, "old")
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]
