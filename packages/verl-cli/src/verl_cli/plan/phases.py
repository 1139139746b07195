"""The memory of a step phase by phase, from a configuration and the sizes of its models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from verl_cli.config import RunConfig
from verl_cli.config.algorithm_rules import estimator_takes
from verl_cli.plan import memory
from verl_cli.plan.arithmetic import MicroBatch, micro_batches, mini_batches, waves
from verl_cli.plan.memory import Footprint, Generator, Stage, TrainedModel
from verl_cli.plan.model_size import Architecture, Weights
from verl_cli.plan.placement import (
    DTYPE_BYTES,
    Device,
    compute_dtype,
    cuts,
    rollout_dtype,
)


@dataclass(frozen=True)
class Sizes:
    """What is known of a model folder."""

    architecture: Architecture
    weights: Weights
    context: int | None
    """Most tokens of a sequence."""


@dataclass(frozen=True)
class PhaseMemory:
    """The peak of one phase."""

    phase: str
    """As in `timing_s/<phase>`."""
    role: str
    """Whose work it is."""
    stage: str
    """The moment of the peak."""
    held: Footprint
    """Everything on the device then, of all roles."""


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of every phase, where responses are as long as allowed."""

    resident: dict[str, Footprint]
    """What each role holds at all times."""
    phases: list[PhaseMemory]

    @property
    def peak(self) -> PhaseMemory:
        """The phase that needs most."""
        return max(self.phases, key=lambda phase: phase.held.total)


def memory_plan(
    config: RunConfig, device: Device, actor: Sizes, critic: Sizes | None, prompt_tokens: Sequence[int]
) -> MemoryPlan:
    """Predict the peak of each phase for one rank.

    `actor` is the model of actor, reference and rollout; `critic` is None where there is none. `prompt_tokens` are the
    lengths of prompts of the data.
    """
    arr, data = config.actor_rollout_ref, config.data
    models = _trained_models(config, device, actor, critic)
    options = arr.rollout
    generator = Generator(
        actor.architecture,
        actor.weights,
        DTYPE_BYTES[rollout_dtype(config, device)],
        top_k=options.top_k != -1,
        top_p=options.top_p < 1,
    )
    resident = {role: model.resident for role, model in models.items()} | {"rollout": generator.resident}
    of_step = [prompt_tokens[i % len(prompt_tokens)] for i in range(data.train_batch_size)]
    found = waves(of_step, options.n, data.max_response_length, options.max_num_seqs, actor.context)
    stages: dict[str, tuple[str, list[Stage]]] = {"gen": ("rollout", memory.generation_stages(generator, found))}
    cut = cuts(config)

    def of_mini_batches(role: str, prompts: int) -> list[list[MicroBatch]]:
        parts = mini_batches(prompt_tokens, data.train_batch_size, prompts, options.n)
        return [micro_batches(part, data.max_response_length, cut[role]) for part in parts]

    actor_parts = of_mini_batches("actor", arr.actor.ppo_mini_batch_size)
    correction = config.algorithm.rollout_correction
    if not correction.bypass_mode or estimator_takes(config.algorithm.adv_estimator, "sum_pi_squared"):
        stages["old_log_prob"] = (
            "actor",
            [s for part in actor_parts for s in memory.forward_stages(models["actor"], part, entropy=True)],
        )
    if "ref" in models:
        (whole,) = of_mini_batches("ref", data.train_batch_size)
        stages["ref"] = ("ref", memory.forward_stages(models["ref"], whole, entropy=False))
    if "critic" in models:
        critic_parts = of_mini_batches("critic", config.critic.ppo_mini_batch_size)
        stages["values"] = (
            "critic",
            [s for part in critic_parts for s in memory.forward_stages(models["critic"], part, entropy=False)],
        )
        stages["update_critic"] = (
            "critic",
            [s for part in critic_parts for s in memory.update_stages(models["critic"], part, entropy=False)],
        )
    entropy = arr.actor.entropy_coeff != 0
    stages["update_actor"] = (
        "actor",
        [s for part in actor_parts for s in memory.update_stages(models["actor"], part, entropy=entropy)],
    )
    stages["update_weights"] = ("rollout", memory.sync_stages(models["actor"], generator, device))
    always = sum(resident.values(), Footprint(activations=memory.CUBLAS_BYTES if device == "cuda" else 0))
    phases = []
    for phase, (role, moments) in stages.items():
        top = memory.peak(moments)
        phases.append(PhaseMemory(phase, role, top.name, always + top.footprint))
    return MemoryPlan(resident, phases)


def _trained_models(
    config: RunConfig, device: Device, actor: Sizes, critic: Sizes | None
) -> Mapping[str, TrainedModel]:
    arr = config.actor_rollout_ref
    roles = {"actor": (actor, arr.model, arr.actor.fsdp_config, True)}
    if config.needs_reference:
        roles["ref"] = (actor, arr.model, arr.ref.fsdp_config, False)
    if config.needs_critic and critic is not None:
        roles["critic"] = (critic, config.critic.model, config.critic.fsdp, True)
    models = {}
    for role, (sizes, model, fsdp, trained) in roles.items():
        computed = compute_dtype(fsdp, device)
        models[role] = TrainedModel(
            architecture=sizes.architecture,
            weights=sizes.weights,
            storage=DTYPE_BYTES[fsdp.model_dtype],
            compute=DTYPE_BYTES[computed],
            trained=trained,
            value_head=role == "critic",
            checkpointing=trained and model.enable_gradient_checkpointing,
            reshard=fsdp.reshard_after_forward,
            packed_kernel=device == "cuda" and DTYPE_BYTES[computed] == 2,
        )
    return models
