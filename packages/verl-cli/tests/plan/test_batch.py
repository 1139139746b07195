"""The arithmetic of a configuration is that of the run which it describes."""

from collections.abc import Callable
from typing import Any

import pytest
from verl_cli import build
from verl_cli.config import RunConfig, resolve
from verl_cli.plan.arithmetic import Cut, DynamicSampling, Schedule, Updates
from verl_cli.plan.batch import batch, batch_problems, dynamic_sampling, schedule
from verl_cli.plan.data import RowsInUse
from verl_cli.plan.placement import (
    DTYPE_BYTES,
    compute_dtype,
    cuts,
    roles,
    rollout_dtype,
)
from verl_rollout.loading import parse_dtype

Overrides = Callable[..., list[str]]
ACTOR = "actor_rollout_ref__actor"


def config(overrides: Overrides, **changes: Any) -> RunConfig:
    return resolve(overrides(**changes)).config


def updates(run: RunConfig, steps: int = 10) -> dict[str, Updates]:
    return {found.role: found for found in batch(run, [6, 8], 20, 20, steps).updates}


def test_a_batch_by_hand(overrides: Overrides) -> None:
    run = config(
        overrides,
        data__train_batch_size=64,
        actor_rollout_ref__rollout__n=5,
        **{f"{ACTOR}__ppo_mini_batch_size": 16, f"{ACTOR}__ppo_epochs": 2, f"{ACTOR}__ppo_max_token_len_per_gpu": 100},
        critic__ppo_mini_batch_size=32,
        critic__ppo_micro_batch_size_per_gpu=7,
        critic__ppo_epochs=1,
        trainer__critic_warmup=3,
    )
    plan = batch(run, [6, 8], 20, 20, 10)
    assert (plan.prompts, plan.n, plan.sequences, plan.longest_sequence) == (64, 5, 320, 20)
    actor, critic = plan.updates
    assert (actor.mini_batches, actor.sequences_per_mini_batch, actor.steps_per_training_step) == (4, 80, 8)
    assert (actor.steps_in_run, actor.first_training_step) == (7 * 8, 4)
    # At worst 5 sequences of 20 tokens in 100; really 10 or 12 tokens: 9 (54 + 50... is over) in 100.
    assert actor.micro_batches.worst == 16
    assert actor.micro_batches.typical == 9
    assert (critic.mini_batches, critic.steps_per_training_step, critic.steps_in_run) == (2, 2, 20)
    assert (critic.micro_batches.limit, critic.micro_batches.most_tokens, critic.micro_batches.worst) == (7, 140, 23)
    assert plan.lengths is not None and (plan.lengths.shortest, plan.lengths.median, plan.lengths.longest) == (6, 7, 8)


def test_a_last_mini_batch_that_is_not_full_counts(overrides: Overrides) -> None:
    run = config(overrides, data__train_batch_size=8, **{f"{ACTOR}__ppo_mini_batch_size": 4})
    assert updates(run)["actor"].mini_batches == 2


@pytest.mark.parametrize(("ratio", "steps"), [(0.0, 0), (0.1, 2), (0.55, 11)])
def test_warm_up_counts_optimiser_steps(overrides: Overrides, ratio: float, steps: int) -> None:
    run = config(overrides, **{f"{ACTOR}__optim__lr_warmup_steps_ratio": ratio})
    found = updates(run)["actor"]
    assert (found.steps_in_run, found.warmup_steps) == (20, steps)


def test_a_schedule_by_hand(overrides: Overrides) -> None:
    run = config(
        overrides,
        trainer__total_training_steps="null",
        trainer__total_epochs=3,
        trainer__test_freq=2,
        trainer__save_freq=4,
    )
    assert schedule(run, RowsInUse(20, True, 0)) == Schedule(
        rows=20,
        rows_are_exact=True,
        rows_left_out=4,
        steps_per_epoch=2,
        steps=6,
        epochs=3.0,
        validations=[0, 2, 4, 6],
        checkpoints=[4, 6],
    )
    assert schedule(run, RowsInUse(7, True, 0)) is None


def test_validation_alone_trains_nothing(overrides: Overrides) -> None:
    found = schedule(config(overrides, trainer__val_only="true"), RowsInUse(20, True, 0))
    assert found is not None and (found.steps, found.validations, found.checkpoints) == (0, [0], [])


def test_a_warm_up_of_the_critic_that_leaves_the_actor_nothing(overrides: Overrides) -> None:
    run = config(overrides, trainer__critic_warmup=5)
    assert "leaves the actor none of 5 steps" in batch_problems(run, 5)[0]
    assert batch_problems(run, 6) == []


CASES: list[tuple[str, dict[str, Any]]] = [
    ("ppo", {}),
    ("ppo", {"algorithm__kl_ctrl__kl_coef": 0}),
    ("ppo", {f"{ACTOR}__use_kl_loss": "true"}),
    ("ppo", {"algorithm__use_kl_in_reward": "false", f"{ACTOR}__ppo_micro_batch_size_per_gpu": 3}),
    ("ppo", {"trainer__critic_warmup": 1, "critic__ppo_mini_batch_size": 8, "critic__ppo_epochs": 3}),
    ("ppo", {f"{ACTOR}__use_dynamic_bsz": "true", f"{ACTOR}__fsdp_config__model_dtype": "fp64"}),
    ("grpo", {"actor_rollout_ref__ref__log_prob_micro_batch_size_per_gpu": 2}),
    ("grpo", {f"{ACTOR}__use_kl_loss": "false", f"{ACTOR}__fsdp_config__dtype": "bf16"}),
]


@pytest.mark.parametrize(("preset", "changes"), CASES)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_plan_describes_the_workers_that_are_started(
    overrides: Overrides, preset: str, changes: dict[str, Any], device: Any
) -> None:
    critic = ["critic.optim.lr=1e-3"]
    arguments = [text for text in overrides(**changes, trainer__device=device) if preset == "ppo" or text not in critic]
    arguments = [text for text in arguments if preset == "ppo" or not text.startswith("critic")]
    run = resolve(arguments, preset=preset).config
    started = build.roles(run, 10)
    planned = {role.name: role for role in roles(run, device)}
    assert {name for name, role in planned.items() if role.present} == set(started)
    assert (run.needs_critic, run.needs_reference) == ("critic" in started, "ref" in started)
    found, cut = updates(run), cuts(run)
    for name in started.keys() - {"rollout"}:
        engine = started[name].arguments["config"]
        assert cut[name] == Cut(engine.max_tokens_per_micro_batch, engine.max_sequences_per_micro_batch)
        dtype = compute_dtype(engine.fsdp, device)
        assert (planned[name].computed, DTYPE_BYTES[dtype]) == (dtype, engine.compute_dtype.itemsize)
        assert DTYPE_BYTES[planned[name].stored] == engine.storage_dtype.itemsize
        if engine.optim is not None:
            assert found[name].steps_in_run == engine.optim.total_training_steps
    wanted = parse_dtype(started["rollout"].arguments["dtype"], type("Device", (), {"type": device})())
    assert DTYPE_BYTES[rollout_dtype(run, device)] == wanted.itemsize


def test_an_absent_role_says_why(overrides: Overrides) -> None:
    arguments = [text for text in overrides() if not text.startswith("critic")]
    planned = {role.name: role for role in roles(resolve(arguments, preset="grpo").config, "cpu")}
    assert planned["critic"].why == "algorithm.adv_estimator=grpo uses no values"
    assert planned["ref"].why == "KL term in the loss"
    run = config(overrides, algorithm__kl_ctrl__kl_coef=0)
    assert next(role for role in roles(run, "cpu") if role.name == "ref").why == "no KL term has a weight above 0"


def test_dynamic_sampling_says_how_far_a_step_goes(overrides: Overrides) -> None:
    filtering = {"algorithm__filter_groups__enable": "true", "actor_rollout_ref__rollout__n": 4}
    rows = RowsInUse(33, True, 0)
    assert dynamic_sampling(config(overrides), schedule(config(overrides), rows)) is None
    limited = config(overrides, **filtering)
    assert dynamic_sampling(limited, None) == DynamicSampling("acc", 10, 80, 320)
    whole = config(overrides, **filtering, algorithm__filter_groups__max_num_gen_batches=0)
    assert dynamic_sampling(whole, schedule(whole, rows)) == DynamicSampling("acc", 4, 32, 128)
    assert dynamic_sampling(whole, None) == DynamicSampling("acc", None, None, None)
