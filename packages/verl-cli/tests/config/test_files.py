"""Configuration files, and the dump that is one."""

from pathlib import Path

import pytest
import yaml
from verl_cli.config import ConfigError, Resolved, dump, resolve
from verl_cli.config.dump import dump_commented
from verl_cli.config.keys import flatten

PATHS = ("data.train_files=train.parquet", "data.val_files=val.parquet", "actor_rollout_ref.model.path=model")
ACTOR = "actor_rollout_ref.actor"


def with_file(path: Path, text: str, *overrides: str, preset: str = "ppo", allow_unused: bool = False) -> Resolved:
    path.write_text(text, encoding="utf-8")
    return resolve([*PATHS, *overrides], config_file=path, preset=preset, allow_unused=allow_unused)


def refused(path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        with_file(path, text)
    (problem,) = caught.value.problems
    return problem


def test_a_file_stands_between_preset_and_overrides(tmp_path: Path) -> None:
    text = "trainer: {total_epochs: 3, seed: 5}\nactor_rollout_ref: {rollout: {n: 4}}\n"
    resolved = with_file(tmp_path / "my run.yaml", text, "trainer.seed=6", preset="grpo")
    assert resolved.config.trainer.total_epochs == 3
    assert resolved.config.trainer.seed == 6
    assert resolved.config.actor_rollout_ref.rollout.n == 4
    assert "trainer.total_epochs" in resolved.user_keys


def test_n_needs_no_quotes_and_survives_a_round_trip(tmp_path: Path) -> None:
    resolved = with_file(tmp_path / "run.yaml", "actor_rollout_ref: {rollout: {n: 1}}")
    path = tmp_path / "dumped.yaml"
    path.write_text(dump(resolved.config), encoding="utf-8")
    assert yaml.safe_load(path.read_text("utf-8"))["actor_rollout_ref"]["rollout"]["n"] == 1
    again = resolve(["actor_rollout_ref.rollout.n=16"], config_file=path)
    assert again.config.actor_rollout_ref.rollout.n == 16


def test_references_in_a_file(tmp_path: Path) -> None:
    text = (
        "data: {max_prompt_length: 100, max_response_length: '${data.max_prompt_length}'}\n"
        "critic: {optim: '${actor_rollout_ref.actor.optim}'}\n"
        "actor_rollout_ref: {actor: {optim: {lr: 0.5}}}\n"
        "trainer: {experiment_name: 'run-${trainer.seed}', seed: 1}\n"
    )
    config = with_file(tmp_path / "run.yaml", text, "trainer.seed=9").config
    assert config.data.max_response_length == 100
    assert config.critic.optim.lr == 0.5
    assert config.trainer.experiment_name == "run-9"


def test_a_defaults_list_composes_files_that_lie_beside_each_other(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("trainer: {seed: 3, total_epochs: 2}\n")
    text = "defaults: [base, _self_]\ntrainer: {seed: 4}\nhydra: {run: {dir: somewhere}}\n"
    resolved = with_file(tmp_path / "run.yaml", text)
    assert (resolved.config.trainer.seed, resolved.config.trainer.total_epochs) == (4, 2)
    assert {"trainer.seed", "trainer.total_epochs"} <= resolved.user_keys


def test_yaml_words_for_true_and_null(tmp_path: Path) -> None:
    text = "trainer: {val_only: on, total_training_steps: None}\nreward: {custom_reward_function: {path: ~}}\n"
    config = with_file(tmp_path / "run.yaml", text).config
    assert config.trainer.val_only is True
    assert config.trainer.total_training_steps is None
    assert config.reward.custom_reward_function.path is None


def test_a_yaml_boolean_where_text_is_expected_says_why(tmp_path: Path) -> None:
    problem = refused(tmp_path / "run.yaml", "trainer: {experiment_name: on}")
    assert "trainer.experiment_name=true" in problem
    assert "run.yaml" in problem
    assert "quote" in problem


def test_a_yaml_boolean_as_a_key_says_why(tmp_path: Path) -> None:
    assert "quote such a name" in refused(tmp_path / "run.yaml", "trainer: {on: 3}")


@pytest.mark.parametrize("text", ["trainer: {seed: 1", "- a\n- b\n", "trainer: {seed: 1}\ntrainer: {seed: 2}"])
def test_a_broken_file_is_one_paragraph(tmp_path: Path, text: str) -> None:
    problem = refused(tmp_path / "run.yaml", text)
    assert "run.yaml cannot be read" in problem
    assert "\n" not in problem


def test_a_preset_in_a_defaults_list_says_how_to_choose_one(tmp_path: Path) -> None:
    assert "preset option" in refused(tmp_path / "run.yaml", "defaults: [grpo, _self_]")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"trainer: {experiment_name: \xff\xfe}\n")
    with pytest.raises(ConfigError, match="UTF-8"):
        resolve(PATHS, config_file=path)


def test_a_missing_file_and_a_wrong_suffix_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no configuration file"):
        resolve(PATHS, config_file=tmp_path / "none.yaml")
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"Rename it to run\.yaml"):
        resolve(PATHS, config_file=tmp_path / "run.json")


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert with_file(tmp_path / "run.yaml", "").config == resolve(PATHS).config


def test_unknown_and_unused_keys_of_a_file_are_treated_as_on_the_command_line(tmp_path: Path) -> None:
    assert "There is no key trainer.sead" in refused(tmp_path / "run.yaml", "trainer: {sead: 1}")
    text = "actor_rollout_ref: {rollout: {gpu_memory_utilization: 0.9}}"
    assert "has no effect" in refused(tmp_path / "run.yaml", text)
    assert len(with_file(tmp_path / "run.yaml", text, allow_unused=True).notices) == 1


NORM = (f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm", f"{ACTOR}.loss_scale_factor=9")
DYNAMIC = (f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_max_token_len_per_gpu=2048")
BOTH_KL = (f"{ACTOR}.use_kl_loss=true", "algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive")
DUMPED = [
    ("ppo", ()),
    ("grpo", ()),
    ("ppo", ("algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.n=4")),
    ("grpo", (f"{ACTOR}.use_kl_loss=false",)),
    ("ppo", BOTH_KL),
    ("ppo", (f"{ACTOR}.clip_ratio=0.3", f"{ACTOR}.optim.lr=1e-6", f"{ACTOR}.optim.lr_scheduler_type=cosine")),
    ("ppo", (f"{ACTOR}.clip_ratio_low=0.1", f"{ACTOR}.clip_ratio_high=0.3")),
    ("ppo", (*DYNAMIC, "critic.use_dynamic_bsz=false")),
    ("ppo", NORM),
    ("ppo", (*NORM, "critic.loss_agg_mode=token-mean")),
    ("ppo", ("trainer.experiment_name='on'", "trainer.project_name='1e-6'", "trainer.total_training_steps=4")),
    (
        "ppo",
        ("trainer.experiment_name='12:30'", "trainer.project_name=' 中文 # null: x'", "data.train_files=[a,'b c']"),
    ),
    ("ppo", ("custom_reward_function={path: r.py, reward_kwargs: {n: 1, y: null, z: {w: [1.5, 'x']}}}",)),
    (
        "ppo",
        (r"trainer.experiment_name='a\${b}'", r"reward.custom_reward_function={path: r, reward_kwargs: {a: '\${x}'}}"),
    ),
]


@pytest.mark.parametrize(("preset", "overrides"), DUMPED)
def test_a_dump_resolves_to_the_same_configuration(tmp_path: Path, preset: str, overrides: tuple[str, ...]) -> None:
    config = resolve([*PATHS, *overrides], preset=preset).config
    path = tmp_path / "config.yaml"
    path.write_text(dump(config), encoding="utf-8")
    for other in ("ppo", "grpo"):
        again = resolve([], preset=other, config_file=path)
        assert again.config == config
        assert all("as asked for" in notice for notice in again.notices)


def test_a_literal_reference_survives(tmp_path: Path) -> None:
    config = resolve([*PATHS, r"trainer.experiment_name='a\${b}'"]).config
    assert config.trainer.experiment_name == "a${b}"


def test_a_dump_holds_every_key_with_effect_and_no_other() -> None:
    tree = yaml.safe_load(dump(resolve(PATHS, preset="grpo").config))
    assert tree["critic"] == {"enable": False}
    assert "gamma" not in tree["algorithm"]
    assert tree["actor_rollout_ref"]["actor"]["clip_ratio_low"] == 0.2
    assert tree["trainer"]["default_local_dir"] == "checkpoints/verl_examples/gsm8k"


@pytest.mark.parametrize("text", ["trainer: &t {seed: 1, again: *t}", "a: &a [*a]", "trainer: {<<: &t {x: *t}}"])
def test_a_file_that_contains_itself_is_one_paragraph(tmp_path: Path, text: str) -> None:
    problem = refused(tmp_path / "run.yaml", text)
    assert "run.yaml cannot be read" in problem
    assert "\n" not in problem


def test_the_class_names_in_a_file_of_the_original_program_are_accepted(tmp_path: Path) -> None:
    """What the original program writes down names the class that reads each section."""
    text = "trainer: {seed: 3}\nalgorithm: {_target_: verl.trainer.config.AlgoConfig, kl_ctrl: {_target_: verl.X}}\n"
    resolved = with_file(tmp_path / "run.yaml", text)
    assert resolved.notices == []
    assert "one fixed class" in refused(tmp_path / "run.yaml", "algorithm: {_target_: mine.AlgoConfig}")


@pytest.mark.parametrize("text", ["5\n", "defaults: 3\n", "- a\n"])
def test_a_file_that_is_no_mapping_is_named(tmp_path: Path, text: str) -> None:
    problem = refused(tmp_path / "run.yaml", text)
    assert str(tmp_path / "run.yaml") in problem and "must be a mapping of keys" in problem


def test_aliases_that_unfold_without_end_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    assert "aliases unfold to" in refused(tmp_path / "run.yaml", "\n".join(lines) + "\n")


def test_a_long_value_is_kept_apart_from_its_comment(tmp_path: Path) -> None:
    path = f"/data/{'x' * 150}.parquet"
    resolved = resolve([*PATHS[1:], f"data.train_files={path}"])
    shown = tmp_path / "shown.yaml"
    shown.write_text(dump_commented(resolved.config, dict.fromkeys(flatten(resolved.config), "from somewhere")))
    assert resolve([], config_file=shown).config == resolved.config
