"""What a command line becomes."""

import dataclasses
from collections.abc import Sequence
from typing import get_args

import pytest
from verl_cli.config import PRESETS, ConfigError, Resolved, flat_keys, resolve
from verl_cli.errors import UserError

PATHS = ("data.train_files=train.parquet", "data.val_files=val.parquet", "actor_rollout_ref.model.path=model")
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"


def run(*overrides: str, preset: str = "ppo", allow_unused: bool = False) -> Resolved:
    return resolve([*PATHS, *overrides], preset=preset, allow_unused=allow_unused)


def problems(overrides: Sequence[str], *, preset: str = "ppo", allow_unused: bool = False) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolve(overrides, preset=preset, allow_unused=allow_unused)
    return caught.value.problems


def only_problem(*overrides: str, preset: str = "ppo", allow_unused: bool = False) -> str:
    (problem,) = problems([*PATHS, *overrides], preset=preset, allow_unused=allow_unused)
    return problem


TUTORIAL = (
    "data.train_files=/data/gsm8k/train.parquet",
    "data.val_files=/data/gsm8k/test.parquet",
    "data.train_batch_size=256",
    "data.max_prompt_length=512",
    "data.max_response_length=256",
    "actor_rollout_ref.model.path=/models/qwen",
    "actor_rollout_ref.actor.optim.lr=1e-6",
    "actor_rollout_ref.actor.ppo_mini_batch_size=64",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.4",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4",
    "critic.optim.lr=1e-5",
    "critic.model.path=/models/qwen",
    "critic.ppo_micro_batch_size_per_gpu=4",
    "algorithm.kl_ctrl.kl_coef=0.001",
    "trainer.logger=['console']",
    "trainer.val_before_train=False",
    "trainer.default_hdfs_dir=null",
    "trainer.n_gpus_per_node=1",
    "trainer.nnodes=1",
    "trainer.save_freq=10",
    "trainer.test_freq=10",
    "trainer.total_epochs=15",
)
TUTORIAL_UNUSED = (
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    f"{ROLLOUT}.tensor_model_parallel_size",
    f"{ROLLOUT}.gpu_memory_utilization",
)


def test_tutorial_command_resolves_and_says_which_keys_do_nothing() -> None:
    resolved = resolve(TUTORIAL, allow_unused=True)
    config = resolved.config
    assert len(resolved.notices) == len(TUTORIAL_UNUSED)
    for key in TUTORIAL_UNUSED:
        (notice,) = (notice for notice in resolved.notices if notice.startswith(f"{key}="))
        assert "has no effect" in notice
        assert "\n" not in notice
    assert config.data.train_files == "/data/gsm8k/train.parquet"
    assert config.data.train_batch_size == 256
    assert config.actor_rollout_ref.actor.optim.lr == 1e-6
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size == 64
    assert config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu == 4
    assert config.actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu == 4
    assert config.critic.optim.lr == 1e-5
    assert config.critic.model.path == "/models/qwen"
    assert config.critic.ppo_mini_batch_size == 64
    assert config.algorithm.use_kl_in_reward is True
    assert config.trainer.logger == ["console"]
    assert config.trainer.val_before_train is False
    assert config.trainer.save_freq == config.trainer.test_freq == 10


def test_tutorial_command_without_allow_unused_names_each_key_without_effect() -> None:
    found = problems(TUTORIAL)
    assert len(found) == len(TUTORIAL_UNUSED)
    assert all(any(problem.startswith(f"{key}=") for problem in found) for key in TUTORIAL_UNUSED)


@pytest.mark.parametrize(
    "override",
    [
        "actor_rollout_ref.actor.fsdp_config.param_offload=False",
        "actor_rollout_ref.actor.fsdp_config.param_offload=True",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.name=hf",
        "actor_rollout_ref.rollout.micro_batch_size_per_gpu=16",
        "actor_rollout_ref.rollout.tensor_parallel_size=2",
        "critic.model.use_remove_padding=True",
        "critic.model.fsdp_config.optimizer_offload=True",
        "critic.model.fsdp_config.optimizer_offload=False",
        "trainer.logger=console",
        "trainer.logger=['console','wandb']",
        "trainer.default_hdfs_dir=hdfs://x/y",
        "trainer.project_name=verl_example",
        "trainer.experiment_name=gsm8k",
        "algorithm.use_kl_in_reward=True",
        "custom_reward_function.path=reward.py",
        "actor_rollout_ref.actor.grad_clip=0.5",
        "actor_rollout_ref.model.enable_gradient_checkpointing=True",
        "reward_model.enable=False",
        "hydra.run.dir=outputs",
        "model_engine=megatron",
        "+actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",
    ],
)
def test_every_key_of_the_tutorials_is_accepted_with_allow_unused(override: str) -> None:
    assert all("\n" not in notice for notice in run(override, allow_unused=True).notices)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_shipped_preset_resolves_with_paths_alone(preset: str) -> None:
    resolved = run(preset=preset)
    assert resolved.notices == []
    assert resolved.config.algorithm.adv_estimator == {"ppo": "gae", "grpo": "grpo"}[preset]


def test_grpo_preset_has_groups_and_kl_in_the_loss_only() -> None:
    config = run(preset="grpo").config
    assert config.actor_rollout_ref.rollout.n >= 2
    assert config.actor_rollout_ref.actor.use_kl_loss
    assert not config.algorithm.use_kl_in_reward


def test_unknown_preset_is_named() -> None:
    assert "no preset 'dpo'" in only_problem(preset="dpo")


def test_user_keys_are_what_the_user_set_under_present_names() -> None:
    resolved = run(f"{ACTOR}.grad_clip=0.5", "reward.custom_reward_function={path: r.py, reward_kwargs: {a: 1}}")
    assert resolved.user_keys == {
        "data.train_files",
        "data.val_files",
        "actor_rollout_ref.model.path",
        f"{ACTOR}.optim.clip_grad",
        "reward.custom_reward_function.path",
        "reward.custom_reward_function.reward_kwargs",
    }


# Derived values


def test_nulls_take_the_values_that_they_stand_for() -> None:
    config = run(
        f"{ACTOR}.clip_ratio=0.3",
        f"{ACTOR}.clip_ratio_high=0.4",
        f"{ACTOR}.ppo_mini_batch_size=32",
        f"{ACTOR}.use_dynamic_bsz=true",
        f"{ACTOR}.ppo_max_token_len_per_gpu=2000",
        f"{ACTOR}.ppo_epochs=3",
        f"{ACTOR}.shuffle=true",
        f"{ACTOR}.loss_agg_mode=seq-mean-token-mean",
        "trainer.project_name=p",
        "trainer.experiment_name=7",
        "trainer.seed=11",
        "critic.ppo_epochs=null",
    ).config
    actor, ref, critic = config.actor_rollout_ref.actor, config.actor_rollout_ref.ref, config.critic
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.3, 0.4)
    assert (ref.log_prob_use_dynamic_bsz, ref.log_prob_max_token_len_per_gpu) == (True, 2000)
    assert (critic.use_dynamic_bsz, critic.ppo_mini_batch_size, critic.ppo_epochs, critic.shuffle) == (
        True,
        32,
        3,
        True,
    )
    assert critic.loss_agg_mode == "seq-mean-token-mean"
    assert critic.ppo_max_token_len_per_gpu == 32768
    assert critic.model.path == "model"
    assert critic.optim.lr == 1e-5
    assert config.trainer.default_local_dir == "checkpoints/p/7"
    assert config.data.seed == 11


def test_critic_takes_the_scale_of_its_own_aggregation_only() -> None:
    scaled = (f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm", f"{ACTOR}.loss_scale_factor=128")
    assert run(*scaled).config.critic.loss_scale_factor == 128
    assert run(*scaled, "critic.loss_agg_mode=token-mean").config.critic.loss_scale_factor is None


@pytest.mark.parametrize(
    ("overrides", "in_reward", "in_loss"),
    [
        ((), True, False),
        ((f"{ACTOR}.use_kl_loss=true",), False, True),
        (("algorithm.use_kl_in_reward=false",), False, False),
        ((f"{ACTOR}.use_kl_loss=true", "algorithm.use_kl_in_reward=true"), True, True),
    ],
)
def test_kl_is_in_one_place_unless_both_are_asked_for(
    overrides: tuple[str, ...], in_reward: bool, in_loss: bool
) -> None:
    resolved = run(*overrides)
    config = resolved.config
    assert config.algorithm.use_kl_in_reward is in_reward
    assert config.actor_rollout_ref.actor.use_kl_loss is in_loss
    assert any("both" in notice for notice in resolved.notices) is (in_reward and in_loss)


def test_kl_in_both_places_by_preset_and_user_is_refused() -> None:
    assert "counts it twice" in only_problem("algorithm.use_kl_in_reward=true", preset="grpo")
    run("algorithm.use_kl_in_reward=true", f"{ACTOR}.use_kl_loss=true", preset="grpo")


# What cannot work


def test_paths_are_required_all_named_at_once() -> None:
    found = problems([])
    assert [problem.split(" ")[0] for problem in found] == [
        "actor_rollout_ref.model.path",
        "data.train_files",
        "data.val_files",
    ]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("data.train_batch_size=10", f"{ACTOR}.ppo_mini_batch_size=4"), ("=10", "=4", "Set", "=2")),
        (("data.train_batch_size=8",), ("=8", "=256", f"Set {ACTOR}.ppo_mini_batch_size=8")),
        (
            ("data.train_batch_size=8", f"{ACTOR}.ppo_mini_batch_size=4", "critic.ppo_mini_batch_size=3"),
            ("=8", "critic.ppo_mini_batch_size=3"),
        ),
        (("algorithm.adv_estimator=grpo",), (f"{ROLLOUT}.n=1", "2 or more")),
        ((f"{ROLLOUT}.n=0",), (f"{ROLLOUT}.n=0", "at least 1")),
        ((f"{ROLLOUT}.temperature=0",), (f"{ROLLOUT}.temperature=0", "above 0")),
        ((f"{ACTOR}.clip_ratio_c=1.0",), (f"{ACTOR}.clip_ratio_c=1.0", "above 1")),
        (("trainer.n_gpus_per_node=8",), ("8 ranks", "Set both to 1")),
        (("trainer.nnodes=2",), ("2 ranks",)),
        (("trainer.nnodes=0",), ("at least 1",)),
        (("data.max_prompt_length=0",), ("data.max_prompt_length", "at least 1")),
        (("data.max_response_length=-1",), ("data.max_response_length", "at least 1")),
        (("data.train_batch_size=0",), ("data.train_batch_size", "at least 1")),
        ((f"{ACTOR}.ppo_mini_batch_size=0",), ("at least 1",)),
        (
            (f"{ACTOR}.use_dynamic_bsz=true", f"{ACTOR}.ppo_max_token_len_per_gpu=1023"),
            ("1023 tokens", "1024"),
        ),
        (("trainer.save_freq=0",), ("trainer.save_freq=0", "-1")),
        (("trainer.logger=consle",), ("consle", "Did you mean console?")),
        ((f"{ROLLOUT}.name=hff",), ("hff", "hf")),
        (("algorithm.kl_penalty=k9",), ("k9", "low_var_kl")),
        ((f"{ACTOR}.fsdp_config.dtype=half",), (f"{ACTOR}.fsdp_config", "half")),
        ((f"{ACTOR}.fsdp_config.model_dtype=bfloat16",), (f"{ACTOR}.fsdp_config", "fp32")),
        ((f"{ACTOR}.optim.betas=[0.9,1.0]",), ("betas", "below 1")),
    ],
)  # fmt: skip
def test_what_cannot_work_is_one_paragraph_with_its_remedy(overrides: tuple[str, ...], words: tuple[str, ...]) -> None:
    problem = only_problem(*overrides)
    assert "\n" not in problem
    assert all(word in problem for word in words), problem


def test_all_problems_of_a_command_line_are_reported_at_once() -> None:
    found = problems(
        [
            "data.train_batch_size=ten",
            "trainr.seed=3",
            "~trainer.seed",
            "critic.use_dynamic_bsz=maybe",
            f"{ACTOR}.clip_ratio_c=0.5",
            f"{ROLLOUT}.gpu_memory_utilization=0.4",
            "data.max_prompt_length=-3",
        ]
    )
    for word in (
        "data.train_batch_size=ten",
        "trainr.seed",
        "~trainer.seed",
        "critic.use_dynamic_bsz=maybe",
        "clip_ratio_c=0.5",
        "gpu_memory_utilization",
        "data.max_prompt_length",
        "data.train_files",
        "data.val_files",
        "actor_rollout_ref.model.path",
    ):
        assert sum(word in problem for problem in found) == 1, word
    assert len(found) == 10


def test_the_error_reads_as_paragraphs_and_is_a_user_error() -> None:
    with pytest.raises(UserError) as caught:
        resolve([*PATHS, "a.b=1", "c.d=2"])
    text = str(caught.value)
    assert text.startswith("The configuration has 2 problems.\n\n1. There is no key a.b")
    assert "\n\n2. There is no key c.d" in text
    with pytest.raises(UserError, match=r"^There is no key a\.b"):
        run("a.b=1")


def test_resolved_configurations_are_values() -> None:
    assert run().config == run().config
    assert run("trainer.seed=2").config != run().config
    assert dataclasses.is_dataclass(run().config)


def test_every_number_has_a_range_or_may_be_anything() -> None:
    negative_means_unset = {f"{ACTOR}.optim.lr_warmup_steps", "critic.optim.lr_warmup_steps"}
    free = {"actor_rollout_ref.actor.entropy_coeff"}
    for key in flat_keys():
        if {int, float} & {key.type, *get_args(key.type)} and key.name not in free | negative_means_unset:
            value = "-5" if int in (key.type, *get_args(key.type)) else "-5.5"
            try:
                notices = run(f"{key.name}={value}", allow_unused=True).notices
            except ConfigError as error:
                assert key.name in str(error)
            else:
                assert any("has no effect" in notice for notice in notices), key.name
