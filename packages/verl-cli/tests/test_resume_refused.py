"""What must not be taken for the run that is to go on, and what may.

10 responses are scored in each validation and 16 in each step.
"""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from killed_runs import Runs, quiet, refusal, steps
from verl_cli.commands.train import run_training


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
