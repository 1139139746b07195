"""How values are written and which types they take."""

import pytest
from verl_cli.config import ConfigError, RunConfig, flat_keys, resolve

PATHS = ("data.train_files=train.parquet", "data.val_files=val.parquet", "actor_rollout_ref.model.path=model")


def run(*overrides: str) -> RunConfig:
    return resolve([*PATHS, *overrides]).config


def problem(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        run(*overrides)
    (text,) = caught.value.problems
    return text


@pytest.mark.parametrize(
    "logger", ["console", "[console]", "['console']", '["console"]', "'console'", "[console,]"[:-2] + "]"]
)
def test_logger_is_text_or_list(logger: str) -> None:
    assert run(f"trainer.logger={logger}").trainer.logger == ["console"]


def test_lists_replace_and_mappings_merge() -> None:
    config = run(
        "data.train_files=[a.parquet,'b c.parquet']",
        "reward.custom_reward_function.path=r.py",
        "reward.custom_reward_function.reward_kwargs={a: 1, b: {c: 2}}",
        "+reward.custom_reward_function.reward_kwargs.b.d=3",
        "++reward.custom_reward_function.reward_kwargs.a=[x,null]",
    )
    assert config.data.train_files == ["a.parquet", "b c.parquet"]
    assert config.reward.custom_reward_function.reward_kwargs == {"a": ["x", None], "b": {"c": 2, "d": 3}}


def test_a_section_can_be_given_as_a_mapping() -> None:
    config = run("algorithm={gamma: 0.9, kl_ctrl: {kl_coef: 0.5}}", "+trainer.seed=4", "++trainer.seed=5")
    assert (config.algorithm.gamma, config.algorithm.kl_ctrl.kl_coef, config.trainer.seed) == (0.9, 0.5, 5)


def test_the_last_override_wins() -> None:
    assert run("trainer.seed=4", "trainer.seed=6").trainer.seed == 6


@pytest.mark.parametrize("text", ["null", "None", "'None'"])
def test_null_and_none_are_null_where_null_is_a_value(text: str) -> None:
    config = run(f"trainer.total_training_steps={text}", f"reward.custom_reward_function.path={text}")
    assert config.trainer.total_training_steps is None
    assert config.reward.custom_reward_function.path is None


def test_quoted_null_is_text() -> None:
    assert run("reward.custom_reward_function.path='null'").reward.custom_reward_function.path == "null"


@pytest.mark.parametrize("text", ["null", "None"])
def test_null_is_refused_where_it_is_no_value(text: str) -> None:
    message = problem(f"trainer.project_name={text}")
    assert message.startswith("trainer.project_name=null")
    assert "it must be text" in message


@pytest.mark.parametrize("text", ["true", "True", "on", "yes", "1"])
def test_ways_to_say_true(text: str) -> None:
    assert run(f"trainer.val_only={text}").trainer.val_only is True


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("trainer.total_epochs=ten", "a whole number"),
        ("trainer.total_epochs=1.5", "a whole number"),
        ("trainer.total_epochs=true", "a whole number"),
        ("trainer.total_epochs=", "a whole number"),
        ("trainer.total_epochs=[1]", "a whole number"),
        ("actor_rollout_ref.actor.optim.lr=fast", "a number"),
        ("actor_rollout_ref.actor.optim.lr=nan", "a number. A number is finite"),
        ("actor_rollout_ref.actor.optim.lr=inf", "a number. A number is finite"),
        ("actor_rollout_ref.actor.optim.betas=[0.9]", "a list of 2 values, each a number"),
        ("trainer.val_only=perhaps", "true or false"),
        ("algorithm.kl_ctrl.type=linear", "one of fixed, adaptive"),
        ("trainer.device=tpu", "one of cpu, cuda or null"),
        ("trainer.experiment_name=true", "text"),
        ("reward.custom_reward_function.reward_kwargs=3", "a mapping"),
        ("critic.ppo_mini_batch_size=x", "a whole number, or null for ${actor_rollout_ref.actor.ppo_mini_batch_size}"),
    ],
)
def test_a_wrong_type_names_key_value_source_and_what_is_expected(override: str, expected: str) -> None:
    key, _, _ = override.partition("=")
    message = problem(override)
    assert message.startswith(f"{key}=")
    assert "the command line" in message
    assert f"it must be {expected}." in message
    assert "\n" not in message


def test_numbers_are_text_where_text_is_expected() -> None:
    assert run("trainer.experiment_name=2024").trainer.experiment_name == "2024"


def test_scientific_notation_and_whole_floats() -> None:
    config = run("actor_rollout_ref.actor.optim.lr=5e-7", "trainer.total_epochs=1e1", "actor_rollout_ref.rollout.n=16")
    assert config.actor_rollout_ref.actor.optim.lr == 5e-7
    assert config.trainer.total_epochs == 10
    assert config.actor_rollout_ref.rollout.n == 16


def test_a_path_outside_hydras_grammar_says_how_to_quote_it() -> None:
    message = problem("reward.custom_reward_function.path=/数据/奖励.py")
    assert "\"reward.custom_reward_function.path='/数据/奖励.py'\"" in message
    quoted = "reward.custom_reward_function.path='/数据/奖励.py'"
    assert run(quoted).reward.custom_reward_function.path == "/数据/奖励.py"


@pytest.mark.parametrize("override", ["trainer.seed=1,2", "trainer.seed=choice(1,2)", "trainer.seed=range(1,3)"])
def test_sweeps_are_refused(override: str) -> None:
    assert "several runs" in problem(override)


def test_the_published_comma_lists_are_texts_and_need_no_quotes() -> None:
    """They were refused as several runs, with a list as the remedy, which the key does not take."""
    rejection = "algorithm.rollout_correction.rollout_rs"
    for criteria, bounds in [("token_k1,seq_max_k3", "0.5_2.0,1e-1"), ("'token_k1,seq_max_k3'", "'0.5_2.0,1e-1'")]:
        correction = run(f"{rejection}={criteria}", f"{rejection}_threshold={bounds}").algorithm.rollout_correction
        assert correction.rollout_rs == "token_k1,seq_max_k3"
        assert correction.rollout_rs_threshold == "0.5_2.0,1e-1"
    assert "several runs" in problem(f"{rejection}=choice(token_k1,token_k2)")


@pytest.mark.parametrize("override", ["~trainer.seed", "~trainer.seed=1"])
def test_deletion_is_refused(override: str) -> None:
    assert "would delete a key" in problem(override)


def test_an_argument_without_value_is_refused() -> None:
    assert "is not an override" in problem("trainer.seed")


def test_references_reach_any_key_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNS", "/runs")
    config = run(
        "trainer.default_local_dir=${oc.env:RUNS}/${trainer.experiment_name}",
        "trainer.experiment_name=e",
        "data.max_response_length=${data.max_prompt_length}",
        "data.max_prompt_length=99",
        "actor_rollout_ref.actor.ppo_mini_batch_size=64",
        "critic.ppo_max_token_len_per_gpu=32768",
    )
    assert config.trainer.default_local_dir == "/runs/e"
    assert config.data.max_response_length == 99


def test_a_reference_to_a_derived_key_is_its_value() -> None:
    config = run("reward.custom_reward_function={path: '${trainer.default_local_dir}/r.py'}", "trainer.project_name=p")
    assert config.reward.custom_reward_function.path == "checkpoints/p/gsm8k/r.py"


@pytest.mark.parametrize("text", ["${trainer.nothing}", "'${'", "'${trainer.seed'", "${oc.env:NO_SUCH_NAME}"])
def test_a_reference_to_nothing_is_refused(text: str) -> None:
    message = problem(f"trainer.project_name={text}", "trainer.experiment_name=${trainer.seed}")
    assert message.startswith("A reference in trainer.project_name")
    assert "\n" not in message


def test_flat_keys_list_type_default_and_docstring() -> None:
    keys = {key.name: key for key in flat_keys()}
    seed = keys["trainer.seed"]
    assert (seed.type, seed.default, seed.derived) == (int, 1, None)
    assert keys["critic.optim.lr"].default == 1e-5
    assert keys["actor_rollout_ref.actor.optim.lr"].default == 1e-6
    assert keys["critic.ppo_epochs"].derived == "${actor_rollout_ref.actor.ppo_epochs}"
    undocumented = [name for name, key in keys.items() if not key.doc.endswith((".", "?"))]
    assert undocumented == []
