"""From a configuration to the memory of every phase."""

from collections.abc import Callable
from typing import Any

from verl_cli.config import RunConfig, resolve
from verl_cli.plan.memory import CUBLAS_BYTES
from verl_cli.plan.model_size import Architecture, count_weights, decoder_shapes, with_value_head
from verl_cli.plan.phases import MemoryPlan, Sizes, memory_plan

Overrides = Callable[..., list[str]]

ARCHITECTURE = Architecture("qwen2", 24, 896, 4864, 14, 2, 64, 151936, tied=True)
SHAPES = decoder_shapes(ARCHITECTURE)
ACTOR = Sizes(ARCHITECTURE, count_weights(SHAPES, "config.json"), 4096)
CRITIC = Sizes(ARCHITECTURE, count_weights(with_value_head(SHAPES, 896), "config.json"), 4096)
PARAMETERS = ACTOR.weights.total
SIZE = {
    "data__train_batch_size": 64,
    "data__max_prompt_length": 64,
    "data__max_response_length": 96,
    "actor_rollout_ref__rollout__n": 4,
    "actor_rollout_ref__actor__ppo_mini_batch_size": 32,
}


def config(overrides: Overrides, preset: str, **changes: object) -> RunConfig:
    arguments = [text for text in overrides(**SIZE, **changes) if preset == "ppo" or not text.startswith("critic")]
    return resolve(arguments, preset=preset).config


def plan(run: RunConfig, device: Any = "cuda") -> MemoryPlan:
    return memory_plan(run, device, ACTOR, CRITIC, [40, 50, 64])


def test_ppo_holds_four_models_at_all_times(overrides: Overrides) -> None:
    found = plan(config(overrides, "ppo"))
    assert {role: held.total for role, held in found.resident.items()} == {
        "actor": 12 * PARAMETERS,
        "ref": 4 * PARAMETERS,
        "critic": 12 * CRITIC.weights.total,
        "rollout": 2 * PARAMETERS,
    }
    assert CRITIC.weights.total == PARAMETERS + 896 + 1
    phases = ["gen", "old_log_prob", "ref", "values", "update_critic", "update_actor", "update_weights"]
    assert [phase.phase for phase in found.phases] == phases
    always = sum(held.total for held in found.resident.values()) + CUBLAS_BYTES
    assert all(phase.held.total > always for phase in found.phases)
    assert found.peak.phase == "update_actor"


def test_grpo_has_no_critic(overrides: Overrides) -> None:
    found = plan(config(overrides, "grpo"))
    assert set(found.resident) == {"actor", "ref", "rollout"}
    assert [phase.phase for phase in found.phases] == ["gen", "old_log_prob", "ref", "update_actor", "update_weights"]


def test_a_smaller_cap_lowers_the_update(overrides: Overrides) -> None:
    cap = "actor_rollout_ref__actor__ppo_max_token_len_per_gpu"
    large, small = (plan(config(overrides, "grpo", **{cap: tokens})).phases[3].held for tokens in (16384, 4096))
    assert small.activations < 0.3 * large.activations
    assert (small.parameters, small.optimizer) == (large.parameters, large.optimizer)


def test_fewer_sequences_at_once_lower_the_cache(overrides: Overrides) -> None:
    seqs = "actor_rollout_ref__rollout__max_num_seqs"
    many, few = (plan(config(overrides, "grpo", **{seqs: number})).phases[0].held for number in (256, 64))
    assert few.kv_cache * 3 < many.kv_cache


def test_a_cpu_computes_in_float32(overrides: Overrides) -> None:
    found = plan(config(overrides, "ppo"), "cpu")
    assert found.resident["rollout"].parameters == 4 * PARAMETERS


def test_prompts_that_are_fewer_than_a_batch_are_repeated(overrides: Overrides) -> None:
    run = config(overrides, "ppo")
    assert plan(run) == memory_plan(run, "cuda", ACTOR, CRITIC, [40, 50, 64] * 30)
