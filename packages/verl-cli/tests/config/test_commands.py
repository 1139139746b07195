"""`verl-cli config show`, `keys` and `explain`."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner
from verl_cli.config import PRESETS, explain, flat_keys, resolve
from verl_cli.config.published import RENAMED, published
from verl_cli.main import app

PATHS = ("data.train_files=train.parquet", "data.val_files=val.parquet", "actor_rollout_ref.model.path=model")
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"


def config(*arguments: str, code: int = 0) -> str:
    """What the command prints; errors go to stderr and are not part of it."""
    result = CliRunner().invoke(app, ["config", *arguments])
    assert result.exit_code == code, result.output
    return result.stdout


def comments(text: str) -> dict[str, str]:
    """The comment of each key by its last part (which must be unique), or by dotted name where it is nested."""
    found: dict[str, str] = {}
    path: list[str] = []
    for line in text.splitlines():
        body, mark, comment = line.partition("  # ")
        name = body.strip().split(":")[0]
        path[(len(line) - len(line.lstrip())) // 2 :] = [name]
        if mark:
            found[".".join(path)] = comment
    return found


# What configuration costs


def test_a_configuration_is_resolved_without_a_heavy_library() -> None:
    overrides = [*PATHS, f"{ACTOR}.fsdp_config.dtype=bf16", "algorithm.kl_penalty=k3", "trainer.logger=[console,wandb]"]
    code = f"""import sys
from verl_cli.config import resolve
resolve({overrides!r})
from verl_cli.main import app
print(*{{"torch", "transformers", "ray", "datasets", "wandb"}} & set(sys.modules))"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


# show


@pytest.mark.parametrize("preset", PRESETS)
def test_what_show_prints_resolves_to_the_same_configuration(tmp_path: Path, preset: str) -> None:
    overrides = [*PATHS, "trainer.seed=7", "trainer.experiment_name='a # b: ${trainer.seed}'"]
    for option in ((), ("--only-set",)):
        text = config("show", *overrides, "--preset", preset, *option)
        file = tmp_path / "shown.yaml"
        file.write_text(text, encoding="utf-8")
        assert resolve([], preset=preset, config_file=file).config == resolve(overrides, preset=preset).config


@pytest.mark.alone
def test_show_says_where_each_value_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("trainer: {total_epochs: 3, seed: 5}\n")
    overrides = (*PATHS, "trainer.seed=6", f"{ACTOR}.grad_clip=0.5")
    said = comments(config("show", *overrides, "--config", str(file), "--preset", "grpo"))
    assert said["trainer.seed"] == "the command line"
    assert said["trainer.total_epochs"] == str(file)
    assert said[f"{ACTOR}.optim.clip_grad"] == "the command line"
    assert said[f"{ROLLOUT}.n"] == "preset grpo"
    assert said["data.max_prompt_length"] == "default"
    assert said["data.seed"] == "follows trainer.seed"
    assert said["trainer.default_local_dir"] == "follows trainer.project_name, trainer.experiment_name"
    shown = set(said)
    assert "critic.optim.lr" not in shown  # without effect under grpo
    assert comments(config("show", *PATHS))["algorithm.use_kl_in_reward"].startswith("rule: true with gae")
    assert len({line.index("# ") for line in config("show", *PATHS).splitlines() if "# " in line}) == 1


def test_show_only_set_leaves_out_every_default() -> None:
    text = config("show", *PATHS, "trainer.seed=1", "trainer.total_epochs=2", "data.seed=1", "--only-set")
    assert set(comments(text)) == {*(path.split("=")[0] for path in PATHS), "trainer.total_epochs"}
    assert "data.seed" in comments(config("show", *PATHS, "data.seed=4", "--only-set"))


def test_show_refuses_what_train_refuses() -> None:
    result = CliRunner().invoke(app, ["config", "show", *PATHS, "trainer.sead=1", f"{ROLLOUT}.mode=sync"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "The nearest is trainer.seed." in result.stderr
    assert "--allow-unused" in result.stderr
    result = CliRunner().invoke(app, ["config", "show", *PATHS, f"{ROLLOUT}.mode=sync", "--allow-unused"])
    assert result.exit_code == 0
    assert "has no effect in this run" in result.stderr
    assert yaml.safe_load(result.stdout)["data"]["train_files"] == "train.parquet"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda text: text != "None")
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


# Resolving costs far more than drawing: each of few examples holds many texts and values.
@settings(deadline=None, max_examples=15)
@given(
    names=st.lists(texts.filter(bool), min_size=4, max_size=4),
    options=st.dictionaries(st.from_regex(r"[a-z]{1,5}", fullmatch=True), values, min_size=10, max_size=40),
)
def test_any_text_and_any_mapping_survive_show(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], options: dict[str, object]
) -> None:
    folder = tmp_path_factory.mktemp("any")

    def escaped(value: object) -> object:
        if isinstance(value, str):
            return re.sub(r"(\\*)\$\{", lambda match: match[1] * 2 + "\\${", value)
        if isinstance(value, dict):
            return {key: escaped(item) for key, item in value.items()}
        return [escaped(item) for item in value] if isinstance(value, list) else value

    experiment, project, prompt_key, reward_key = names
    tree = {
        "trainer": {
            "experiment_name": escaped(experiment),
            "project_name": escaped(project),
            "default_local_dir": "x",
        },
        "data": {"prompt_key": escaped(prompt_key), "reward_fn_key": escaped(reward_key)},
        "reward": {"custom_reward_function": {"reward_kwargs": escaped(options)}},
    }
    (folder / "given.yaml").write_text(yaml.safe_dump(tree, allow_unicode=False), encoding="utf-8")
    first = resolve(PATHS, config_file=folder / "given.yaml").config
    (folder / "shown.yaml").write_text(
        config("show", *PATHS, "--config", str(folder / "given.yaml"), "--only-set"), encoding="utf-8"
    )
    assert resolve([], config_file=folder / "shown.yaml").config == first
    assert [first.trainer.experiment_name, first.trainer.project_name] == [experiment, project]
    assert [first.data.prompt_key, first.data.reward_fn_key] == [prompt_key, reward_key]


# keys


@pytest.mark.alone
def test_keys_lists_every_live_key_on_a_line_in_the_order_of_the_tree() -> None:
    rows = [line.split("\t") for line in config("keys").splitlines()]
    assert [row[0] for row in rows] == [key.name for key in flat_keys()]
    assert {len(row) for row in rows} == {4}
    table = {row[0]: row[1:] for row in rows}
    assert table["trainer.seed"] == ["int", "1", "Seed of everything random in the run that has no seed of its own."]
    assert table["trainer.resume_mode"][:2] == ["auto|disable|path", "auto"]
    assert table["data.seed"][:2] == ["int|null", "${trainer.seed}"]
    assert table[f"{ACTOR}.optim.betas"][:2] == ["[float,float]", "[0.9, 0.999]"]
    assert table["data.train_files"][:2] == ["text|list[text]", "none: it must be given"]
    assert table["trainer.logger"][:2] == ["list[text]", '["console"]']


def test_keys_takes_a_part_of_the_name() -> None:
    listed = [line.split("\t")[0] for line in config("keys", "kl_ctrl").splitlines()]
    assert listed == [f"algorithm.kl_ctrl.{name}" for name in ("type", "kl_coef", "horizon", "target_kl")]
    assert config("keys", "no_such_part", code=1) == ""


# explain


def said(key: str, *, code: int = 0) -> dict[str, str]:
    lines = config("explain", key, code=code).splitlines()
    return {re.split(r"\s{2,}", line)[0]: re.split(r"\s{2,}", line, maxsplit=1)[1] for line in lines}


def test_explain_a_live_key() -> None:
    lines = said(f"{ACTOR}.clip_ratio_high")
    assert lines["Live"] == f"{ACTOR}.clip_ratio_high"
    assert "clip-higher" in lines["For"]
    assert lines["Type"].startswith("a number")
    assert "at least 0 with vanilla, gspo" in lines["Allowed"]
    assert "within [0, 1] with dppo_tv" in lines["Allowed"]
    assert lines["Null"] == f"takes the value of ${{{ACTOR}.clip_ratio}}"
    assert "it belongs to vanilla, gspo" in lines["No effect"]
    assert "cosine" in said(f"{ACTOR}.optim.num_cycles")["No effect"]
    assert "wandb" in said("trainer.logger")["Allowed"]
    assert "clearml" in said("trainer.logger")["Not here"]


def test_explain_a_renamed_key_explains_what_it_is_now() -> None:
    for mark in ("", "+", "++"):
        lines = said(f"{mark}{ROLLOUT}.micro_batch_size_per_gpu")
        assert lines["Renamed"].endswith(f"is now called {ROLLOUT}.max_num_seqs.")
        assert lines["Live"] == f"{ROLLOUT}.max_num_seqs"
        assert f"{ROLLOUT}.micro_batch_size_per_gpu" in lines["Old names"]
    both = said("critic.model.fsdp_config.optimizer_offload")
    assert "critic.fsdp.optimizer_offload" in both["Renamed"]
    assert both["Remedy"]


def test_explain_a_published_key_without_effect() -> None:
    lines = said(f"{ROLLOUT}.gpu_memory_utilization")
    assert "means nothing" in lines["No effect"]
    assert "KV cache" in lines["Why"]
    assert lines["Remedy"] == "Leave it out."
    assert lines["Default"].startswith("0.5 ")


def test_explain_an_unknown_key_exits_with_1() -> None:
    assert "The nearest is trainer.seed." in said("trainer.sead", code=1)["Unknown"]
    assert "nearest" not in said("banana=3", code=1)["Unknown"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("trainer.seed=4", "4 is accepted"),
        ("trainer.seed=-4", "not accepted: trainer.seed=-4 must be at least 0"),
        ("trainer.seed=four", "not accepted: trainer.seed=four"),
        ("+trainer.resume_mode=resume_path", "accepted; it is now called path"),
        ("trainer.logger=[console,clearml]", "not accepted"),
        ("trainer.logger=[console,consle]", "Did you mean console?"),
        ("trainer.logger=console", "is accepted"),
        (f"{ACTOR}.grad_clip=0.5", "0.5 is accepted"),
        ("data.seed=${trainer.seed}", "if what it refers to fits"),
        (f"{ROLLOUT}.tensor_model_parallel_size=4", "4 is refused; with --allow-unused"),
        (f"{ROLLOUT}.tensor_model_parallel_size=2", "accepted in silence"),
        (f"{ROLLOUT}.tensor_model_parallel_size=null", "accepted in silence"),
    ],
)
def test_explain_says_whether_a_value_would_be_accepted(text: str, words: str) -> None:
    assert words in said(text)["Value"]


def test_explain_a_section_and_an_entry_of_an_open_mapping() -> None:
    assert said("algorithm.kl_ctrl")["Section"].endswith("type kl_coef horizon target_kl")
    assert "none of which" in said("trainer.v1")["Section"]
    lines = said("reward.reward_kwargs.method")
    assert lines["Renamed"].endswith("reward.custom_reward_function.reward_kwargs.method.")
    assert "whose names are yours" in lines["Live"]


def test_every_key_has_an_explanation() -> None:
    for key in [*(key.name for key in flat_keys()), *published(), *RENAMED]:
        explanation = explain(key)
        assert explanation.known, key
        assert {heading for heading, _ in explanation.lines} & {"Live", "No effect", "Section"}, key
        assert all(text and "\n" not in text for _, text in explanation.lines), key


@pytest.mark.parametrize("arguments", [["keys", "kl_ctrl"], ["explain", f"{ACTOR}.clip_ratio_high"]])
def test_on_a_terminal_lines_are_wrapped_to_its_width(arguments: list[str]) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-c", "from verl_cli.main import main; main()", "config", *arguments]
    done = subprocess.run(
        command, stdout=slave, stderr=subprocess.PIPE, env=os.environ | {"COLUMNS": "70", "NO_COLOR": "1"}, check=False
    )
    os.close(slave)
    text = os.read(master, 100_000).decode()
    os.close(master)
    assert done.returncode == 0, done.stderr
    assert "\t" not in text
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    assert max(map(len, plain)) <= 70
    assert " ".join("".join(config(*arguments)).split("\t")[-1].split())[-30:] in " ".join(" ".join(plain).split())


def test_a_bad_argument_is_one_paragraph() -> None:
    result = CliRunner().invoke(app, ["config", "explain", "trainer.seed={"])
    assert result.exit_code == 1
    assert result.stderr.startswith("error: The value of trainer.seed={ cannot be read")
