"""The health monitors in runs of the program: heard, recorded once, resumed exactly, documented."""

import json
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killed_runs import Runs
from verl_algos.health import HealthMonitor
from verl_cli.commands.train import run_training
from verl_cli.config import resolve
from verl_cli.config.keys import live_keys
from verl_cli.health import Health
from verl_cli.phases import Step
from verl_cli.report import write_report
from verl_cli.run.resume import STATE
from verl_data import PackedBatch

Overrides = Callable[..., list[str]]

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def module_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("health")


@pytest.fixture
def runs(module_folder: Path, overrides: Overrides) -> Runs:
    """Runs whose answers are all paid the same."""
    keys = {"trainer__val_before_train": "false", "trainer__test_freq": 7}
    return Runs(module_folder, overrides, reward='{"score": 0.5, "acc": 0.0}', keys=keys)


@pytest.fixture
def command(runs: Runs) -> Overrides:
    return runs.command


def warned(run_dir: Path) -> list[dict[str, Any]]:
    path = run_dir / "warnings.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def health_metrics(run_dir: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row["data"].items() if name.startswith("health/")} for row in rows]


def test_a_run_says_records_and_reports_what_is_wrong(
    command: Overrides, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_training(command(tmp_path / "run", trainer__default_hdfs_dir=tmp_path / "copies"))
    (row,) = warned(tmp_path / "run")
    assert (row["step"], row["name"]) == (5, "constant_reward")
    assert "the reward 0.5 for 5 steps (since step 1)" in row["message"]
    said = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert said == [f"Step 5, warning constant_reward: {row['message']}"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<h2>Warnings</h2>" in page and "constant reward" in page and "No other reward was ever seen" in page
    assert warned(tmp_path / "copies") == [row]
    metrics = health_metrics(tmp_path / "run")
    assert all(row["health/most_common_reward"] == 1.0 for row in metrics)
    assert all(row["health/zero_variance_groups"] == 1.0 for row in metrics)
    assert "health/rewards_at_maximum" not in metrics[-1] and "health/all_best_groups" not in metrics[-1]
    assert "health/entropy_ratio" in metrics[-1] and "health/kl" in metrics[-1]


def test_a_run_whose_every_token_is_rejected_says_so(command: Overrides, tmp_path: Path) -> None:
    """Bounds that no ratio of two equal policies lies in."""
    rejection = {"rollout_rs": "token_k1", "rollout_rs_threshold": "2_3"}
    keys = {f"algorithm__rollout_correction__{key}": value for key, value in rejection.items()}
    run_training(command(tmp_path / "run", trainer__total_training_steps=3, **keys))
    (row,) = [row for row in warned(tmp_path / "run") if row["name"] == "empty_loss"]
    assert row["step"] == 2
    assert "algorithm.rollout_correction.rollout_rs=null" in row["message"]


def test_warnings_can_be_turned_off_and_on_while_a_run_goes_on(
    command: Overrides, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    off = {"trainer__health_warnings": "false"}
    run_training(command(tmp_path / "run", trainer__total_training_steps=2, **off))
    run_training(command(tmp_path / "run", trainer__total_training_steps=6))
    said = capsys.readouterr().err
    assert "trainer.health_warnings was False and is now True" in said
    assert [(row["step"], row["name"]) for row in warned(tmp_path / "run")] == [(5, "constant_reward")]
    run_training(command(tmp_path / "silent", trainer__total_training_steps=6, **off))
    assert "warning constant_reward" not in capsys.readouterr().err
    assert not (tmp_path / "silent" / "warnings.jsonl").exists()
    assert health_metrics(tmp_path / "silent") == health_metrics(tmp_path / "run")
    assert "<h2>Warnings</h2>" not in (tmp_path / "silent" / "report.html").read_text()


# 16 responses are scored in each step; killed in step 5, which warns, in its middle, and in step 6, after the warning.
@pytest.mark.parametrize(("kills", "save_freq"), [([4 * 16 + 5], 1), ([5 * 16 + 1, 16 + 1], 2)])
def test_a_resumed_run_warns_as_the_uninterrupted_one(
    runs: Runs, uninterrupted: Path, tmp_path: Path, kills: list[int], save_freq: int
) -> None:
    run_dir = tmp_path / "run"
    for response in kills:
        assert runs.run(run_dir, kill_at=response, trainer__save_freq=save_freq) == -signal.SIGKILL
    assert runs.run(run_dir, trainer__save_freq=save_freq) == 0
    assert (run_dir / "warnings.jsonl").read_bytes() == (uninterrupted / "warnings.jsonl").read_bytes()
    assert len(warned(run_dir)) == 1
    assert health_metrics(run_dir) == health_metrics(uninterrupted)
    states = [json.loads((path / "global_step_7" / STATE).read_text())["health"] for path in (run_dir, uninterrupted)]
    assert states[0] == states[1]


def test_a_step_that_was_saved_but_not_told_is_told(command: Overrides, uninterrupted: Path, tmp_path: Path) -> None:
    """A kill between the checkpoint and the row of step 5, whose warning only the checkpoint holds then."""
    run_dir = tmp_path / "run"
    shutil.copytree(uninterrupted, run_dir)
    for step in (6, 7):
        shutil.rmtree(run_dir / f"global_step_{step}")
    for name in ("summary.json", "warnings.jsonl", "report.html"):
        (run_dir / name).unlink()
    lines = (run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run_dir / "metrics.jsonl").write_text("".join(line for line in lines if json.loads(line)["step"] < 5))
    config = (run_dir / "config.yaml").read_text()
    (run_dir / "config.yaml").write_text(config.replace(str(uninterrupted), str(run_dir)))
    run_training(command(run_dir))
    assert warned(run_dir) == warned(uninterrupted)


def test_a_branch_begins_with_the_warnings_of_its_origin(
    command: Overrides, uninterrupted: Path, tmp_path: Path
) -> None:
    origin = {"trainer__resume_mode": "path", "trainer__total_training_steps": 7}
    for step in (4, 6):
        branch = tmp_path / f"branch{step}"
        run_training(command(branch, **origin, trainer__resume_from_path=uninterrupted / f"global_step_{step}"))
        assert warned(branch) == warned(uninterrupted)


def test_a_checkpoint_older_than_the_monitors_can_be_gone_on_from(command: Overrides, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_training(command(run_dir, trainer__total_training_steps=2))
    path = run_dir / "global_step_2" / STATE
    state = json.loads(path.read_text())
    del state["health"]
    path.write_text(json.dumps(state))
    mark = run_dir / "global_step_2" / "complete.json"
    complete = json.loads(mark.read_text())
    complete["file_bytes"][STATE] = path.stat().st_size
    mark.write_text(json.dumps(complete))
    run_training(command(run_dir))
    assert [(row["step"], row["name"]) for row in warned(run_dir)] == [(7, "constant_reward")]  # five steps from there


# What the monitors are given


def step_of(number: int, **changes: Any) -> Step:
    """A step of two prompts with two responses each, whose batch has what a trained step's has."""
    lengths = [4, 5, 4, 6]
    sampled = [np.arange(length) >= 2 for length in lengths]
    columns: dict[str, list[np.ndarray]] = {
        "input_ids": [np.arange(length) for length in lengths],
        "sampled_mask": sampled,
        "old_logprobs": [np.where(mask, -1.0, 9.0).astype(np.float32) for mask in sampled],
        "ref_logprobs": [np.where(mask, -1.5, -9.0).astype(np.float32) for mask in sampled],
    }
    sequences: dict[str, np.ndarray | list[Any]] = {
        "group": np.array([0, 0, 1, 1]),
        "reward": np.array([0, 1, 1, 1], np.float32),
        "finish_reason": ["length", "stop", "stop", "length"],
    }
    metrics = {"actor/entropy": 0.5, "actor/pg_loss": 0.01, "actor/grad_norm": 1.0}
    return Step(
        number=number,
        epoch=0,
        prompts=[],
        batch=PackedBatch.from_sequences(columns, sequences={**sequences, **changes}),
        metrics=metrics,
    )


def test_the_numbers_of_a_step_are_those_of_its_responses(overrides: Overrides, tmp_path: Path) -> None:
    health = Health(resolve(overrides()).config, tmp_path / "warnings.jsonl")
    found = health.look(step_of(1))
    assert found["health/truncated_responses"] == 0.5
    assert found["health/zero_variance_groups"] == 0.5
    assert found["health/duplicate_responses"] == 0.0
    assert found["health/duplicate_responses_batch"] == 0.5  # prompts are no part of a response
    assert found["health/kl"] == pytest.approx(np.exp(-0.5) + 0.5 - 1)
    unscored = health.look(step_of(2, reward=np.array([np.nan, 1, 1, 1], np.float32)))
    assert unscored["health/zero_variance_groups"] == 1.0


def test_what_a_run_has_not_is_not_watched(overrides: Overrides, tmp_path: Path) -> None:
    step = step_of(1)
    step.metrics = {}  # the critic warms up, or the old log-probs are bypassed
    ignoring = resolve(overrides(actor_rollout_ref__rollout__ignore_eos="true")).config
    found = Health(ignoring, tmp_path / "warnings.jsonl").look(step)
    assert not {"health/kl", "health/entropy_ratio", "health/truncated_responses"} & set(found)


def test_a_file_that_cannot_be_written_does_not_stop_the_run(
    overrides: Overrides, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    health = Health(resolve(overrides()).config, tmp_path / "folder")
    for number in range(1, 11):
        health.look(step_of(number))
        health.tell(number)
    said = capsys.readouterr().err
    assert "Step 10, warning truncated_responses" in said
    assert "The warnings of step 10 could not be recorded" in said


def test_a_damaged_state_lets_the_monitors_begin_anew(
    overrides: Overrides, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    health = Health(resolve(overrides()).config, tmp_path / "warnings.jsonl")
    health.load_state_dict({"monitor": {"of": "another version"}, "untold": []})
    assert "The health monitors begin anew" in capsys.readouterr().err
    assert "health/kl" in health.look(step_of(1))


def test_a_damaged_row_is_named_in_the_report(uninterrupted: Path, tmp_path: Path) -> None:
    shutil.copytree(uninterrupted, tmp_path / "run")
    with (tmp_path / "run" / "warnings.jsonl").open("a") as file:
        file.write('{"step": 6}\n')
    page = write_report(tmp_path / "run").read_text()
    assert "No other reward was ever seen" in page and "&#x27;name&#x27; is missing" in page


# What the texts and pages promise


KEY = r"\b(?:actor_rollout_ref|critic|data|algorithm|reward|trainer)\.[\w.]*\w"


def all_messages() -> list[str]:
    """Every text of every monitor, with and without the settings of a run."""
    messages: list[str] = []
    rows, many = np.arange(8), np.arange(16)
    solved = np.where(many == 0, 0.0, 1.0)
    hard = 1.0 - solved
    spread = {"rewards": rows / 7.0}
    one = [np.arange(20)] * 8
    runs: list[list[dict[str, Any]]] = [
        [{"rewards": np.ones(8)}] * 6,
        [spread] + [{"rewards": np.ones(8)}] * 6,
        [spread] + [{"rewards": np.zeros(8)}] * 6,
        [{"rewards": solved, "group": many // 2}] * 12,
        [{"rewards": hard, "group": many // 2}] * 12,
        [{"responses": one, "truncated": np.ones(8, bool), "group": rows // 2}] * 12,
        [{"entropy": value} for value in [1.0] * 5 + [0.1] * 12],
        [{"entropy": value} for value in [1.0] * 5 + [9.0] * 12],
        [{"kl": 0.5}] * 60,
        [{"kl": 0.0}] * 60,
        [{"loss": (-1.0) ** step} for step in range(60)],
        [{"grad_norm": np.nan}] * 3,
    ]
    for sign, scale in ((1.0, 20), (-1.0, 1)):
        runs.append(
            [
                {
                    "rewards": sign * np.arange(8),
                    "responses": [np.arange((4 if step < 5 else scale) * k) for k in range(1, 9)],
                }
                for step in range(20)
            ]
        )
    no_kl = {"algorithm.use_kl_in_reward": False, "actor_rollout_ref.actor.use_kl_loss": False}
    in_reward = {"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": 0.01}
    adaptive = {**in_reward, "algorithm.kl_ctrl.type": "adaptive"}
    explored = {
        "actor_rollout_ref.actor.clip_ratio_high": 0.3,
        "actor_rollout_ref.actor.entropy_coeff": 0.01,
        "algorithm.filter_groups.enable": True,
        "actor_rollout_ref.rollout.n": 4,
    }
    for given in ({}, no_kl, in_reward, adaptive, explored):
        for steps in runs:
            monitor = HealthMonitor(settings=given)
            for step, inputs in enumerate(steps, 1):
                messages += [warning.message for warning in monitor.update(step, **inputs)[1]]
    return messages


def test_every_key_that_a_warning_names_is_live() -> None:
    messages = all_messages()
    named = {key for text in messages for key in re.findall(KEY, text)}
    assert {"algorithm.filter_groups.enable", "algorithm.kl_ctrl.target_kl", "data.max_response_length"} <= named
    assert len(named) >= 13
    assert named <= set(live_keys()), named - set(live_keys())
    assert all(message.endswith(".") and "\n" not in message for message in messages)


def test_every_warning_and_every_metric_is_documented(uninterrupted: Path) -> None:
    if not DOCS.exists():
        pytest.skip("the documentation is not beside this package")
    page = (DOCS / "algorithms" / "health.md").read_text("utf-8")
    monitor, logged = HealthMonitor(), set()
    for step in range(1, 50):
        draw = np.random.default_rng(step)
        metrics, _ = monitor.update(
            step,
            rewards=draw.random(8),
            group=np.arange(8) // 4,
            responses=[np.arange(size) for size in draw.integers(2, 9, 8)],
            truncated=np.zeros(8, bool),
            entropy=1.0,
            kl=0.05,
            loss=draw.random(),
            grad_norm=1.0,
        )
        logged |= {name.removeprefix("health/") for name in metrics}
    assert len(logged) == 18
    assert {name.removeprefix("health/") for row in health_metrics(uninterrupted) for name in row} <= logged
    warnings = {key.removeprefix("streak/") for key in monitor.state_dict() if key.startswith("streak/")}
    for name in logged | warnings | {"kl_out_of_range"}:
        assert f"`{name}`" in page, name


def test_keys_on_the_page_are_live() -> None:
    if not DOCS.exists():
        pytest.skip("the documentation is not beside this package")
    page = (DOCS / "algorithms" / "health.md").read_text("utf-8")
    named = set(re.findall(KEY, page))
    assert len(named) >= 10 and named <= set(live_keys()), named - set(live_keys())
