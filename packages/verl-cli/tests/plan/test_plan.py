"""`verl-cli plan` from its command line to its last line."""

import io
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from transformers import AutoTokenizer
from typer.testing import CliRunner
from verl_cli.config import ConfigError, resolve
from verl_cli.main import app
from verl_cli.plan import Plan, make_plan, render, run_plan
from verl_data import PromptLoader, write_rows

Overrides = Callable[..., list[str]]
SCREEN = (100, 50)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts of different lengths."""
    folder = tmp_path_factory.mktemp("rows")
    write_rows(
        (
            {
                "data_source": "verl/arithmetic",
                "prompt": [{"role": "user", "content": f"{10**i}+1="}],
                "reward_model": {"style": "rule", "ground_truth": str(10**i + 1)},
            }
            for i in range(11)
        ),
        folder / "train.parquet",
    )
    return folder


def text_of(plan: Plan, width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False).print(render(plan))
    return out.getvalue().splitlines()


@pytest.mark.alone
def test_a_sound_run(overrides: Overrides, rows: Path, tmp_path: Path, assets: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    arguments = overrides(data__train_files=rows / "train.parquet", data__train_batch_size=4)
    resolved = resolve(arguments)
    plan = make_plan(resolved)
    assert plan.problems == []
    assert plan.ok and plan.warnings == []
    assert sorted(tmp_path.rglob("*")) == before, "a plan writes nothing"

    # What the run itself finds, with torch beside it.
    tokenizer = AutoTokenizer.from_pretrained(assets / "model")
    loader = PromptLoader(resolved.config.data.train_files, tokenizer, resolved.config.data, training=True)
    lengths = [len(prompt.prompt_ids) for prompt in loader.all_prompts()]
    first = loader.all_prompts()[0]
    assert plan.batch.lengths is not None and plan.schedule is not None and plan.sample is not None
    assert (plan.batch.lengths.usable, plan.batch.lengths.shortest, plan.batch.lengths.longest) == (11, 4, 14)
    assert (min(lengths), max(lengths)) == (4, 14)
    assert plan.schedule.steps_per_epoch == loader.steps_per_epoch == 2
    assert plan.schedule.rows_left_out == 3
    assert (plan.sample.prompt, plan.sample.tokens) == (tokenizer.decode(first.prompt_ids), len(first.prompt_ids))
    assert plan.sample.ground_truth == first.ground_truth == "2"
    assert [tried.response for tried in plan.sample.tried] == ["", "2"]
    assert plan.memory is not None and plan.disk is not None

    wide = text_of(plan, SCREEN[0])
    assert len(wide) <= SCREEN[1] and max(map(len, wide)) <= SCREEN[0]
    whole = " ".join(" ".join(wide).split())
    for expected in (
        "4 prompts x n=2 -> 8 sequences of at most 20 tokens",
        "1 mini-batch of 4 prompts (8 sequences) -> 1 optimiser step a training step, 2 in the run",
        "4 to 14 tokens, median 9 (all 11 rows looked at)",
        "11 rows: an epoch is 2 steps of 4 prompts; 3 rows left out of each",
        "trainer.save_freq counts steps, not epochs",
        "trainer.test_freq counts steps, not epochs",
        "hf (float32)",
        "'1+1=' (4 tokens)",
        "Nothing is wrong.",
    ):
        assert expected in whole
    for width in (80, 50, 30):
        assert max(map(len, text_of(plan, width))) <= width
    told = json.loads(json.dumps(plan.as_dict()))
    assert told["ok"] and told["batch"]["sequences"] == 8
    assert told["memory"]["peak"] == max(phase["total"] for phase in told["memory"]["phases"])


def test_a_mix_and_an_order_are_shown_as_the_loader_makes_them(
    overrides: Overrides, rows: Path, tmp_path: Path, assets: Path
) -> None:
    (tmp_path / "levels.py").write_text("def level(row):\n    print('hello')\n    return len(row['prompt'])\n")
    train, few = rows / "train.parquet", tmp_path / "few.jsonl"
    few.write_text(
        '{"data_source": "verl/arithmetic", "prompt": [{"role": "user", "content": "1+1="}], "reward_model": '
        '{"style": "rule", "ground_truth": "2"}}\n'
    )
    arguments = [
        *overrides(data__train_files=f"[{train},{few}]", data__train_batch_size=4),
        "data.train_weights=[3,1]",
        f"data.order_by={tmp_path / 'levels.py'}:level",
    ]
    resolved = resolve(arguments)
    plan = make_plan(resolved)
    assert plan.problems == []
    assert [(source.entry, source.rows, source.share) for source in plan.mix] == [
        (str(train), 11, 0.75),
        (str(few), 1, 0.25),
    ]
    tokenizer = AutoTokenizer.from_pretrained(assets / "model")
    loader = PromptLoader(resolved.config.data.train_files, tokenizer, resolved.config.data, training=True)
    assert plan.schedule is not None and plan.schedule.steps_per_epoch == loader.steps_per_epoch == 3
    assert [sum(prompt.row == 11 for prompt in prompts) for _, prompts in loader.batches(1)] == [1, 1, 1]
    whole = " ".join(" ".join(text_of(plan, 200)).split())
    assert f"75.0% of every batch from {train} (11 rows, 0.818 passes an epoch)" in whole
    assert f"25.0% of every batch from {few} (1 row, 3 passes an epoch)" in whole
    assert f"rows of each entry in ascending order of {tmp_path / 'levels.py'}:level (data.order_by)" in whole
    assert json.loads(json.dumps(plan.as_dict()))["mix"][1]["rows"] == 1


def test_dynamic_sampling_is_shown_with_what_it_may_generate(overrides: Overrides) -> None:
    plan = make_plan(resolve([*overrides(), "algorithm.filter_groups.enable=true"]))
    assert plan.problems == []
    whole = " ".join(" ".join(text_of(plan, 200)).split())
    assert (
        "sampling until 8 prompts have responses that differ in acc: up to 10 batches = 80 prompts (160 sequences) are "
        "generated a step (algorithm.filter_groups)" in whole
    )
    assert "2 training steps = at least 1 epochs" in whole
    assert json.loads(json.dumps(plan.as_dict()))["dynamic_sampling"]["most_sequences"] == 160


def test_a_mix_and_an_order_that_cannot_be_are_problems(overrides: Overrides, rows: Path, tmp_path: Path) -> None:
    train = rows / "train.parquet"
    with pytest.raises(ConfigError, match=r"data.train_weights has 2 weights \(1, 2\), but data.train_files has 1"):
        resolve([*overrides(data__train_files=train), "data.train_weights=[1,2]"])
    with pytest.raises(ConfigError, match=r"data.train_weights must be numbers of at least 0"):
        resolve([*overrides(data__train_files=train), "data.train_weights=[-1]"])
    given = overrides(data__train_files=train, data__train_batch_size=4)
    (problem,) = make_plan(resolve([*given, "data.order_by=level"])).problems
    assert f"{train}, row 0: data.order_by=level: there is no level here" in problem
    assert "first of 11 such rows" in problem
    (problem,) = make_plan(resolve([*given, "data.order_by=none.py:level"])).problems
    assert "data.order_by: the file none.py does not exist" in problem
    (tmp_path / "empty.jsonl").touch()
    given = overrides(data__train_files=f"[{train},{tmp_path / 'empty.jsonl'}]", data__train_batch_size=4)
    (problem,) = make_plan(resolve([*given, "data.train_weights=[1,1]"])).problems
    assert "empty.jsonl has no rows to give 1 of data.train_weights" in problem
    assert make_plan(resolve([*given, "data.train_weights=[1,0]"])).ok


def test_everything_that_is_wrong_is_told_at_once(
    overrides: Overrides, tmp_path: Path, assets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[dict[str, Any]] = [
        {
            "data_source": "mine",
            "prompt": [{"role": "user", "content": "1" * size}],
            "reward_model": {"style": "rule", "ground_truth": "2"},
        }
        for size in (4, 40, 5, 5)
    ]
    rows[3]["prompt"] = "text"
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    reward = (
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return solution_str[0]\n"
    )
    (tmp_path / "reward.py").write_text(reward)
    shutil.copytree(assets / "model", tmp_path / "model")
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    (tmp_path / "file").write_text("")
    arguments = overrides(
        data__train_files=tmp_path / "rows.jsonl",
        data__val_files=tmp_path / "none.parquet",
        data__train_batch_size=10,
        data__max_response_length=100,
        actor_rollout_ref__model__path=tmp_path / "model",
        critic__model__path=tmp_path / "no-model",
        reward__custom_reward_function__path=tmp_path / "reward.py",
        trainer__default_local_dir=tmp_path / "file" / "run",
        data__trian_files="x",
        actor_rollout_ref__rollout__top_p=2,
    )
    assert run_plan(arguments, as_json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["ok"]
    expected = [
        "data.trian_files",
        "actor_rollout_ref.rollout.top_p=2",
        "data.train_batch_size=10 prompts cannot be cut into whole mini-batches",  # bug bank F03
        f"There is no model folder {tmp_path / 'no-model'}",
        "model.safetensors is not a whole safetensors file",
        "row 3 (line 4): field prompt",
        "row 1 (line 2): the prompt has 40 tokens",
        "3 rows < batch 10",
        "none.parquet does not exist",
        "IndexError",
        "cannot be made",
    ]
    missing = [text for text in expected if not any(text in problem for problem in told["problems"])]
    # Three sound rows are too few, and so are all four.
    assert missing in ([], ["3 rows < batch 10"])
    assert any("rows < batch 10" in problem for problem in told["problems"])
    assert any("has 64 positions" in warning for warning in told["warnings"])
    ten_four = next(problem for problem in told["problems"] if "cannot be cut" in problem)
    assert "10" in ten_four and "ppo_mini_batch_size=4" in ten_four


def test_a_process_that_plans_never_imports_torch(overrides: Overrides) -> None:
    arguments = [text for text in overrides() if not text.startswith("critic")]
    program = (
        "import sys\n"
        "from verl_cli.main import app\n"
        "try:\n"
        f"    app(['plan', '--preset', 'grpo', '--json', *{arguments!r}])\n"
        "finally:\n"
        "    assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    critic = next(role for role in told["roles"] if role["name"] == "critic")
    assert not critic["present"] and "adv_estimator=grpo" in critic["why"]
    assert [updates["role"] for updates in told["batch"]["updates"]] == ["actor"]
    assert "critic" not in told["memory"]["resident"]


def test_a_model_without_a_chat_template(overrides: Overrides, tmp_path: Path, assets: Path) -> None:
    shutil.copytree(assets / "model", tmp_path / "model", ignore=shutil.ignore_patterns("chat_template*"))
    settings = tmp_path / "model" / "tokenizer_config.json"
    plain = {name: value for name, value in json.loads(settings.read_text()).items() if name != "chat_template"}
    settings.write_text(json.dumps(plain))
    result = CliRunner().invoke(app, ["plan", *overrides(actor_rollout_ref__model__path=tmp_path / "model")])
    assert result.exit_code == 1
    output = " ".join(result.output.split())
    assert "has no chat template" in output and "So it is with 20 of the 20 prompts looked at." in output
    # The model's own sizes are known all the same.
    assert "update_actor" in output


def test_a_folder_without_a_tokenizer_and_a_key_its_model_does_not_have(
    overrides: Overrides, tmp_path: Path, assets: Path
) -> None:
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(assets / "model" / name, tmp_path / "model")
    arguments = overrides(
        actor_rollout_ref__model__path=tmp_path / "model",
        actor_rollout_ref__model__override_config="{max_positions: 3}",
    )
    problems = make_plan(resolve(arguments)).problems
    assert any(f"There is no tokenizer in {tmp_path / 'model'}" in problem for problem in problems)
    assert any("override_config sets max_positions" in problem for problem in problems)


def test_nothing_set_at_all(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run_plan([f"trainer.default_local_dir={tmp_path / 'run'}"]) == 1
    output = capsys.readouterr().out
    assert "actor_rollout_ref.model.path is not set" in output and "data.val_files is not set" in output


def test_a_run_that_goes_on_says_from_where(overrides: Overrides, tmp_path: Path, assets: Path) -> None:
    from verl_cli.commands.train import run_training

    # A run of one step, which is then planned to be two.
    run_training(overrides(trainer__total_training_steps=1, trainer__val_before_train="false"))
    plan = make_plan(resolve(overrides(trainer__val_before_train="false")))
    assert plan.problems == []
    assert plan.start_step == 1
    assert any("Going on from step 1" in notice for notice in plan.notices)
    # The files hold what is planned for, and a header of less than 2 KiB beside each of about 200 tensors.
    assert plan.disk is not None
    written = [
        path for path in (tmp_path / "run" / "global_step_1").rglob("*") if path.suffix in (".distcp", ".safetensors")
    ]
    assert 0 <= sum(path.stat().st_size for path in written) - plan.disk.checkpoint_bytes < 200 * 2048
