"""The published keys that this version does not implement, the renamed ones, and values it does not have."""

import difflib
import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Any

from verl_algos.estimators import canonical
from verl_algos.import_path import is_import_path
from verl_algos.loss_options import canonical_loss

from verl_cli.config.keys import live_keys, sections
from verl_cli.config.reasons import FIXED_CLASSES, MEGATRON_OPTIM, OPTIM_SECTIONS, REASONS, Reason

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
    f"{_ROLLOUT}.multi_turn.max_turns": f"{_ROLLOUT}.multi_turn.max_assistant_turns",
    f"{_ROLLOUT}.tensor_parallel_size": f"{_ROLLOUT}.tensor_model_parallel_size",
    f"{_ROLLOUT}.update_weights_bucket_megabytes": f"{_ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes",
    "critic.grad_clip": "critic.optim.clip_grad",
    "critic.model.fsdp_config": "critic.fsdp",
    "critic.optim.grad_clip": "critic.optim.clip_grad",
    "critic.optim.warmup_style": "critic.optim.lr_scheduler_type",
    "critic.ppo_micro_batch_size": "critic.ppo_micro_batch_size_per_gpu",
    "custom_reward_function": "reward.custom_reward_function",
    "data.tokenizer": "actor_rollout_ref.model.tokenizer_path",
    "ray_init": "ray_kwargs.ray_init",
    "reward.reward_kwargs": "reward.custom_reward_function.reward_kwargs",
    "reward_model.enable": "reward.reward_model.enable",
    "reward_model.model.path": "reward.reward_model.model_path",
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.overlong_buffer": "reward.reward_kwargs.overlong_buffer_cfg",
    "reward_model.reward_kwargs": "reward.reward_kwargs",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "trainer.max_critic_ckpt_to_keep": "trainer.max_actor_ckpt_to_keep",
}

#: Published values of live keys under another name; those of algorithms, which papers spell differently, are in
#: `renamed_value`.
RENAMED_VALUES: Mapping[str, Mapping[str, str]] = {
    "algorithm.filter_groups.metric": {"seq_reward": "score"},
    # Which process scores is reward.num_workers; several rewards at once are algorithm.gdpo_reward_keys.
    "reward.reward_manager.name": dict.fromkeys(("gdpo", "prime", "remote"), "naive"),
    "trainer.resume_mode": {"resume_path": "path"},
}

#: Published values of live keys that this version does not have.
_LOGGERS = {
    name: Reason(
        "This version has no such logger.",
        "Use wandb, tensorboard, mlflow or swanlab; every metric is in metrics.jsonl of the run directory too.",
    )
    for name in ("clearml", "rl_insight", "trackio", "vemlp_wandb")
}
_SERVERS = {
    name: Reason(
        "This version has no such rollout engine.",
        "Use hf, which gives responses of the same distribution, more slowly.",
    )
    for name in ("vllm", "sglang", "trtllm")
}
UNAVAILABLE_VALUES: Mapping[str, Mapping[str, Reason]] = {
    "algorithm.filter_groups.metric": {
        "seq_final_reward": Reason(
            "Prompts are kept or dropped before the KL penalty is known, which nearly always makes rewards differ.",
            "Set acc or score.",
        )
    },
    "actor_rollout_ref.rollout.name": _SERVERS,
    "reward.reward_manager.name": {
        "batch": Reason(
            "A reward function is given one response.",
            "Leave it out and take one response, or score batches in a subclass of verl.RewardModel "
            "(reward.reward_model.path=FILE.py:Class).",
        ),
        "rate_limited": Reason(
            "This version limits requests where they are sent.",
            "Leave it out; ask a judge with reward.reward_model.path=verl_algos.rewards:JudgeRewardModel "
            "reward.reward_model.kwargs={url: URL, model: NAME, requests_per_minute: 60, max_concurrency: 8}, or limit "
            "them in an async function of your own.",
        ),
    },
    "trainer.logger": _LOGGERS,
}

#: Keys of older tutorials that the published tree no longer has, or never had without Hydra's "+".
_RETIRED = (
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class",
    "actor_rollout_ref.rollout.multi_turn.interaction_config_path",
    "actor_rollout_ref.actor.tis_imp_ratio_cap",
    *(f"algorithm.rollout_is{name}" for name in ("", "_level", "_mode", "_threshold", "_threshold_lower")),
    "algorithm.rollout_is_veto_threshold",
    "algorithm.rollout_correction.rollout_token_veto_threshold",
    "data.cache_dir",
    "data.datagen",
    "data.sampler",
    "reward.launch_reward_fn_async",
    "reward.use_reward_loop",
    "reward_model.forward_max_token_len_per_gpu",
    "reward_model.launch_reward_fn_async",
    "reward_model.load_weight",
    "reward_model.max_length",
    "reward_model.megatron",
    "reward_model.micro_batch_size",
    "reward_model.micro_batch_size_per_gpu",
    "reward_model.model.fsdp_config",
    "reward_model.model.fused_kernel_options",
    "reward_model.model.input_tokenizer",
    "reward_model.model.use_fused_kernels",
    "reward_model.model.use_remove_padding",
    "reward_model.model.use_shm",
    "reward_model.nccl_timeout",
    "reward_model.profiler",
    "reward_model.sandbox_fusion",
    "reward_model.strategy",
    "reward_model.ulysses_sequence_parallel_size",
    "reward_model.use_dynamic_bsz",
    "reward_model.use_reward_loop",
    "trainer.remove_previous_ckpt_in_save",
    "trainer.use_legacy_worker_impl",
)

#: Sections whose keys are known by the section alone.
_OPEN_SECTIONS = (
    "actor_rollout_ref.actor.megatron",
    "actor_rollout_ref.ref.megatron",
    "critic.megatron",
    "hydra",
    *_RETIRED,
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
        if prefix in REASONS or prefix in live_keys():
            return key  # One key of a renamed section that has no successor, or kept its name.
        if prefix in RENAMED and not _misspelt(key, prefix):
            return renamed(RENAMED[prefix] + key[len(prefix) :])
        if prefix in sections():
            return key
    return key


def renamed_value(key: str, value: object) -> str | None:
    """The present name of a value that has another one; None if it has none."""
    if not isinstance(value, str) or is_import_path(value):
        return None
    present = RENAMED_VALUES.get(key, {}).get(value, value)
    if key == "algorithm.adv_estimator":
        with suppress(ValueError):  # which is told where values are checked
            present = canonical(value)
    elif key == "actor_rollout_ref.actor.policy_loss.loss_mode":
        present = canonical_loss(value)
    return None if present == value else present


def _misspelt(key: str, section: str) -> bool:
    """Whether a key is probably meant for one that the section still has, and not for the mapping it was renamed to."""
    child = key[len(section) + 1 :].partition(".")[0]
    kept = {name[len(section) + 1 :].partition(".")[0] for name in live_keys() if name.startswith(f"{section}.")}
    return bool(difflib.get_close_matches(child, kept, n=1, cutoff=0.75))


def splits(key: str) -> bool:
    """Whether a mapping under this key must be taken apart: not all of its keys have the same state."""
    names = (f"{key}.", f"{RENAMED.get(key, key)}.")
    return renamed(key) != key and any(name.startswith(names) for name in (*REASONS, *live_keys()))


def reason(key: str) -> Reason | None:
    """Return why a published key has no effect; None for a key that is not published, or that is live."""
    if key in live_keys() or not _is_published(key):
        return None
    if _names_a_class(key):
        return FIXED_CLASSES
    return next(REASONS[prefix] for prefix in prefixes(key) if prefix in REASONS)


def is_published_default(key: str, value: Any) -> bool:
    """Whether the published tree gives this value to the key."""
    if _names_a_class(key):
        return isinstance(value, str) and value.startswith("verl.")
    return key in published() and value == published()[key]


@cache
def prefixes(key: str) -> tuple[str, ...]:
    """The key itself, then each section that holds it, the innermost first."""
    parts = key.split(".")
    return tuple(".".join(parts[:end]) for end in range(len(parts), 0, -1))


def _names_a_class(key: str) -> bool:
    """Whether the key is the published tree's way to name the class that reads a section."""
    section, _, last = key.rpartition(".")
    return last == "_target_" and any(name.startswith(f"{section}.") for name in published())


def _is_published(key: str) -> bool:
    names = prefixes(key)
    return (
        key in published()
        or _names_a_class(key)
        or any(published().get(name) == {} for name in names)
        or any(name in _OPEN_SECTIONS for name in names)
    )
