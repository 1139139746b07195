"""The published command line, and what goes wrong on one: real runs, in this process unless a process is the point."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import verl
import verl_algos.rewards
import verl_data
from endings import signalled
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl_cli.commands.train import run_training

Overrides = Callable[..., list[str]]


def failure(overrides: list[str], capsys: pytest.CaptureFixture[str], *, allow_unused: bool = False) -> str:
    """The one paragraph that a run ends with."""
    with pytest.raises(SystemExit) as stopped:
        run_training(overrides, allow_unused=allow_unused)
    assert stopped.value.code == 1
    message = capsys.readouterr().err
    assert "Traceback" not in message
    errors = [line for line in message.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    return message[message.index("error: ") :]


@pytest.mark.alone
def test_the_tutorial_command_runs_to_the_end(assets: Path, tmp_path: Path) -> None:
    command = [
        *f"""
        data.train_files={assets}/train.parquet data.val_files={assets}/validation.parquet data.train_batch_size=16
        data.max_prompt_length=16 data.max_response_length=4 actor_rollout_ref.model.path={assets}/model
        actor_rollout_ref.actor.optim.lr=1e-6 actor_rollout_ref.actor.ppo_mini_batch_size=8
        actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4
        actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8
        actor_rollout_ref.rollout.tensor_model_parallel_size=1
        actor_rollout_ref.rollout.gpu_memory_utilization=0.4
        actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4
        critic.optim.lr=1e-5 critic.model.path={assets}/model critic.ppo_micro_batch_size_per_gpu=4
        algorithm.kl_ctrl.kl_coef=0.001 trainer.logger=[console] trainer.val_before_train=False
        trainer.default_hdfs_dir=null trainer.n_gpus_per_node=1 trainer.nnodes=1 trainer.save_freq=10
        trainer.test_freq=10 trainer.total_epochs=15
        """.split()
    ]
    run = subprocess.run(
        [sys.executable, "-m", "verl.trainer.main_ppo", *command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    run_dir = tmp_path / "checkpoints" / "verl_examples" / "gsm8k"
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 16))  # 20 rows make one step of 16 an epoch
    assert len(re.findall(r"^step: \d+ ", run.stdout, re.MULTILINE)) == 15
    for name in PUBLISHED_METRICS:
        assert all(name in row["data"] for row in rows), name
    for key in ("gpu_memory_utilization", "log_prob_micro_batch_size_per_gpu"):
        assert len([line for line in run.stderr.splitlines() if f"rollout.{key}" in line]) == 1, run.stderr
    assert sorted(path.name for path in run_dir.glob("global_step_*")) == ["global_step_10", "global_step_15"]
    assert (run_dir / "report.html").exists()
    assert json.loads((run_dir / "summary.json").read_text())["steps"] == 15


#: verl-facts 1.16, as far as a PPO run without a reward model or tools has them.
PUBLISHED_METRICS = [
    "actor/pg_loss",
    "actor/entropy_loss",
    "actor/entropy",
    "actor/ppo_kl",
    "actor/pg_clipfrac",
    "actor/pg_clipfrac_lower",
    "actor/grad_norm",
    "actor/lr",
    "actor/reward_kl_penalty",
    "actor/reward_kl_penalty_coeff",
    "critic/vf_loss",
    "critic/vf_clipfrac",
    "critic/vpred_mean",
    "critic/grad_norm",
    "critic/lr",
    "critic/vf_explained_var",
    "critic/score/mean",
    "critic/score/max",
    "critic/score/min",
    "critic/rewards/mean",
    "critic/advantages/mean",
    "critic/returns/mean",
    "critic/values/mean",
    "response_length/mean",
    "response_length/max",
    "response_length/min",
    "response_length/clip_ratio",
    "prompt_length/mean",
    "timing_s/gen",
    "timing_s/reward",
    "timing_s/old_log_prob",
    "timing_s/ref",
    "timing_s/values",
    "timing_s/adv",
    "timing_s/update_critic",
    "timing_s/update_actor",
    "timing_s/update_weights",
    "timing_s/step",
    "timing_per_token_ms/gen",
    "timing_per_token_ms/update_actor",
    "perf/total_num_tokens",
    "perf/time_per_step",
    "perf/throughput",
    "training/global_step",
    "training/epoch",
]


@pytest.mark.alone
def test_a_run_leaves_everything_in_its_folder(overrides: Overrides, tmp_path: Path) -> None:
    run_training(overrides(trainer__test_freq=1))
    run_dir = tmp_path / "run"
    assert sorted(path.name for path in run_dir.iterdir()) == [
        "config.yaml",
        "global_step_2",
        "latest_checkpointed_iteration.txt",
        "metrics.jsonl",
        "report.html",
        "summary.json",
        "val_samples.jsonl",
    ]
    samples = [json.loads(line) for line in (run_dir / "val_samples.jsonl").read_text().splitlines()]
    assert [sample["step"] for sample in samples] == [0] * 5 + [1] * 5 + [2] * 5
    first, last = samples[:5], samples[-5:]
    assert all(re.fullmatch(r"\d\d\+\d\d=", sample["prompt"]) for sample in samples)
    assert [sample["generation"] for sample in first] == [sample["initial_generation"] for sample in last]
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["val_accuracy_after"] == sum(sample["acc"] for sample in last) / 5
    parser = HTMLParser()
    parser.feed((run_dir / "report.html").read_text())
    parser.close()


def test_a_checkpoint_holds_an_ordinary_model_that_differs_from_the_first(
    overrides: Overrides, assets: Path, tmp_path: Path
) -> None:
    run_training(overrides())
    folder = tmp_path / "run" / "global_step_2" / "actor" / "huggingface"
    AutoModelForCausalLM.from_pretrained(folder)
    assert AutoTokenizer.from_pretrained(folder).encode("27+15=") == [4, 9, 12, 3, 7, 13]
    before, after = load_file(assets / "model" / "model.safetensors"), load_file(folder / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(not before[name].equal(after[name]) for name in before)


def test_a_finished_run_starts_again_from_its_own_configuration(overrides: Overrides, tmp_path: Path) -> None:
    run_training(overrides())
    run_training([f"trainer.default_local_dir={tmp_path / 'again'}"], config_file=tmp_path / "run" / "config.yaml")

    def losses(folder: str) -> list[float]:
        lines = (tmp_path / folder / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["data"].get("actor/pg_loss") for line in lines]

    assert losses("run") == losses("again")


@pytest.mark.alone
def test_grpo_needs_neither_critic_nor_reference(overrides: Overrides, tmp_path: Path) -> None:
    command = [override for override in overrides() if not override.startswith("critic.")]
    run_training([*command, "actor_rollout_ref.actor.use_kl_loss=false"], preset="grpo")
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["data"]
    assert "timing_s/update_actor" in last
    assert not {"timing_s/ref", "timing_s/values", "critic/vf_loss"} & set(last)


def test_grpo_keeps_close_to_the_reference_through_its_loss(overrides: Overrides, tmp_path: Path) -> None:
    command = [override for override in overrides() if not override.startswith("critic.")]
    run_training([*command, "actor_rollout_ref.actor.use_kl_loss=true"], preset="grpo")
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["data"]
    assert last["actor/kl_loss"] > 0


def test_a_kl_coefficient_of_zero_loads_no_reference(overrides: Overrides, tmp_path: Path) -> None:
    run_training(overrides(algorithm__kl_ctrl__kl_coef=0))
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["data"]
    assert not {"timing_s/ref", "actor/reward_kl_penalty"} & set(last)


def test_actor_and_critic_may_cut_their_own_mini_batches(overrides: Overrides, tmp_path: Path) -> None:
    run_training(
        overrides(
            critic__ppo_mini_batch_size=2,
            critic__ppo_epochs=2,
            actor_rollout_ref__actor__shuffle="true",
            actor_rollout_ref__actor__entropy_coeff=0.01,
            trainer__critic_warmup=1,
        )
    )
    first, last = (
        json.loads(line)["data"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[1:]
    )
    assert "actor/pg_loss" not in first
    assert "critic/vf_loss" in first
    assert last["actor/entropy_loss"] > 0


# What is wrong


def test_a_run_is_never_overwritten(overrides: Overrides, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run_training(overrides())
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert "holds another run" in failure(overrides(algorithm__gamma=0.5), capsys)
    assert "already holds a run" in failure(overrides(trainer__resume_mode="disable"), capsys)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data__train_files": "nowhere/train.parquet"}, "nowhere/train.parquet"),
        ({"actor_rollout_ref__model__path": "/nowhere/model"}, "/nowhere/model"),
        ({"data__train_batch_size": 6}, "6"),
        ({"data__train_batch_size": 24}, "20 rows < batch 24"),
        ({"data__train_batchsize": 8}, "data.train_batch_size"),
        ({"reward__custom_reward_function__path": "nowhere.py"}, "nowhere.py"),
        ({"data__max_prompt_length": 3}, "data.max_prompt_length"),
        ({"trainer__n_gpus_per_node": 2}, "trainer.n_gpus_per_node"),
        ({"actor_rollout_ref__rollout__temperature": 0}, "temperature"),
        ({"trainer__critic_warmup": 2}, "trainer.critic_warmup"),
        ({"actor_rollout_ref__actor__clip_ratio": 1.5}, "actor_rollout_ref.actor.clip_ratio"),
        ({"--config-name": "ppo_trainer"}, "Hydra's own options"),
    ],
)
def test_bad_input_is_one_paragraph_and_leaves_nothing(
    overrides: Overrides,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    changes: dict[str, object],
    said: str,
) -> None:
    assert said in failure(overrides(**changes), capsys)
    assert not (tmp_path / "run").exists()


def test_a_model_folder_without_a_tokenizer(
    overrides: Overrides, assets: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((assets / "model" / name).read_bytes())
    message = failure(overrides(actor_rollout_ref__model__path=bare), capsys)
    assert str(bare) in message
    assert "actor_rollout_ref.model.tokenizer_path" in message
    assert not (tmp_path / "run").exists()


def test_a_model_folder_without_weights(
    overrides: Overrides, assets: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(assets / "model", bare, ignore=shutil.ignore_patterns("*.safetensors"))
    assert str(bare) in failure(overrides(actor_rollout_ref__model__path=bare), capsys)
    assert not (tmp_path / "run").exists()


def test_a_data_set_without_rows(overrides: Overrides, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    message = failure(overrides(data__train_files=empty), capsys)
    assert str(empty) in message or "0 rows" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.alone
def test_a_data_source_without_a_rule(overrides: Overrides, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    row = {
        "data_source": "my/data",
        "prompt": [{"role": "user", "content": "1+1="}],
        "reward_model": {"ground_truth": "2"},
    }
    rows.write_text((json.dumps(row) + "\n") * 8)
    message = failure(
        [o for o in overrides(data__train_files=rows) if not o.startswith("reward.")],
        capsys,
    )
    assert "'my/data'" in message
    assert "reward.custom_reward_function.path" in message


def test_a_reward_that_raises(overrides: Overrides, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1 / 0\n"
    )
    message = failure(overrides(reward__custom_reward_function__path=tmp_path / "broken.py"), capsys)
    assert "ZeroDivisionError" in message
    assert "verl/arithmetic" in message
    assert not (tmp_path / "run").exists()  # so that the same command can run once the function is mended


def test_two_runs_at_once_do_not_share_a_folder(overrides: Overrides) -> None:
    command = [sys.executable, "-m", "verl_cli.main", "train", *overrides(trainer__total_training_steps=40)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate(timeout=240)[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 1]
    assert sum("is in use" in error or "was starting" in error for error in errors) == 1


def test_what_the_run_does_to_prompts_and_responses_is_said(
    overrides: Overrides, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run_training(overrides(data__truncation="left", data__max_prompt_length=5, data__max_response_length=100))
    assert "The model has 64 positions" in capsys.readouterr().err
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["data"]
    assert last["prompt_length/clip_ratio"] == 1.0


def test_validation_samples_are_shown(overrides: Overrides, capsys: pytest.CaptureFixture[str]) -> None:
    run_training(overrides(trainer__log_val_generations=2, trainer__val_only="true", trainer__val_before_train="false"))
    shown = re.findall(r"^step 0: '\d\d\+\d\d=' -> '.*' \(ground truth '\d\d', score", capsys.readouterr().out, re.M)
    assert len(shown) == 2


def test_ctrl_c_ends_with_one_paragraph_and_whole_files(overrides: Overrides, tmp_path: Path) -> None:
    command = overrides(trainer__total_training_steps=500, trainer__save_freq=1)
    metrics = tmp_path / "run" / "metrics.jsonl"
    code, errors = signalled(
        ["-m", "verl_cli.main", "train", *command],
        lambda: metrics.exists() and metrics.read_text().count("\n") >= 3,
        signal.SIGINT,
        # A background job of a shell ignores Ctrl-C, and what it starts does too.
        before=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert code == 130, errors
    assert "Traceback" not in errors
    assert re.search(r"error: Interrupted after step \d+ of 500", errors)
    assert all(json.loads(line)["data"] for line in metrics.read_text().splitlines())
    assert not list((tmp_path / "run").glob(".*"))  # no partial checkpoint is left
    last = int((tmp_path / "run" / "latest_checkpointed_iteration.txt").read_text())
    assert (tmp_path / "run" / f"global_step_{last}" / "trainer_state.json").exists()
    assert (tmp_path / "run" / "report.html").exists()


# The facade


def test_the_facade_has_the_processor_the_reward_model_and_a_version() -> None:
    assert verl.DataProcessor is verl_data.DataProcessor
    assert verl.RewardModel is verl_algos.rewards.RewardModel
    assert {"DataProcessor", "RewardModel"} <= set(dir(verl))
    with pytest.raises(AttributeError, match="no attribute 'DataProto'"):
        verl.DataProto  # noqa: B018
    assert (
        verl.__version__
        == subprocess.run(
            [sys.executable, "-m", "verl_cli.main", "--version"], capture_output=True, text=True, check=True
        ).stdout.strip()
    )


def test_the_original_beside_it_is_refused(tmp_path: Path) -> None:
    info = tmp_path / "verl-0.9.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: verl\nVersion: 0.9.0\n")
    run = subprocess.run(
        [sys.executable, "-c", "import verl"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode != 0
    assert "the original verl 0.9.0" in run.stderr
