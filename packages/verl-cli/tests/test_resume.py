"""Runs that are killed and go on: the same numbers, files and weights as one that was never stopped.

10 responses are scored in each validation and 16 in each step.
"""

import json
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from killed_runs import Runs, outcome, refusal, rows, steps
from verl_cli.commands.train import run_training

# Exactness


def test_three_resumes_in_a_row_and_at_the_end_of_an_epoch_change_nothing(
    runs: Runs, tmp_path: Path, uninterrupted: Path
) -> None:
    """A12 (an epoch is two steps), D11 (warm-up and decay go on), D24 (so do the moments)."""
    run_dir = tmp_path / "run"
    assert runs.run(run_dir, kill_at=10 + 16 + 16 + 10 + 5) == -signal.SIGKILL  # in step 3: an epoch is just over
    assert (steps(run_dir), [row["step"] for row in rows(run_dir)]) == ([1, 2], [0, 1, 2])
    assert runs.run(run_dir, kill_at=16 + 16 + 3) == -signal.SIGKILL  # in the validation of step 4, which is saved
    assert (steps(run_dir), [row["step"] for row in rows(run_dir)]) == ([1, 2, 3, 4], [0, 1, 2, 3])
    assert runs.run(run_dir, kill_at=10 + 1) == -signal.SIGKILL  # in step 5, after the validation of step 4
    assert [row["step"] for row in rows(run_dir)] == [0, 1, 2, 3, 4]
    assert runs.run(run_dir) == 0
    assert outcome(run_dir) == outcome(uninterrupted)
    rates = [row["actor/lr"] for row in rows(run_dir)[1:]]
    assert rates == sorted(rates[:3]) + sorted(rates[3:], reverse=True)


@pytest.mark.alone
def test_rows_behind_the_checkpoint_are_cut(runs: Runs, tmp_path: Path, uninterrupted: Path) -> None:
    run_dir = tmp_path / "run"
    assert runs.run(run_dir, kill_at=10 + 4 * 16 + 2 * 10 + 1, trainer__save_freq=3) == -signal.SIGKILL  # in step 5
    assert (steps(run_dir), [row["step"] for row in rows(run_dir)]) == ([3], [0, 1, 2, 3, 4])
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "data": {"actor/pg_l')  # torn by the kill
    assert runs.run(run_dir) == 0
    assert outcome(run_dir) == outcome(uninterrupted)
    assert [row["step"] for row in rows(run_dir)] == list(range(8))


def test_a_run_killed_before_its_first_checkpoint_starts_again(runs: Runs, tmp_path: Path, uninterrupted: Path) -> None:
    run_dir = tmp_path / "run"
    assert runs.run(run_dir, kill_at=10 + 3 * 16 + 10, trainer__save_freq=-1) == -signal.SIGKILL
    assert runs.run(run_dir) == 0
    assert outcome(run_dir) == outcome(uninterrupted)


def test_a_longer_run_goes_on_from_a_finished_one(runs: Runs, tmp_path: Path) -> None:
    short, long = tmp_path / "short", tmp_path / "long"
    flat: dict[str, Any] = {"actor_rollout_ref__actor__optim__lr_scheduler_type": "constant", "trainer__test_freq": 1}
    assert runs.run(long, **flat, trainer__total_training_steps=4) == 0
    assert runs.run(short, **flat, trainer__total_training_steps=2) == 0
    assert runs.run(short, **flat, trainer__total_training_steps=4) == 0
    assert outcome(short) == outcome(long)


def test_dynamic_sampling_draws_the_same_prompts_after_a_resume(runs: Runs, tmp_path: Path) -> None:
    """Steps take as many batches as they need; the checkpoint's loader stands behind the last of them."""
    filtered: dict[str, Any] = {
        "algorithm__filter_groups__enable": "true",
        "algorithm__filter_groups__metric": "score",
        "trainer__total_training_steps": 5,
        "trainer__test_freq": -1,
    }
    plain, run_dir = tmp_path / "plain", tmp_path / "run"
    assert runs.run(plain, **filtered) == 0
    drawn = [int(row["training/filter_groups/num_gen_batches"]) for row in rows(plain) if row["step"]]
    loader = json.loads((plain / "global_step_5" / "trainer_state.json").read_text())["loader"]
    assert 2 * loader["epoch"] + loader["position"] == sum(drawn)
    done = next(number for number, batches in enumerate(drawn) if batches > 1)
    kill_at = 10 + 16 * sum(drawn[:done]) + 16 + 3  # in the second batch of the first step that takes several
    assert runs.run(run_dir, kill_at=kill_at, **filtered) == -signal.SIGKILL
    assert steps(run_dir) == list(range(1, done + 1))
    assert runs.run(run_dir, **filtered, algorithm__filter_groups__max_num_gen_batches=20) == 0  # which may be raised
    assert outcome(run_dir) == outcome(plain)


# Which checkpoint


def test_a_finished_run_has_nothing_left_to_do(
    runs: Runs, uninterrupted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*") if path.is_file()}
    command = runs.command(uninterrupted)
    run_training(command)
    assert "Nothing is left to do" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*") if path.is_file()} == before
    assert "resume_mode=disable" in refusal([*command, "trainer.resume_mode=disable"], capsys)
    assert {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*") if path.is_file()} == before


def test_what_changes_the_training_is_refused_and_named(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    assert runs.run(run_dir, trainer__total_training_steps=1) == 0
    command = runs.command(run_dir, trainer__total_training_steps=2, algorithm__gamma=0.5, critic__optim__lr=2)
    message = refusal(command, capsys)
    assert "algorithm.gamma was 1.0 and is now 0.5" in message
    assert "critic.optim.lr was 0.001 and is now 2" in message
    assert "total_training_steps" not in message
    assert steps(run_dir) == [1]
    run_training(runs.command(run_dir, trainer__total_training_steps=2, trainer__logger="[]"))
    said = capsys.readouterr().err
    assert "trainer.total_training_steps was 1 and is now 2" in said
    assert "Going on from step 1" in said


def test_other_data_is_refused(runs: Runs, tmp_path: Path, assets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = tmp_path / "run"
    assert runs.run(run_dir, trainer__total_training_steps=1) == 0
    command = runs.command(run_dir, trainer__total_training_steps=2, data__train_files=assets / "validation.parquet")
    command = [*command, "data.train_batch_size=4"]
    assert "data.train_batch_size was 8 and is now 4" in refusal(command, capsys)
    same_name = tmp_path / "train.parquet"
    shutil.copy(assets / "validation.parquet", same_name)
    message = refusal(
        runs.command(
            run_dir, trainer__total_training_steps=2, data__train_files=f"[{assets / 'train.parquet'},{same_name}]"
        ),
        capsys,
    )
    assert "other data than it began with" in message


def test_a_damaged_checkpoint_is_passed_over_and_written_again(runs: Runs, tmp_path: Path, uninterrupted: Path) -> None:
    run_dir = tmp_path / "run"
    assert runs.run(run_dir, kill_at=10 + 5 * 16 + 2 * 10 + 1) == -signal.SIGKILL  # in step 6
    model = run_dir / "global_step_5" / "actor" / "huggingface" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    (run_dir / "global_step_4" / "complete.json").unlink()
    (run_dir / "global_step_3" / "complete.json").write_text("{")
    (run_dir / ".global_step_9.x.partial").mkdir()
    assert runs.run(run_dir) == 0
    assert outcome(run_dir) == outcome(uninterrupted)
    assert steps(run_dir) == [1, 2, 3, 4, 5, 6, 7]
    assert not list(run_dir.glob(".*"))


def test_rotation_keeps_the_newest_and_counts_what_is_on_the_disk(runs: Runs, tmp_path: Path) -> None:
    """verl-facts 6, 9: what is kept does not start from nothing after a resume."""
    run_dir = tmp_path / "run"
    assert runs.run(run_dir, kill_at=10 + 4 * 16 + 2 * 10 + 1, trainer__max_actor_ckpt_to_keep=2) == -signal.SIGKILL
    assert steps(run_dir) == [3, 4]
    assert runs.run(run_dir, trainer__max_actor_ckpt_to_keep=2) == 0
    assert steps(run_dir) == [6, 7]
    assert (run_dir / "latest_checkpointed_iteration.txt").read_text() == "7\n"


def test_a_branch_begins_with_the_rows_and_weights_of_its_origin(
    runs: Runs, tmp_path: Path, uninterrupted: Path
) -> None:
    branch = tmp_path / "branch"
    origin: dict[str, Any] = {
        "trainer__resume_mode": "path",
        "trainer__resume_from_path": uninterrupted / "global_step_3",
    }
    assert runs.run(branch, kill_at=16 + 10 + 1, **origin) == -signal.SIGKILL  # in step 5
    assert (steps(branch), [row["step"] for row in rows(branch)]) == ([4], [0, 1, 2, 3, 4])
    assert runs.run(branch, **origin) == 0  # the same command goes on with the branch, not from its origin again
    assert outcome(branch) == outcome(uninterrupted)
    assert steps(branch) == [4, 5, 6, 7]
    other = tmp_path / "other"
    assert runs.run(other, **origin, algorithm__gamma=0.5) == 0  # a branch may differ in what it learns
    assert rows(other)[3] == rows(uninterrupted)[3]
    assert rows(other)[5] != rows(uninterrupted)[5]


def test_only_the_newest_checkpoint_of_its_own_can_be_named(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    assert runs.run(run_dir, trainer__total_training_steps=2) == 0
    command = runs.command(run_dir, trainer__total_training_steps=3, trainer__resume_mode="path", trainer__logger="[]")
    older = refusal([*command, f"trainer.resume_from_path={run_dir}/global_step_1"], capsys)
    assert "not the newest" in older
    assert "not a complete checkpoint" in refusal([*command, f"trainer.resume_from_path={run_dir}"], capsys)
    missing = refusal([*command, f"trainer.resume_from_path={tmp_path}/nowhere/global_step_2"], capsys)
    assert "not a complete checkpoint" in missing
    run_training([*command, f"trainer.resume_from_path={run_dir}/global_step_2"])
    assert steps(run_dir) == [1, 2, 3]


def test_a_directory_in_use_is_refused_until_its_process_is_gone(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    process = runs.start(run_dir, trainer__total_training_steps=500)
    try:
        while process.is_alive() and not steps(run_dir):
            time.sleep(0.05)
        assert "is in use" in refusal(runs.command(run_dir, trainer__total_training_steps=500), capsys)
    finally:
        process.kill()
        process.join()
    command = runs.command(run_dir, trainer__total_training_steps=len(steps(run_dir)) + 1, trainer__logger="[]")
    run_training(command)
    assert json.loads((run_dir / "summary.json").read_text())["steps"] == len(steps(run_dir))
