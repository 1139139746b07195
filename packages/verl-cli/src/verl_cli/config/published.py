"""The published keys that this version does not implement, the renamed ones, and values it does not have."""

import difflib
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from verl_cli.config.keys import live_keys
from verl_cli.config.reasons import MEGATRON_OPTIM, OPTIM_SECTIONS, REASONS, Reason

_ROLLOUT = "actor_rollout_ref.rollout"

#: Old names, as keys or as the prefix of a section; the longest match counts.
RENAMED = {
    "actor_rollout_ref.actor.grad_clip": "actor_rollout_ref.actor.optim.clip_grad",
    "actor_rollout_ref.actor.optim.grad_clip": "actor_rollout_ref.actor.optim.clip_grad",
    "actor_rollout_ref.actor.optim.warmup_style": "actor_rollout_ref.actor.optim.lr_scheduler_type",
    "actor_rollout_ref.actor.ppo_micro_batch_size": "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.ref.log_prob_micro_batch_size": "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
    f"{_ROLLOUT}.log_prob_micro_batch_size": f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu",
    f"{_ROLLOUT}.micro_batch_size": f"{_ROLLOUT}.max_num_seqs",
    f"{_ROLLOUT}.micro_batch_size_per_gpu": f"{_ROLLOUT}.max_num_seqs",
    f"{_ROLLOUT}.tensor_parallel_size": f"{_ROLLOUT}.tensor_model_parallel_size",
    "critic.grad_clip": "critic.optim.clip_grad",
    "critic.model.fsdp_config": "critic.fsdp",
    "critic.optim.grad_clip": "critic.optim.clip_grad",
    "critic.optim.warmup_style": "critic.optim.lr_scheduler_type",
    "critic.ppo_micro_batch_size": "critic.ppo_micro_batch_size_per_gpu",
    "custom_reward_function": "reward.custom_reward_function",
    "data.tokenizer": "actor_rollout_ref.model.tokenizer_path",
    "reward.reward_kwargs": "reward.custom_reward_function.reward_kwargs",
    "reward_model.enable": "reward.reward_model.enable",
    "reward_model.reward_kwargs": "reward.custom_reward_function.reward_kwargs",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "trainer.max_critic_ckpt_to_keep": "trainer.max_actor_ckpt_to_keep",
}

#: Published values of live keys that this version does not have.
_LOGGERS = {
    name: Reason(
        "This version has no such logger.", "Use console; every metric is in metrics.jsonl of the run directory."
    )
    for name in ("wandb", "tensorboard", "mlflow", "swanlab", "clearml", "trackio", "vemlp_wandb", "file")
}
_SERVERS = {
    name: Reason(
        "This version has no such rollout engine.",
        "Use hf, which gives responses of the same distribution, more slowly.",
    )
    for name in ("vllm", "sglang", "trtllm")
}
UNAVAILABLE_VALUES: Mapping[str, Mapping[str, Reason]] = {
    "actor_rollout_ref.rollout.name": _SERVERS,
    "trainer.logger": _LOGGERS,
}

#: Sections whose keys are known by the section alone.
_OPEN_SECTIONS = (
    "actor_rollout_ref.actor.megatron",
    "actor_rollout_ref.ref.megatron",
    "critic.megatron",
    "hydra",
    *(f"{section}.{name}" for section in OPTIM_SECTIONS for name in MEGATRON_OPTIM),
)


@cache
def published() -> Mapping[str, Any]:
    """Every published key with its published default; references to other keys are resolved."""
    table: dict[str, Any] = json.loads(files(__package__).joinpath("published.json").read_text("utf-8"))
    return table


def renamed(key: str) -> str:
    """Return the present name of a key."""
    for prefix in prefixes(key):
        if prefix in RENAMED:
            return RENAMED[prefix] + key[len(prefix) :]
    return key


def reason(key: str) -> Reason | None:
    """Return why a published key has no effect; None for a key that is not published, or that is live."""
    if key in live_keys() or not _is_published(key):
        return None
    return next(REASONS[prefix] for prefix in prefixes(key) if prefix in REASONS)


def nearest(key: str) -> str:
    """Return the known key most like `key`: one that ends in it, or is like it in its whole name and its last part."""
    whole = difflib.SequenceMatcher(b=key, autojunk=False)
    last = difflib.SequenceMatcher(b=key.rsplit(".", 1)[-1], autojunk=False)
    best, likeness = "", (False, 0.0, False)
    for candidate in dict.fromkeys([*live_keys(), *published(), *RENAMED]):
        whole.set_seq1(candidate)
        last.set_seq1(candidate.rsplit(".", 1)[-1])
        ends_in_it, live = candidate.endswith(f".{key}"), candidate in live_keys()
        if (ends_in_it, whole.real_quick_ratio() + last.real_quick_ratio(), live) <= likeness:
            continue  # Not even an upper bound is better, and the bound is cheap.
        if (ends_in_it, whole.quick_ratio() + last.quick_ratio(), live) <= likeness:
            continue
        exact = (ends_in_it, whole.ratio() + last.ratio(), live)
        if exact > likeness:
            best, likeness = candidate, exact
    return best


def prefixes(key: str) -> list[str]:
    """The key itself, then each section that holds it, the innermost first."""
    parts = key.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _is_published(key: str) -> bool:
    names = prefixes(key)
    return (
        key in published()
        or any(published().get(name) == {} for name in names)
        or any(name in _OPEN_SECTIONS for name in names)
    )
