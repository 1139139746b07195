"""`verl-cli eval`: the numbers of validation in training, and what is refused."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from verl_cli.commands.train import run_training
from verl_cli.config import flat_keys
from verl_cli.evaluation.inference import resolve_inference, settings
from verl_cli.main import app
from verl_data import write_rows

Overrides = Callable[..., list[str]]

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0):
    score = sum(map(ord, solution_str)) % 7 / 7 + bonus
    return {"score": score, "acc": len(solution_str) % 2, "pred": solution_str[:1]}
"""


def run(*arguments: object) -> str:
    """Standard output of a command that succeeds."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def failure(*arguments: object) -> str:
    """The one paragraph of a command that fails."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert result.exit_code == 1, result.output
    assert result.stderr.count("error: ") == 1
    return result.stderr[result.stderr.index("error: ") :]


@pytest.fixture
def command(assets: Path, tmp_path: Path) -> list[object]:
    """Evaluate the tiny model on its validation rows by a reward with predictions."""
    (tmp_path / "own.py").write_text(REWARD)
    return [
        *("eval", assets / "model", assets / "validation.parquet", "data.max_prompt_length=16", "trainer.device=cpu"),
        *("--max-tokens", 4, "--reward", tmp_path / "own.py"),
    ]


def validated(folder: Path, step: int) -> dict[str, float]:
    """What a run's validation at a step computed."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    data = next(row["data"] for row in rows if row["step"] == step)
    return {name: value for name, value in data.items() if name.startswith("val-")}


def samples(folder: Path, step: int) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "val_samples.jsonl").read_text().splitlines()]
    kept = [row for row in rows if row["step"] == step]
    return [{key: row[key] for key in row.keys() - {"step", "initial_generation"}} for row in kept]


@pytest.mark.alone
def test_the_numbers_are_those_of_validation_in_training(
    overrides: Overrides, assets: Path, command: list[object], tmp_path: Path
) -> None:
    kwargs = "actor_rollout_ref__rollout__val_kwargs"
    changes = {f"{kwargs}__n": 4, f"{kwargs}__temperature": 0.8, f"{kwargs}__top_p": 0.9, "trainer__save_freq": 1}
    run_training(overrides(**changes, reward__custom_reward_function__path=tmp_path / "own.py", trainer__test_freq=1))
    sampling = ("--n", 4, "--temperature", 0.8, "actor_rollout_ref.rollout.val_kwargs.top_p=0.9")
    models = {0: assets / "model"} | {
        step: tmp_path / "run" / f"global_step_{step}" / "actor" / "huggingface" for step in (1, 2)
    }
    for step, model in models.items():
        out = tmp_path / f"eval {step}"
        run("eval", model, *command[2:], *sampling, "--out", out)
        report = json.loads((out / "eval.json").read_text())
        assert report["metrics"] == validated(tmp_path / "run", step)
        assert samples(out, 0) == samples(tmp_path / "run", step)
        assert {"val-core/verl/arithmetic/acc/maj@4", "val-aux/verl/arithmetic/reward/worst@2"} <= set(
            report["metrics"]
        )
        assert report["accuracy"] == report["metrics"]["val-core/verl/arithmetic/acc/mean@4"]
        assert report["config"]["actor_rollout_ref.rollout.val_kwargs.n"] == 4
    assert len({json.dumps(validated(tmp_path / "run", step)) for step in models}) > 1


def test_the_table_has_a_line_per_data_source(command: list[object], tmp_path: Path) -> None:
    def row(source: str, question: str) -> dict[str, Any]:
        return {
            "data_source": source,
            "prompt": [{"role": "user", "content": question}],
            "reward_model": {"style": "rule", "ground_truth": "2"},
        }

    write_rows([row("b", "1+1="), row("a", "2+2="), row("b", "3+3=")], tmp_path / "mixed.parquet")
    out = run(*command[:2], tmp_path / "mixed.parquet", *command[3:], "--n", 2, "--temperature", 1)
    lines = [line.split("  ") for line in out.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells[0] == ["data source", "score", "prompts", "mean@2", "best@2", "maj@2", "mean tokens", "cut"]
    assert [line[:3] for line in cells[1:3]] == [["a", "acc", "1"], ["b", "acc", "2"]]
    assert all(0 <= float(line[3]) <= float(line[4]) <= 1 for line in cells[1:3])
    assert out.splitlines()[3].startswith("6 responses in ")


def test_one_response_has_neither_best_nor_majority(command: list[object]) -> None:
    lines = run(*command).splitlines()
    assert "mean@1" in lines[0]
    assert lines[1].split()[4:6] == ["-", "-"]


def test_a_folder_with_files_is_left_alone(command: list[object], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    run(*command, "--out", tmp_path / "out")  # an empty folder is fine
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert set(before) == {"eval.json", "val_samples.jsonl"}
    assert "is not an empty folder" in failure(*command, "--out", tmp_path / "out")
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert "is not an empty folder" in failure(*command, "--out", tmp_path / "own.py")
    assert "cannot be made" in failure(*command, "--out", tmp_path / "own.py" / "out")


def test_keys_of_training_are_refused_and_everything_wrong_is_listed_at_once(command: list[object]) -> None:
    message = failure(
        *command,
        "algorithm.lam=0.9",
        "critic.optim.lr=1e-4",
        "actor_rollout_ref.actor.optim.lr=1e-5",
        "actor_rollout_ref.rollout.temperature=0.7",
        "data.train_files=other.parquet",
        "trainer.save_freq=5",
        "data.max_length=8",
    )
    assert "7 problems" in message
    for key in ("algorithm.lam", "critic.optim.lr", "actor_rollout_ref.actor.optim.lr", "data.train_files"):
        assert key in message
    assert "trainer.save_freq=5 has no effect in this run. It belongs to training" in message
    assert "Set actor_rollout_ref.rollout.val_kwargs.temperature." in message
    assert "There is no key data.max_length" in message


def test_every_key_is_either_used_or_refused() -> None:
    # Whoever adds a key decides here, and in inference.py, whether an evaluation reads it.
    config = resolve_inference("model", "rows.parquet", [], [], scored=True).config
    of_reward = {key.name for key in flat_keys() if key.name.startswith("reward.")}
    used = set(settings(config, scored=True))
    assert used == {
        "actor_rollout_ref.model.override_config",
        "actor_rollout_ref.model.path",
        "actor_rollout_ref.model.tokenizer_path",
        "actor_rollout_ref.model.trust_remote_code",
        "actor_rollout_ref.rollout.dtype",
        "actor_rollout_ref.rollout.ignore_eos",
        "actor_rollout_ref.rollout.max_num_seqs",
        "actor_rollout_ref.rollout.name",
        "actor_rollout_ref.rollout.seed",
        "actor_rollout_ref.rollout.val_kwargs.n",
        "actor_rollout_ref.rollout.val_kwargs.temperature",
        "actor_rollout_ref.rollout.val_kwargs.top_k",
        "actor_rollout_ref.rollout.val_kwargs.top_p",
        "data.apply_chat_template_kwargs",
        "data.filter_overlong_prompts",
        "data.max_prompt_length",
        "data.max_response_length",
        "data.prompt_format",
        "data.prompt_key",
        "data.reward_fn_key",
        "data.seed",
        "data.shuffle",
        "data.truncation",
        "data.val_files",
        "data.val_max_samples",
        *of_reward,
        "trainer.device",
        "trainer.n_gpus_per_node",
        "trainer.nnodes",
        "trainer.seed",
    }
    assert used - set(settings(config, scored=False)) == {
        "data.reward_fn_key",
        *of_reward,
    }


def test_several_files_are_one_data_set(assets: Path, command: list[object], tmp_path: Path) -> None:
    for name in ("part 1", "part 2"):
        (tmp_path / f"{name}.parquet").write_bytes((assets / "validation.parquet").read_bytes())
    run(*command[:2], tmp_path / "part *.parquet", *command[3:], "--out", tmp_path / "out")
    report = json.loads((tmp_path / "out" / "eval.json").read_text())
    assert report["data_sources"][0]["prompts"] == 10


def test_defaults_of_training_are_not_worth_an_error(command: list[object]) -> None:
    run(*command, "algorithm.lam=1.0", "trainer.save_freq=-1", "critic.optim.lr=null")


def test_an_option_and_its_key_must_agree(command: list[object]) -> None:
    run(*command, "data.max_response_length=4")
    message = failure(*command, "data.max_response_length=5")
    assert "--max-tokens is 4, and data.max_response_length=5 says otherwise" in message
    assert "MODEL is" in failure(*command, "actor_rollout_ref.model.path=elsewhere")
    assert "FILE is" in failure(*command, "data.val_files=elsewhere.parquet")
    assert "--reward is" in failure(*command, "custom_reward_function.path=other.py")


def test_more_responses_need_a_temperature(command: list[object]) -> None:
    message = failure(*command, "--n", 4)
    assert "--n 4 needs sampling" in message


def test_keys_of_data_and_reward_work_as_in_training(command: list[object], tmp_path: Path) -> None:
    arguments = (*command, "data.val_max_samples=2", "reward.custom_reward_function.reward_kwargs={bonus: 10}")
    run(*arguments, "--out", tmp_path / "out")
    report = json.loads((tmp_path / "out" / "eval.json").read_text())
    assert report["data_sources"][0]["prompts"] == 2
    assert report["metrics"]["val-aux/verl/arithmetic/reward/mean@1"] >= 10


def test_long_responses_are_no_matter_of_training_memory(command: list[object]) -> None:
    arguments = [argument for argument in command if argument not in ("--max-tokens", 4)]
    result = CliRunner().invoke(app, [str(a) for a in (*arguments, "data.max_response_length=40000")])
    assert result.exit_code == 0, result.output
    assert "The model has 64 positions" in result.stderr


def test_a_checkpoint_is_told_from_the_model_in_it(overrides: Overrides, command: list[object], tmp_path: Path) -> None:
    run_training(overrides(trainer__total_training_steps=1, trainer__val_before_train="false"))
    checkpoint = tmp_path / "run" / "global_step_1"
    for folder in (tmp_path / "run", checkpoint, checkpoint / "actor"):
        message = failure("eval", folder, *command[2:])
        assert f"The model is in {checkpoint / 'actor' / 'huggingface'}" in message


def test_what_is_wrong_with_model_file_or_reward_is_one_paragraph(command: list[object], tmp_path: Path) -> None:
    assert "There is no model folder /nowhere/model" in failure("eval", "/nowhere/model", *command[2:])
    assert "nowhere.parquet" in failure(*command[:2], "nowhere.parquet", *command[3:])
    assert "nowhere.py" in failure(*command[:-1], "nowhere.py")
    (tmp_path / "prompts.jsonl").write_text('{"prompt": [{"role": "user", "content": "1+1="}]}\n')
    assert "lacks data_source, reward_model" in failure(*command[:2], tmp_path / "prompts.jsonl", *command[3:])


def test_prompts_that_are_cut_or_left_out_are_told(command: list[object]) -> None:
    arguments = [argument for argument in command if argument != "data.max_prompt_length=16"]
    cut = CliRunner().invoke(app, [str(a) for a in (*arguments, "data.max_prompt_length=5", "data.truncation=left")])
    assert "5 prompts were cut to data.max_prompt_length=5 tokens (data.truncation=left)." in cut.stderr
    dropped = failure(*arguments, "data.max_prompt_length=5", "data.filter_overlong_prompts=true")
    assert "0 rows" in dropped


def test_help_is_instant_and_names_the_keys() -> None:
    code = (
        "import sys; from verl_cli.main import app\n"
        "try: app(['eval', '--help'])\n"
        "except SystemExit: sys.exit(bool({'torch', 'transformers', 'hydra'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert "data.max_response_length" in result.stdout
