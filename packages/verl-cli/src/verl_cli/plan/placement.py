"""Which roles a run has, on which device, in which engine and dtype, and why one is absent."""

from dataclasses import dataclass
from typing import Literal

from verl_engine.config import FsdpConfig

from verl_cli.config import RunConfig
from verl_cli.plan.arithmetic import Cut

Device = Literal["cpu", "cuda"]

#: Bytes of an element by the names that a configuration may use.
DTYPE_BYTES = {
    "fp32": 4,
    "float32": 4,
    "bf16": 2,
    "bfloat16": 2,
    "float16": 2,
    "fp64": 8,
    "float64": 8,
}


@dataclass(frozen=True)
class Role:
    """One of the models of a run."""

    name: str
    present: bool
    why: str
    """What it is for, or why it is absent."""
    engine: str = ""
    device: str = ""
    stored: str = ""
    """Dtype of its parameters."""
    computed: str = ""
    """Dtype of its passes."""


def compute_dtype(fsdp: FsdpConfig, device: Device) -> str:
    """The dtype of a training engine's passes."""
    if fsdp.dtype is not None:
        return fsdp.dtype
    if DTYPE_BYTES[fsdp.model_dtype] == 8:
        return "float64"
    return "float32" if device == "cpu" else "bfloat16"


def rollout_dtype(config: RunConfig, device: Device) -> str:
    """The dtype of the rollout's weights and passes."""
    return config.actor_rollout_ref.rollout.dtype or ("float32" if device == "cpu" else "bfloat16")


def cuts(config: RunConfig) -> dict[str, Cut]:
    """What bounds the micro-batches of each training role."""
    actor, ref, critic = config.actor_rollout_ref.actor, config.actor_rollout_ref.ref, config.critic
    return {
        "actor": Cut.of(actor.use_dynamic_bsz, actor.ppo_micro_batch_size_per_gpu, actor.ppo_max_token_len_per_gpu),
        "ref": Cut.of(
            ref.log_prob_use_dynamic_bsz, ref.log_prob_micro_batch_size_per_gpu, ref.log_prob_max_token_len_per_gpu
        ),
        "critic": Cut.of(critic.use_dynamic_bsz, critic.ppo_micro_batch_size_per_gpu, critic.ppo_max_token_len_per_gpu),
    }


def roles(config: RunConfig, device: Device) -> list[Role]:
    """Every role, present or not."""
    arr, algorithm = config.actor_rollout_ref, config.algorithm
    estimator = f"algorithm.adv_estimator={algorithm.adv_estimator}"

    def trained(name: str, present: bool, why: str, fsdp: FsdpConfig) -> Role:
        if not present:
            return Role(name, False, why)
        return Role(name, True, why, "fsdp", device, fsdp.model_dtype, compute_dtype(fsdp, device))

    used = [
        *(["the reward"] if algorithm.use_kl_in_reward and algorithm.kl_ctrl.kl_coef else []),
        *(["the loss"] if arr.actor.use_kl_loss else []),
    ]
    return [
        trained("actor", True, "the policy that is trained", arr.actor.fsdp_config),
        trained(
            "critic",
            config.needs_critic,
            f"values for {estimator}" if config.needs_critic else f"{estimator} uses no values",
            config.critic.fsdp,
        ),
        trained(
            "ref",
            config.needs_reference,
            f"KL term in {' and '.join(used)}" if used else "no KL term has a weight above 0",
            arr.ref.fsdp_config,
        ),
        _rollout(config, device),
    ]


def _rollout(config: RunConfig, device: Device) -> Role:
    dtype = rollout_dtype(config, device)
    why = "generates; the only engine of this version"
    if config.actor_rollout_ref.rollout.name is None:
        why += " (rollout.name is unset)"
    return Role("rollout", True, why, "hf", device, dtype, dtype)
