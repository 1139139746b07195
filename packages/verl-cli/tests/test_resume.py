"""Runs that are killed and go on: the same numbers, files and weights as one that was never stopped."""

import json
import multiprocessing
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from verl_cli.commands.train import run_training
from verl_cli.run.run_dir import RunDir

Overrides = Callable[..., list[str]]

# Processes that are forked from one which has torch already: a new one for each run would import it for ten seconds.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["verl_cli.trainer", "verl_cli.build", "transformers.models.qwen2"])

#: Kills its process at the n-th response that it scores, if a file beside it says so: 10 are scored in each validation
#: and 16 in each step of the runs below.
REWARD = """
import os, signal
from pathlib import Path

calls = 0

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    global calls
    calls += 1
    stop = Path(__file__).with_name("kill_at")
    if stop.exists() and calls == int(stop.read_text()):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"score": sum(map(ord, solution_str)) % 7 / 7, "acc": solution_str == ground_truth}
"""


class Runs:
    """Runs one configuration in processes of their own."""

    def __init__(self, folder: Path, overrides: Overrides) -> None:
        self.folder, self.overrides = folder, overrides
        self.kill_at = folder / "kill_at"
        (folder / "reward.py").write_text(REWARD)

    def command(self, run_dir: Path, **changes: object) -> list[str]:
        """Seven steps, which are three and a half epochs: schedules, an adaptive penalty, sampled validations."""
        return self.overrides(
            **{
                "trainer__total_training_steps": 7,
                "trainer__save_freq": 1,
                "trainer__test_freq": 2,
                "trainer__default_local_dir": run_dir,
                "reward__custom_reward_function__path": self.folder / "reward.py",
                "reward__num_workers": 0,  # it is the trainer that the reward function kills
                "actor_rollout_ref__actor__optim__lr_scheduler_type": "linear",
                "actor_rollout_ref__actor__optim__lr_warmup_steps": 6,
                "actor_rollout_ref__actor__shuffle": "true",
                "algorithm__kl_ctrl__type": "adaptive",
                "actor_rollout_ref__rollout__val_kwargs__temperature": 1.0,
                "actor_rollout_ref__rollout__val_kwargs__n": 2,
                **changes,
            }
        )

    def start(self, run_dir: Path, *, kill_at: int | None = None, **changes: object) -> Any:
        """Start a process that runs; with `kill_at` it kills itself at that response."""
        self.kill_at.unlink(missing_ok=True)
        if kill_at is not None:
            self.kill_at.write_text(str(kill_at))
        process = FORKS.Process(target=run_training, args=(self.command(run_dir, **changes),))
        process.start()
        return process

    def run(self, run_dir: Path, *, kill_at: int | None = None, **changes: object) -> int:
        """Run to the end, or to the kill; returns the exit code."""
        process = self.start(run_dir, kill_at=kill_at, **changes)
        process.join(120)
        assert process.exitcode is not None
        return int(process.exitcode)


@pytest.fixture(scope="module")
def module_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resume")


@pytest.fixture
def runs(module_folder: Path, overrides: Overrides) -> Runs:
    return Runs(module_folder, overrides)


@pytest.fixture
def uninterrupted(module_folder: Path, runs: Runs) -> Path:
    """The run directory of the run that is never stopped; trained once."""
    run_dir = module_folder / "uninterrupted"
    if not run_dir.exists():
        assert runs.run(run_dir) == 0
    return run_dir


def logged(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def rows(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl without what depends on the clock, or on whether there are copies."""
    timed = ("timing", "perf/throughput", "perf/time", "sync/seconds", "checkpoint/")
    return [
        {"step": row["step"], **{k: v for k, v in row["data"].items() if not k.startswith(timed)}}
        for row in logged(run_dir)
    ]


def outcome(run_dir: Path) -> dict[str, Any]:
    """Everything of a finished run that must not depend on how often it was stopped."""
    summary = json.loads((run_dir / "summary.json").read_text())
    last = run_dir / f"global_step_{summary['steps']}"
    state = json.loads((last / "trainer_state.json").read_text())
    return {
        "rows": rows(run_dir),
        "samples": (run_dir / "val_samples.jsonl").read_bytes(),
        "actor": (last / "actor" / "huggingface" / "model.safetensors").read_bytes(),
        "critic": (last / "critic" / "huggingface" / "model.safetensors").read_bytes(),
        "state": {name: state[name] for name in ("step", "kl_coef", "loader", "val_accuracy_before")}
        | {"metrics": {k: v for k, v in state["metrics"].items() if k.startswith(("actor", "critic"))}},
        "accuracy": (summary["val_accuracy_before"], summary["val_accuracy_after"]),
    }


def steps(run_dir: Path) -> list[int]:
    """The steps of the complete checkpoints."""
    return [checkpoint.step for checkpoint in RunDir(run_dir).checkpoints()]


def refusal(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The paragraph that a run is refused with."""
    with pytest.raises(SystemExit) as stopped:
        run_training(command)
    assert stopped.value.code == 1
    message = capsys.readouterr().err
    assert "error: " in message and "Traceback" not in message
    return message


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


# Copies


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


# What must not be taken for this run


def quiet(runs: Runs, run_dir: Path, **changes: object) -> list[str]:
    """A short run that shows nothing."""
    return runs.command(run_dir, **{"trainer__total_training_steps": 2, "trainer__logger": "[]", **changes})


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


def test_a_changed_reward_or_model_is_refused(
    runs: Runs, tmp_path: Path, assets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reward, model = tmp_path / "reward.py", tmp_path / "model"
    reward.write_text((runs.folder / "reward.py").read_text())
    shutil.copytree(assets / "model", model)
    own = {"reward__custom_reward_function__path": reward, "actor_rollout_ref__model__path": model}
    run_training(quiet(runs, tmp_path / "run", **own, trainer__total_training_steps=1))
    text = reward.read_text()
    reward.write_text(text.replace("% 7 / 7", "% 5 / 5"))
    changed = refusal(quiet(runs, tmp_path / "run", **own), capsys)
    assert "What reward.custom_reward_function.path holds has changed since step 1" in changed
    reward.write_text(text)
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    assert "What actor_rollout_ref.model.path holds has changed" in refusal(
        quiet(runs, tmp_path / "run", **own), capsys
    )


def test_a_changed_estimator_or_policy_loss_is_refused(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "own.py"
    text = (
        "def estimator(token_rewards, mask, values): return token_rewards * mask, token_rewards * mask\n"
        "def loss(logprobs, advantages): return -advantages * logprobs, {}\n"
    )
    own.write_text(text)
    for key, name in (
        ("algorithm.adv_estimator", "estimator"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode", "loss"),
    ):
        keys: dict[str, Any] = {key.replace(".", "__"): f"{own}:{name}"}
        if name == "estimator":
            keys |= {"critic__enable": "true", "algorithm__use_kl_in_reward": "true"}
        run_training(quiet(runs, tmp_path / name, **keys, trainer__total_training_steps=1))
        own.write_text(text + "# another one\n")
        assert f"What {key} holds has changed since step 1" in refusal(quiet(runs, tmp_path / name, **keys), capsys)
        own.write_text(text)


def test_fewer_steps_than_are_done_are_refused(runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs.run(tmp_path / "run", kill_at=10 + 4 * 16 + 2 * 10 + 1) == -signal.SIGKILL
    message = refusal(quiet(runs, tmp_path / "run"), capsys)
    assert "goes on from step 4, and only 2 steps are asked for" in message


def test_a_branch_that_cannot_begin_leaves_its_directory_free(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from verl_cli.quickstart.model import write_model

    write_model(tmp_path / "other", seed=0, hidden_size=16)
    run_training(quiet(runs, tmp_path / "origin", trainer__total_training_steps=1))
    origin = {"trainer__resume_mode": "path", "trainer__resume_from_path": tmp_path / "origin" / "global_step_1"}
    wrong = quiet(runs, tmp_path / "branch", **origin, actor_rollout_ref__model__path=tmp_path / "other")
    assert "another model" in refusal(wrong, capsys)
    assert not (tmp_path / "branch").exists()
    run_training(quiet(runs, tmp_path / "still", **origin, trainer__total_training_steps=1))
    assert steps(tmp_path / "still") == [1]
    run_training(quiet(runs, tmp_path / "branch", **origin))
    shutil.rmtree(tmp_path / "origin")
    run_training(quiet(runs, tmp_path / "branch", **origin, trainer__total_training_steps=3))
    assert steps(tmp_path / "branch") == [2, 3]


def test_its_own_checkpoint_is_known_through_a_link(runs: Runs, tmp_path: Path) -> None:
    run_training(quiet(runs, tmp_path / "run", trainer__total_training_steps=1))
    (tmp_path / "link").symlink_to(tmp_path / "run")
    newest = {"trainer__resume_mode": "path", "trainer__resume_from_path": tmp_path / "run" / "global_step_1"}
    run_training(quiet(runs, tmp_path / "link", **newest))
    assert steps(tmp_path / "run") == [1, 2]


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


def test_the_report_of_a_finished_run_is_written_again(
    runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = quiet(runs, tmp_path / "run", trainer__default_hdfs_dir=tmp_path / "copies")
    run_training(command)
    (tmp_path / "run" / "report.html").unlink()  # as if the run had been killed before it
    (tmp_path / "copies" / "summary.json").unlink()
    run_training(command)
    assert "Nothing is left to do" in capsys.readouterr().out
    assert (tmp_path / "run" / "report.html").exists() and (tmp_path / "copies" / "summary.json").exists()


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("summary.json", "5", "is damaged"),
        ("config.yaml", "5", "must be a mapping"),
        ("config.yaml", None, "no config"),
    ],
)
def test_a_file_that_no_run_writes_is_named(
    runs: Runs, tmp_path: Path, name: str, text: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_training(quiet(runs, tmp_path / "run", trainer__total_training_steps=1))
    (tmp_path / "run" / name).unlink() if text is None else (tmp_path / "run" / name).write_text(text)
    assert said in refusal(quiet(runs, tmp_path / "run"), capsys)


def test_an_empty_place_is_refused(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    assert "trainer.default_local_dir is empty" in refusal(
        quiet(runs, Path("x"), trainer__default_local_dir="''"), capsys
    )
