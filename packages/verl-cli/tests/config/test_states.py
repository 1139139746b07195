"""The states of a key: live, renamed, not applicable, unknown."""

import json
from importlib.resources import files
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_cli.config import ConfigError, Resolved, flat_keys, resolve
from verl_cli.config.algorithm_checks import allowed
from verl_cli.config.applicability import RULES
from verl_cli.config.nearest import nearest
from verl_cli.config.published import RENAMED, RENAMED_VALUES, UNAVAILABLE_VALUES, published, reason, renamed
from verl_cli.config.ranges import NAMES
from verl_cli.config.reasons import REASONS
from verl_cli.tracking import LOGGERS

PATHS = ("data.train_files=train.parquet", "data.val_files=val.parquet", "actor_rollout_ref.model.path=model")
LIVE = {key.name: key for key in flat_keys()}
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"


def run(*overrides: str, allow_unused: bool = False, preset: str = "ppo") -> Resolved:
    return resolve([*PATHS, *overrides], allow_unused=allow_unused, preset=preset)


def refused(*overrides: str, allow_unused: bool = False, preset: str = "ppo") -> str:
    with pytest.raises(ConfigError) as caught:
        run(*overrides, allow_unused=allow_unused, preset=preset)
    (problem,) = caught.value.problems
    assert ("--allow-unused" in caught.value.advice) == ("has no effect in this run" in problem)
    return problem


# The tables


def test_every_published_key_is_live_or_renamed_or_has_a_reason() -> None:
    silent = [key for key in published() if key not in LIVE and renamed(key) == key and reason(key) is None]
    assert silent == []
    assert len(published()) == 907


def test_every_reason_is_for_something_published_and_not_live() -> None:
    def covers(prefix: str, key: str) -> bool:
        return key == prefix or key.startswith(f"{prefix}.")

    assert [prefix for prefix in REASONS if prefix in LIVE] == []
    assert [prefix for prefix in REASONS if renamed(prefix) != prefix] == []
    unpublished = [p for p in REASONS if reason(p) is None and not any(covers(p, key) for key in published())]
    assert unpublished == []
    needless = [
        p for p in REASONS if published_below(p) and all(k in LIVE or renamed(k) != k for k in published_below(p))
    ]
    assert needless == []


def published_below(prefix: str) -> list[str]:
    return [key for key in published() if key == prefix or key.startswith(f"{prefix}.")]


def test_every_reason_has_a_remedy() -> None:
    for why, remedy in REASONS.values():
        assert why.endswith(".")
        assert remedy.endswith(".")


def test_renames_lead_to_known_keys_and_never_from_live_ones() -> None:
    for old, new in RENAMED.items():
        assert old not in LIVE
        final = renamed(new)
        assert renamed(old) == renamed(final) == final
        assert final in LIVE or reason(final) or any(key.startswith(f"{final}.") for key in [*LIVE, *published()]), old


def test_unavailable_and_renamed_values_belong_to_live_keys_and_are_not_among_their_own() -> None:
    assert set(UNAVAILABLE_VALUES) | set(RENAMED_VALUES) <= set(LIVE)
    for key, values in UNAVAILABLE_VALUES.items():
        assert set(values).isdisjoint(NAMES[key].known if key in NAMES else get_args(LIVE[key].type))
    for key, renames in RENAMED_VALUES.items():
        for old, new in renames.items():
            names = get_args(LIVE[key].type) or tuple((allowed(key) or "").split(", "))
            assert old not in names
            assert new in names or names == ("",)  # a key that takes any name


def test_the_names_of_loggers_are_those_that_there_are() -> None:
    assert NAMES["trainer.logger"].known == LOGGERS


def test_rules_are_about_live_keys() -> None:
    for rule in RULES:
        assert any(name == rule.prefix or name.startswith(f"{rule.prefix}.") for name in LIVE), rule.prefix
        assert set(rule.reads) <= set(LIVE)


def test_the_published_table_is_written_one_key_a_line_without_repeats() -> None:
    text = (files("verl_cli.config") / "published.json").read_text("utf-8")
    assert len(text.splitlines()) == len(json.loads(text)) + 2


# Not applicable: published and not implemented


def literal(value: object) -> str:
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(literal(item) for item in value) + "]"
    return json.dumps(value)


def test_null_and_the_published_default_never_fail() -> None:
    unused = {key: value for key, value in published().items() if key not in LIVE and renamed(key) == key}
    for values in (dict.fromkeys(unused), unused):
        resolved = run(*(f"{key}={literal(value)}" for key, value in values.items()))
        assert resolved.notices == []
        assert resolved.config == run().config


def test_a_live_key_takes_null_where_that_is_the_published_default() -> None:
    nulls = [key for key, value in published().items() if value is None and key in LIVE]
    assert run(*(f"{key}=null" for key in nulls if key not in dict.fromkeys(p.split("=")[0] for p in PATHS))).config


@pytest.mark.parametrize(
    "override",
    [
        f"{ROLLOUT}.gpu_memory_utilization=0.4",
        f"{ROLLOUT}.tensor_model_parallel_size=1",
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=8",
        f"{ROLLOUT}.engine_kwargs.vllm.max_loras=3",
        f"+{ROLLOUT}.engine_kwargs.vllm.max_loras=3",
        f"{ROLLOUT}.engine_kwargs.vllm={{max_loras: 3}}",
        f"{ACTOR}.fsdp_config.optimizer_offload=True",
        f"{ACTOR}.optim.lr_decay_style=cosine",
        f"{ACTOR}.megatron.anything.at_all=3",
        f"{ACTOR}.optim._target_=my.Class",
        "reward.reward_model.nnodes=2",
        "hydra.run.dir=x",
        "trainer.logger=[console,clearml]",
        f"{ROLLOUT}.name=vllm",
    ],
)
def test_a_key_without_effect_fails_or_is_one_line(override: str) -> None:
    problem = refused(override)
    resolved = run(override, allow_unused=True)
    assert resolved.notices == [problem]
    assert "has no effect in this run" in problem
    assert "\n" not in problem
    assert resolved.config == run().config


# Not applicable: live under other settings only


@pytest.mark.parametrize(
    ("preset", "override", "cause"),
    [
        ("grpo", "critic.optim.lr=1e-4", "critic.enable=false"),
        ("grpo", "critic.model.path=elsewhere", "critic.enable=false"),
        ("grpo", "trainer.critic_warmup=3", "critic.enable=false"),
        ("grpo", "algorithm.lam=0.9", "adv_estimator to gae"),
        ("grpo", "algorithm.gamma=0.9", "gae, reinforce_plus_plus"),
        ("grpo", "algorithm.gdpo_reward_keys=[acc]", "adv_estimator=gdpo"),
        ("ppo", f"{ACTOR}.tau_pos=2", "belongs to sapo"),
        ("ppo", f"{ACTOR}.policy_loss.ppo_kl_coef=2", "belongs to kl_cov"),
        ("ppo", f"{ACTOR}.policy_loss.loss_kwargs={{a: 1}}", "loss_mode=file.py:function"),
        ("ppo", "algorithm.rollout_correction.rollout_is_threshold=3.0", "rollout_is=token"),
        ("ppo", "algorithm.rollout_correction.rollout_rs_threshold=3.0", "rollout_rs=seq_mean_k1"),
        ("ppo", "algorithm.rollout_correction.loss_type=reinforce", "bypass_mode=true"),
        ("grpo", "algorithm.kl_ctrl.kl_coef=0.5", "use_kl_in_reward=false"),
        ("ppo", "algorithm.norm_adv_by_std_in_grpo=false", "adv_estimator to grpo"),
        ("ppo", "algorithm.kl_ctrl.horizon=5", "fixed"),
        ("ppo", f"{ACTOR}.kl_loss_coef=0.5", "use_kl_loss=true"),
        ("ppo", f"{ACTOR}.loss_scale_factor=5", "seq-mean-token-sum-norm"),
        ("ppo", f"{ACTOR}.optim.num_cycles=2", "cosine"),
        ("ppo", f"{ACTOR}.optim.total_training_steps=9", "trainer.total_training_steps"),
        ("ppo", f"{ROLLOUT}.val_kwargs.top_p=0.9", "temperature 0"),
        ("ppo", "reward.custom_reward_function.name=score", "reward.custom_reward_function.path"),
    ],
)
def test_a_live_key_under_other_settings_is_not_applicable(preset: str, override: str, cause: str) -> None:
    problem = refused(override, preset=preset)
    assert problem.startswith(override.split("=")[0])
    assert cause in problem
    resolved = run(override, preset=preset, allow_unused=True)
    assert resolved.notices == [problem]
    assert resolved.config == run(preset=preset).config


@pytest.mark.parametrize(
    "overrides",
    [
        (f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"),
        (f"{ACTOR}.ppo_micro_batch_size_per_gpu=4", f"{ACTOR}.ppo_max_token_len_per_gpu=5000"),
        ("algorithm.use_kl_in_reward=false", "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4"),
        ("algorithm.kl_ctrl.kl_coef=0", "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4"),
        (f"{ACTOR}.clip_ratio=0.1", f"{ACTOR}.clip_ratio_low=0.2", f"{ACTOR}.clip_ratio_high=0.28"),
        ("trainer.total_training_steps=9", "trainer.total_epochs=2"),
        ("data.shuffle=false", "data.seed=3"),
    ],
)
def test_the_setting_that_decides_is_named(overrides: tuple[str, ...]) -> None:
    problem = refused(*overrides)
    assert "has no effect" in problem
    assert run(*overrides, allow_unused=True).notices == [problem]


def test_a_default_never_fails_where_the_key_has_no_effect() -> None:
    run(
        "critic.optim.lr=1e-5",
        "critic.ppo_epochs=1",
        "algorithm.gamma=1.0",
        "algorithm.kl_ctrl.kl_coef=0.001",
        preset="grpo",
    )
    run(f"{ACTOR}.kl_loss_coef=0.001", f"{ACTOR}.kl_loss_type=low_var_kl", "algorithm.norm_adv_by_std_in_grpo=true")


def test_a_preset_is_never_blamed_for_what_the_user_turned_off() -> None:
    resolved = run(f"{ACTOR}.use_kl_loss=false", preset="grpo")
    assert resolved.notices == []


# Renamed


@pytest.mark.parametrize(
    ("override", "name", "value"),
    [
        (f"{ACTOR}.grad_clip=0.5", f"{ACTOR}.optim.clip_grad", 0.5),
        ("critic.grad_clip=0.5", "critic.optim.clip_grad", 0.5),
        (f"{ACTOR}.ppo_micro_batch_size=8", f"{ACTOR}.ppo_micro_batch_size_per_gpu", 8),
        ("critic.ppo_micro_batch_size=8", "critic.ppo_micro_batch_size_per_gpu", 8),
        (f"{ROLLOUT}.micro_batch_size_per_gpu=8", f"{ROLLOUT}.max_num_seqs", 8),
        ("critic.model.fsdp_config.model_dtype=fp64", "critic.fsdp.model_dtype", "fp64"),
        ("custom_reward_function.path=r.py", "reward.custom_reward_function.path", "r.py"),
        ("custom_reward_function={path: r.py}", "reward.custom_reward_function.path", "r.py"),
        ("trainer.max_critic_ckpt_to_keep=3", "trainer.max_actor_ckpt_to_keep", 3),
        ("data.tokenizer=t", "actor_rollout_ref.model.tokenizer_path", "t"),
    ],
)
def test_a_renamed_key_works_and_says_so_once(override: str, name: str, value: object) -> None:
    resolved = run(override)
    (notice,) = resolved.notices
    assert f"is now called {name}" in notice
    node: object = resolved.config
    for part in name.split("."):
        node = getattr(node, part)
    assert node == value


def test_renamed_keys_without_effect_name_both() -> None:
    problem = refused("critic.model.fsdp_config.optimizer_offload=True")
    assert problem.startswith("critic.model.fsdp_config.optimizer_offload (now critic.fsdp.optimizer_offload)=true")
    problem = refused(f"{ROLLOUT}.tensor_parallel_size=4")
    assert f"{ROLLOUT}.tensor_model_parallel_size" in problem


@pytest.mark.parametrize("old", ["reward.reward_kwargs", "reward_model.reward_kwargs"])
def test_a_key_inside_a_renamed_mapping_is_named_whole_and_once(old: str) -> None:
    resolved = run("reward.custom_reward_function.path=r.py", f"{old}.method=flexible", f"+{old}.cut={{at: null}}")
    new = "reward.custom_reward_function.reward_kwargs"
    assert resolved.notices == [
        f"{old}.method is now called {new}.method; its value flexible was taken for that.",
        f'{old}.cut is now called {new}.cut; its value {{"at": null}} was taken for that.',
    ]
    assert resolved.config.reward.custom_reward_function.reward_kwargs == {"method": "flexible", "cut": {"at": None}}
    whole = run("reward.custom_reward_function.path=r.py", f"{old}={{method: flexible}}")
    assert whole.config.reward.custom_reward_function.reward_kwargs == {"method": "flexible"}
    assert len(whole.notices) == 1


@pytest.mark.parametrize("old", ["reward.reward_kwargs", "reward_model.reward_kwargs"])
@pytest.mark.parametrize(
    "override",
    ["{old}.overlong_buffer_cfg.penalty_factor=5", "{old}={{overlong_buffer_cfg: {{penalty_factor: 5}}, method: x}}"],
)
def test_keys_of_a_renamed_mapping_that_kept_their_name_are_not_passed_on(old: str, override: str) -> None:
    resolved = run(
        override.format(old=old),
        "reward.reward_manager.name=dapo",
        "+reward.reward_kwargs.overlong_buffer_cfg={enable: true, len: 4}",
    )
    assert resolved.config.reward.reward_kwargs.overlong_buffer_cfg.penalty_factor == 5
    assert "overlong_buffer_cfg" not in resolved.config.reward.custom_reward_function.reward_kwargs


@pytest.mark.parametrize(
    "misspelt", ["reward.reward_kwargs.mx_resp_len", "reward_model.reward_kwargs.overlong_bufer.len"]
)
def test_a_misspelt_key_of_the_overlong_penalty_is_no_option_of_a_reward_function(misspelt: str) -> None:
    assert f"There is no key {misspelt}" in refused(f"{misspelt}=4", "reward.reward_manager.name=dapo")


def test_a_renamed_value_works_and_says_so_once() -> None:
    resolved = run("trainer.resume_mode=resume_path", "trainer.resume_from_path=runs/a/global_step_3")
    assert resolved.config.trainer.resume_mode == "path"
    assert resolved.notices == [
        "trainer.resume_mode=resume_path is now called trainer.resume_mode=path, and was taken for that."
    ]


def test_a_rename_is_told_once_and_a_later_source_may_use_the_present_name(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("actor_rollout_ref: {actor: {grad_clip: 0.5}}")
    for override in (f"{ACTOR}.grad_clip=0.7", f"{ACTOR}.optim.clip_grad=0.7"):
        resolved = resolve([*PATHS, override], config_file=file)
        assert resolved.config.actor_rollout_ref.actor.optim.clip_grad == 0.7
        assert len(resolved.notices) == 1


def test_a_null_under_an_old_name_sets_nothing() -> None:
    resolved = run(f"{ACTOR}.ppo_micro_batch_size_per_gpu=4", f"{ACTOR}.ppo_micro_batch_size=null")
    assert resolved.config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == 4
    assert resolved.notices == []


def test_two_names_of_one_key_with_different_values_are_refused() -> None:
    problem = refused(f"{ACTOR}.optim.clip_grad=0.5", f"{ACTOR}.grad_clip=0.7")
    assert "two names of one key" in problem
    run(f"{ACTOR}.optim.clip_grad=0.5", f"{ACTOR}.grad_clip=0.5")


# Unknown

NEAREST = [
    ("data.train_batch_sise", "data.train_batch_size"),
    (f"{ACTOR}.optim.learning_rate_warmup_steps", f"{ACTOR}.optim.lr_warmup_steps"),
    ("actor.ppo_mini_batch_size", f"{ACTOR}.ppo_mini_batch_size"),
    ("trainer.total_epoch", "trainer.total_epochs"),
    ("trainer.resume", "trainer.resume_mode"),
    (f"{ROLLOUT}.top.k", f"{ROLLOUT}.top_k"),
    ("algorithm.kl_coef", "algorithm.kl_ctrl.kl_coef"),
    ("lr", f"{ACTOR}.optim.lr"),
    (f"{ACTOR}.learning_rate", f"{ACTOR}.optim.lr"),
    ("trainer.max_steps", "trainer.total_training_steps"),
    ("critic.gamma", "algorithm.gamma"),
]


@pytest.mark.parametrize(("key", "closest"), NEAREST)
@pytest.mark.parametrize("mark", ["", "+", "++"])
def test_an_unknown_key_fails_and_names_the_nearest(mark: str, key: str, closest: str) -> None:
    for allow_unused in (False, True):
        problem = refused(f"{mark}{key}=1", allow_unused=allow_unused)
        assert problem == f"There is no key {key} (from the command line). The nearest is {closest}."


def test_a_nearest_key_without_effect_says_so_at_once() -> None:
    problem = refused(f"{ROLLOUT}.gpu_memory_utilisation=1")
    why = reason(f"{ROLLOUT}.gpu_memory_utilization")
    assert problem.endswith(f"The nearest is {ROLLOUT}.gpu_memory_utilization. (It has no effect either: {why})")


@pytest.mark.parametrize(
    "key", ["trainer.colour", "foo", "foo.bar.baz", f"{ACTOR}.foo", "data.banana", "x", "trainer.x"]
)
def test_where_nothing_is_like_a_key_none_is_named(key: str) -> None:
    problem = refused(f"{key}=1")
    assert "nearest" not in problem
    assert problem.endswith("`verl-cli config keys` lists every key.")


@pytest.mark.parametrize("value", ["null", "{}", "{a: 1}", "[1]"])
def test_an_unknown_key_fails_whatever_its_value(value: str) -> None:
    assert "There is no key" in refused(f"+trainer.colour={value}", allow_unused=True)


@pytest.mark.parametrize("override", ["algorithm=grpo", "trainer=3", "critic=null", f"{ROLLOUT}.multi_turn=true"])
def test_a_section_takes_no_value(override: str) -> None:
    assert "to a section" in refused(override, allow_unused=True)


def test_a_package_override_is_unknown() -> None:
    assert "There is no key trainer@critic" in refused("trainer@critic=x")


names = st.from_regex(r"[a-z][a-z_]{0,9}(\.[a-z][a-z_]{0,9}){0,3}", fullmatch=True)


@settings(deadline=None, max_examples=25)
@given(key=names, mark=st.sampled_from(["", "+", "++"]), allow_unused=st.booleans())
def test_no_unknown_key_is_ever_accepted(key: str, mark: str, allow_unused: bool) -> None:
    known = {*LIVE, *published(), *RENAMED}
    if any(name == key or name.startswith(f"{key}.") for name in known) or key.split(".")[0] == "hydra":
        return
    problem = refused(f"{mark}{key}=1", allow_unused=allow_unused)
    assert problem.startswith(f"There is no key {key} ")
    close = nearest(key)
    assert close is None or (close in known and f"The nearest is {close}." in problem)


@settings(deadline=None, max_examples=15)
@given(key=st.sampled_from(sorted(LIVE)), data=st.data())
def test_a_misspelt_live_key_is_refused_and_a_known_key_offered(key: str, data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(key) - 1))
    if key[position] == ".":
        return
    misspelt = key[:position] + "q" + key[position:]
    if misspelt in published() or misspelt in RENAMED:
        return
    problem = refused(f"{misspelt}=1", allow_unused=True)
    assert f"The nearest is {key}." in problem
