"""The keys of published tutorials, row by row of the table that was made by composing them with the original."""

from collections.abc import Sequence

import pytest
from verl_cli.config import ConfigError, Resolved, flat_keys, resolve

PATHS = ("data.train_files=train.parquet", "data.val_files=val.parquet", "actor_rollout_ref.model.path=model")
LIVE = {key.name for key in flat_keys()}
ARR = "actor_rollout_ref"
ACTOR, REF, ROLLOUT = f"{ARR}.actor", f"{ARR}.ref", f"{ARR}.rollout"
RENAMED, NO_EFFECT = "is now called", "has no effect in this run"


def run(*overrides: str, allow_unused: bool = False) -> Resolved:
    return resolve([*PATHS, *overrides], allow_unused=allow_unused)


def value(resolved: Resolved, name: str) -> object:
    node: object = resolved.config
    for part in name.split("."):
        node = getattr(node, part)
    return node


def notice(override: str) -> str:
    """The one line about an override; without --allow-unused it is refused with the same line."""
    (line,) = run(override, allow_unused=True).notices
    assert "\n" not in line
    if NO_EFFECT in line:
        with pytest.raises(ConfigError) as caught:
            run(override)
        assert caught.value.problems == [line]
    return line


#: Keys that the original accepts and this program has: the override, and what the configuration then holds.
ACCEPTED: Sequence[tuple[str, object]] = [
    ("data.train_files=a.parquet", "a.parquet"),
    ("data.train_files=[a.parquet,b.parquet]", ["a.parquet", "b.parquet"]),
    ("data.train_files=['a.parquet','b.parquet']", ["a.parquet", "b.parquet"]),
    ("data.val_files=b.parquet", "b.parquet"),
    ("data.val_files=[b.parquet]", ["b.parquet"]),
    ("data.train_batch_size=512", 512),
    ("data.max_prompt_length=256", 256),
    ("data.max_response_length=256", 256),
    (f"{ARR}.model.path=Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct"),
    (f"{ACTOR}.optim.lr=1e-5", 1e-5),
    (f"{ACTOR}.ppo_mini_batch_size=128", 128),
    (f"{ACTOR}.ppo_micro_batch_size_per_gpu=4", 4),
    (f"{ROLLOUT}.name=hf", "hf"),
    (f"{REF}.log_prob_micro_batch_size_per_gpu=4", 4),
    ("critic.optim.lr=2e-5", 2e-5),
    ("critic.model.path=elsewhere", "elsewhere"),
    ("critic.ppo_micro_batch_size_per_gpu=4", 4),
    ("algorithm.kl_ctrl.kl_coef=0.01", 0.01),
    ("trainer.logger=console", ["console"]),
    ("trainer.logger=[console]", ["console"]),
    ("trainer.logger=['console','wandb']", ["console", "wandb"]),
    ("trainer.logger=tensorboard", ["tensorboard"]),
    ("trainer.logger=[mlflow,swanlab]", ["mlflow", "swanlab"]),
    ("trainer.logger=file", ["file"]),
    ("trainer.val_before_train=False", False),
    ("trainer.val_only=True", True),
    ("trainer.log_val_generations=10", 10),
    (f"{ROLLOUT}.val_kwargs.temperature=0.6", 0.6),
    ("trainer.default_hdfs_dir=hdfs://user/runs", "hdfs://user/runs"),
    ("trainer.default_hdfs_dir=null", None),
    ("trainer.n_gpus_per_node=1", 1),
    ("trainer.nnodes=1", 1),
    ("trainer.save_freq=10", 10),
    ("trainer.test_freq=10", 10),
    ("trainer.total_epochs=15", 15),
    ("trainer.project_name=verl_example", "verl_example"),
    ("trainer.experiment_name=qwen", "qwen"),
    # Accepted by the original without effect; live here.
    (f"{ACTOR}.clip_ratio=0.1", 0.1),
    ("data.truncation=left", "left"),
]


@pytest.mark.parametrize(("override", "expected"), ACCEPTED)
def test_a_key_that_means_something_works(override: str, expected: object) -> None:
    resolved = run(override)
    assert resolved.notices == []
    assert value(resolved, override.partition("=")[0]) == expected


#: Keys under another name: the override, the present name, its value.
NOW_CALLED: Sequence[tuple[str, str, object]] = [
    (f"{ROLLOUT}.micro_batch_size_per_gpu=16", f"{ROLLOUT}.max_num_seqs", 16),
    (f"{ROLLOUT}.micro_batch_size=16", f"{ROLLOUT}.max_num_seqs", 16),
    (f"{ACTOR}.grad_clip=0.5", f"{ACTOR}.optim.clip_grad", 0.5),
    ("critic.grad_clip=0.5", "critic.optim.clip_grad", 0.5),
    (f"{ACTOR}.optim.grad_clip=0.5", f"{ACTOR}.optim.clip_grad", 0.5),
    ("critic.optim.grad_clip=0.5", "critic.optim.clip_grad", 0.5),
    (f"{ACTOR}.ppo_micro_batch_size=8", f"{ACTOR}.ppo_micro_batch_size_per_gpu", 8),
    ("critic.ppo_micro_batch_size=8", "critic.ppo_micro_batch_size_per_gpu", 8),
    (f"{REF}.log_prob_micro_batch_size=8", f"{REF}.log_prob_micro_batch_size_per_gpu", 8),
    ("critic.model.fsdp_config.model_dtype=fp64", "critic.fsdp.model_dtype", "fp64"),
    ("custom_reward_function.path=r.py", "reward.custom_reward_function.path", "r.py"),
    ("trainer.max_critic_ckpt_to_keep=2", "trainer.max_actor_ckpt_to_keep", 2),
    ("reward_model.num_workers=3", "reward.num_workers", 3),
    ("reward_model.model.path=m", "reward.reward_model.model_path", "m"),
    ("reward_model.reward_manager=dapo", "reward.reward_manager.name", "dapo"),
    ("reward.reward_manager.name=prime", "reward.reward_manager.name", "naive"),
    ("reward.reward_manager.name=gdpo", "reward.reward_manager.name", "naive"),
    ("reward.reward_manager.name=remote", "reward.reward_manager.name", "naive"),
    ("+reward.reward_kwargs.method=flexible", "reward.custom_reward_function.reward_kwargs", {"method": "flexible"}),
    (
        "+reward_model.reward_kwargs.method=flexible",
        "reward.custom_reward_function.reward_kwargs",
        {"method": "flexible"},
    ),
]


@pytest.mark.parametrize(("override", "name", "expected"), NOW_CALLED)
def test_a_key_under_another_name_works_and_is_told_once(override: str, name: str, expected: object) -> None:
    assert RENAMED in notice(override)
    assert name in LIVE
    assert name in notice(override)
    assert value(run(override), name) == expected


#: Keys that mean nothing here: the override, and a word of the reason.
NOTHING_HERE: Sequence[tuple[str, str]] = [
    (f"{ACTOR}.fsdp_config.param_offload=True", "where it computes"),
    ("critic.model.fsdp_config.optimizer_offload=True", "where it computes"),
    (f"{ROLLOUT}.name=vllm", "Use hf"),
    (f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=8", "packing plan of the update"),
    (f"{ROLLOUT}.tensor_model_parallel_size=1", "one device"),
    (f"{ROLLOUT}.tensor_parallel_size=4", "one device"),
    (f"{ROLLOUT}.gpu_memory_utilization=0.4", "KV cache"),
    ("critic.model.use_remove_padding=False", "padding does not exist"),
    # Accepted by the original without effect.
    ("data.return_raw_chat=False", "always at hand"),
    ("data.return_raw_input_ids=True", "always at hand"),
    ("data.return_full_prompt=True", "always at hand"),
    ("trainer.balance_batch=False", "always balanced"),
    ("reward.reward_manager.name=batch", "one response"),
    ("reward.reward_manager.name=rate_limited", "requests_per_minute"),
    ("reward.reward_manager.source=importlib", "function or a model"),
    ("reward.reward_model.enable_resource_pool=True", "without servers"),
    ("reward_model.launch_reward_fn_async=True", "timing_s/reward is long"),
    ("reward_model.use_reward_loop=True", "timing_s/reward is long"),
    ("reward.use_reward_loop=True", "timing_s/reward is long"),
    ("reward_model.sandbox_fusion.url=http://host", "Code is run on this machine"),
    ("reward_model.ulysses_sequence_parallel_size=1", "batch_tokens"),
    ("reward_model.model.use_shm=True", "batch_tokens"),
    ("reward_model.profiler.enable=True", "py-spy"),
    ("reward_model.rollout.name=vllm", "without servers"),
    ("reward_model.micro_batch_size_per_gpu=8", "batch_tokens"),
    ("reward_model.model.trust_remote_code=True", "reward.reward_model.kwargs"),
    ("sandbox_fusion.url=http://host", "Code is run on this machine"),
    ("reward.sandbox_fusion.url=http://host", "sandbox: none"),
    ("critic.forward_micro_batch_size=8", "packing plan"),
    ("critic.forward_micro_batch_size_per_gpu=8", "packing plan"),
    ("critic.forward_max_token_len_per_gpu=9000", "packing plan"),
    (f"{ACTOR}.freeze_vision_tower=True", "text only"),
    (f"{ROLLOUT}.over_sample_rate=0.1", "asked number"),
    (f"{ROLLOUT}.multi_stage_wake_up=True", "inference server"),
    (f"{ARR}.nccl_timeout=1200", "one rank"),
    (f"{ROLLOUT}.do_sample=False", "rollout.temperature"),
    (f"{ROLLOUT}.val_kwargs.do_sample=True", "val_kwargs.temperature"),
    (f"{ACTOR}.router_replay.replay_file=x", "expert routing"),
    (f"{REF}.router_replay.replay_file=x", "expert routing"),
    (f"{ACTOR}.use_prefix_grouper=True", "each of their responses"),
    (f"{ROLLOUT}.mode=sync", "waits for its responses"),
    # Rejected by the original unless forced with +.
    (f"{ROLLOUT}.update_weights_bucket_megabytes=512", "inside one process"),
    (f"{ROLLOUT}.multi_turn.max_turns=4", "without tools"),
    (f"{ROLLOUT}.multi_turn.interaction_config_path=i.yaml", "without tools"),
    (f"{ROLLOUT}.agent.agent_loop_manager_class=my.Loop", "without tools"),
    ("algorithm.gdpo_reward_keys=[a,b]", "gdpo"),
    ("algorithm.gdpo_reward_weights=[1,2]", "gdpo"),
    ("data.sampler.class_path=pkg://my.sampler", "data.shuffle=false"),
    ("data.sampler.class_name=Mine", "data.shuffle=false"),
    ("data.datagen.path=my.py", "beforehand"),
    ("data.cache_dir=/tmp/cache", "where they lie"),
    ("reward.reward_kwargs.overlong_buffer_cfg.enable=True", "overlong"),
    ("reward.reward_kwargs.max_resp_len=2048", "overlong"),
    ("reward.reward_kwargs.overlong_buffer_cfg.len=512", "overlong"),
    ("trainer.remove_previous_ckpt_in_save=True", "trainer.max_actor_ckpt_to_keep=1"),
    ("trainer.use_legacy_worker_impl=disable", "one implementation"),
    ("ray_init.num_cpus=8", "without Ray"),
    ("ray_kwargs.ray_init.num_cpus=8", "without Ray"),
]


@pytest.mark.parametrize(("override", "why"), NOTHING_HERE)
@pytest.mark.parametrize("mark", ["", "+"])
def test_a_key_that_means_nothing_here_is_one_line_with_the_reason(mark: str, override: str, why: str) -> None:
    line = notice(f"{mark}{override}")
    assert NO_EFFECT in line
    assert why in line
    assert line.startswith(override.partition("=")[0])
    assert run(override, allow_unused=True).config == run().config


@pytest.mark.parametrize(
    "override",
    [
        f"{ACTOR}.fsdp_config.param_offload=False",
        "critic.model.fsdp_config.optimizer_offload=False",
        f"{ROLLOUT}.tensor_model_parallel_size=2",
        f"{ROLLOUT}.tensor_parallel_size=2",
        f"{ROLLOUT}.gpu_memory_utilization=0.5",
        "critic.model.use_remove_padding=True",
        "reward.reward_model.enable=False",
        "reward.reward_manager.name=naive",
        "reward.reward_model.rollout.tensor_model_parallel_size=2",
        "trainer.balance_batch=True",
        "trainer.default_hdfs_dir=null",
        f"{ACTOR}.optim._target_=verl.workers.config.FSDPOptimizerConfig",
        "custom_reward_function.path=null",
    ],
)
def test_what_the_original_has_anyway_is_accepted_in_silence(override: str) -> None:
    resolved = run(override)
    assert resolved.notices == []
    assert resolved.config == run().config
