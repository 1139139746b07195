"""What must be so outside the configuration: the run directory, the disk, the model's length, the device's memory."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from verl_cli.config import RunConfig
from verl_cli.errors import UserError
from verl_cli.plan.device import DeviceInfo
from verl_cli.plan.phases import MemoryPlan, Sizes
from verl_cli.plan.placement import DTYPE_BYTES
from verl_cli.run.resume import NothingLeft, Start, find_start
from verl_cli.run.run_dir import RunDir

_GIB = 1 << 30
#: The part of a device's memory from which on a plan warns: the allocator's holes and CUDA itself need the rest.
_TIGHT = 0.9


@dataclass
class RunDirLook:
    """What the run directory says."""

    path: Path
    start: Start | None
    """Where the run would begin; None where it cannot."""
    problems: list[str]
    notices: list[str]


def look_at_run_dir(config: RunConfig, total_steps: int | None) -> RunDirLook:
    """Find out where the run would begin and what stands in its way. Nothing is written."""
    run_dir = RunDir(Path(config.trainer.default_local_dir).expanduser().absolute())
    found = RunDirLook(run_dir.path, None, [], [])
    try:
        run_dir.check_usable()
        found.start = find_start(config, run_dir)
        found.notices += found.start.notices
        if total_steps is not None:
            found.start.check_left(config, run_dir, total_steps)
    except NothingLeft as error:
        found.notices.append(str(error))
    except (UserError, OSError) as error:
        found.problems.append(str(error))
    if run_dir.is_in_use():
        found.problems.append(
            f"The run directory {run_dir.path} is in use: another process is writing a run into it. Wait for it or "
            f"stop it, or give this run its own: trainer.default_local_dir=DIR."
        )
    return found


@dataclass(frozen=True)
class Disk:
    """Room for the checkpoints."""

    checkpoint_bytes: int
    checkpoints: int
    """Most of them that exist at the same time."""
    free_bytes: int

    @property
    def needed_bytes(self) -> int:
        """Room for all of them."""
        return self.checkpoint_bytes * self.checkpoints


def disk(config: RunConfig, actor: Sizes, critic: Sizes | None, checkpoints: int, run_dir: str) -> Disk:
    """The size of a checkpoint, how many are kept, and the room where they go.

    A checkpoint holds parameters and two moments of actor and critic, and their parameters again as Hugging Face
    folders. With rotation, the new one is complete before the oldest is deleted.
    """
    size = 4 * DTYPE_BYTES[config.actor_rollout_ref.actor.fsdp_config.model_dtype] * actor.weights.total
    if critic is not None:
        size += 4 * DTYPE_BYTES[config.critic.fsdp.model_dtype] * critic.weights.total
    keep = config.trainer.max_actor_ckpt_to_keep
    path = Path(run_dir)
    parent = next(folder for folder in (path, *path.parents) if folder.is_dir())
    return Disk(size, checkpoints if keep is None else min(checkpoints, keep + 1), shutil.disk_usage(parent).free)


def disk_problem(disk: Disk, run_dir: str) -> str | None:
    """Why the checkpoints do not fit, if they do not."""
    if disk.needed_bytes <= disk.free_bytes:
        return None
    return (
        f"{disk.checkpoints} checkpoints of {gib(disk.checkpoint_bytes)} each need {gib(disk.needed_bytes)}, and "
        f"{gib(disk.free_bytes)} are free where {run_dir} lies. Keep fewer (trainer.max_actor_ckpt_to_keep), save less "
        f"often (trainer.save_freq, in steps), or choose another trainer.default_local_dir."
    )


def context_warning(config: RunConfig, context: int | None) -> str | None:
    """What becomes of sequences of allowed length that do not fit into the model, if there are any."""
    data = config.data
    longest = data.max_prompt_length + data.max_response_length
    if context is None or context >= longest:
        return None
    room = context - data.max_prompt_length
    shorter = f"Set data.max_response_length to at most {room}, shorten the prompts"
    if room < 1:
        shorter = f"Set data.max_prompt_length and data.max_response_length to at most {context} together"
    return (
        f"The model has {context} positions, fewer than data.max_prompt_length + data.max_response_length = {longest} "
        f"tokens: responses that reach position {context} end there. {shorter}; or, if the model can more, set "
        f"actor_rollout_ref.model.override_config.max_position_embeddings={longest}."
    )


def vocabulary_problem(tokens: int | None, actor: int | None) -> str | None:
    """Why the tokenizer does not belong to the model, if it does not."""
    if tokens is None or actor is None or tokens <= actor:
        return None
    return (
        f"The tokenizer has {tokens} tokens and the model's vocabulary {actor}, so some of its ids mean nothing to the "
        f"model. Use the tokenizer of the model's own folder (actor_rollout_ref.model.tokenizer_path)."
    )


#: The key to lower where a stage of a phase needs too much.
_REMEDIES = {
    "gen": "actor_rollout_ref.rollout.max_num_seqs (sequences that are decoded together)",
    "old_log_prob": "actor_rollout_ref.actor.ppo_max_token_len_per_gpu or ppo_micro_batch_size_per_gpu",
    "ref": "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu or log_prob_micro_batch_size_per_gpu",
    "values": "critic.ppo_max_token_len_per_gpu or ppo_micro_batch_size_per_gpu",
    "update_critic": "critic.ppo_max_token_len_per_gpu or ppo_micro_batch_size_per_gpu",
    "update_actor": "actor_rollout_ref.actor.ppo_max_token_len_per_gpu or ppo_micro_batch_size_per_gpu",
}


def memory_verdict(memory: MemoryPlan, device: DeviceInfo) -> Iterator[tuple[bool, str]]:
    """What there is to say of the peak: (whether it cannot work, the paragraph)."""
    if device.memory_bytes is None:
        return
    room = device.memory_bytes - (device.used_bytes or 0)
    peak, resident = memory.peak, sum(held.total for held in memory.resident.values())
    if peak.held.total <= _TIGHT * room:
        return
    others = f" ({gib(device.used_bytes)} of it are in use by others)" if device.used_bytes else ""
    if resident > room:
        remedy = (
            "The models alone need more than that: take a smaller one, or leave out critic (algorithm.adv_estimator="
            "grpo) or reference (no KL term)."
        )
    else:
        remedy = f"Lower {_REMEDIES.get(peak.phase, 'the size of the model')}."
    does_not_fit = peak.held.total > room
    text = (
        f"The phase {peak.phase} needs about {gib(peak.held.total)} at its peak ({peak.stage}), and {device.name} has "
        f"{gib(device.memory_bytes)}{others}{'' if does_not_fit else ': that is tight'}. {remedy}"
    )
    yield does_not_fit and device.kind == "cuda", text


def gib(size: int | None) -> str:
    """A number of bytes in words."""
    if size is None:
        return "unknown"
    if size < _GIB // 10:
        return f"{size / (1 << 20):.1f} MiB"
    return f"{size / _GIB:.1f} GiB" if size < 100 * _GIB else f"{size / _GIB:.0f} GiB"
