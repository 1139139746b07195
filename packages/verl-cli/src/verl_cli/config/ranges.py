"""Which values a single key takes, beyond its type."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from verl_engine.config import DTYPES as ENGINE_DTYPES
from verl_rollout.config import DTYPES as ROLLOUT_DTYPES

from verl_cli.config.rule import ACTOR, REF, ROLLOUT
from verl_cli.config.values import show


class Range(NamedTuple):
    """What a value must satisfy."""

    words: str
    holds: Callable[[Any], bool]


class Names(NamedTuple):
    """The names of which a value is one, or a list."""

    what: str
    known: tuple[str, ...]


_COUNT = Range("at least 1", lambda value: value >= 1)
_NOT_NEGATIVE = Range("at least 0", lambda value: value >= 0)
_POSITIVE = Range("above 0", lambda value: value > 0)
_SHARE = Range("between 0 and 1", lambda value: 0 <= value <= 1)
_PROBABILITY = Range("above 0 and at most 1", lambda value: 0 < value <= 1)
_FREQUENCY = Range("a number of steps, or -1 for never in between", lambda value: value == -1 or value >= 1)
_TOP_K = Range("at least 1, or -1 for all tokens", lambda value: value == -1 or value >= 1)

_ROWS = Range("a number of rows, or -1 for all", lambda value: value == -1 or value >= 1)

#: What numbers must satisfy.
RANGES: Mapping[str, Range] = {
    "data.train_batch_size": _COUNT,
    "data.max_prompt_length": _COUNT,
    "data.max_response_length": _COUNT,
    "data.seed": _NOT_NEGATIVE,
    "data.train_max_samples": _ROWS,
    "data.val_max_samples": _ROWS,
    f"{ACTOR}.ppo_mini_batch_size": _COUNT,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": _COUNT,
    f"{ACTOR}.ppo_max_token_len_per_gpu": _COUNT,
    f"{ACTOR}.clip_ratio": _PROBABILITY,
    f"{ACTOR}.loss_scale_factor": _POSITIVE,
    f"{ACTOR}.kl_loss_coef": _NOT_NEGATIVE,
    f"{ACTOR}.ppo_epochs": _COUNT,
    f"{REF}.log_prob_micro_batch_size_per_gpu": _COUNT,
    f"{REF}.log_prob_max_token_len_per_gpu": _COUNT,
    f"{ROLLOUT}.n": _COUNT,
    f"{ROLLOUT}.temperature": Range("above 0 (training samples its responses)", lambda value: value > 0),
    f"{ROLLOUT}.top_p": _PROBABILITY,
    f"{ROLLOUT}.top_k": _TOP_K,
    f"{ROLLOUT}.max_num_seqs": _COUNT,
    f"{ROLLOUT}.seed": _NOT_NEGATIVE,
    f"{ROLLOUT}.val_kwargs.n": _COUNT,
    f"{ROLLOUT}.val_kwargs.temperature": _NOT_NEGATIVE,
    f"{ROLLOUT}.val_kwargs.top_p": _PROBABILITY,
    f"{ROLLOUT}.val_kwargs.top_k": _TOP_K,
    "critic.ppo_mini_batch_size": _COUNT,
    "critic.ppo_micro_batch_size_per_gpu": _COUNT,
    "critic.ppo_max_token_len_per_gpu": _COUNT,
    "critic.ppo_epochs": _COUNT,
    "critic.cliprange_value": _POSITIVE,
    "critic.loss_scale_factor": _POSITIVE,
    "algorithm.gamma": _SHARE,
    "algorithm.lam": _SHARE,
    "algorithm.kl_ctrl.kl_coef": _NOT_NEGATIVE,
    "algorithm.kl_ctrl.horizon": _COUNT,
    "algorithm.kl_ctrl.target_kl": _POSITIVE,
    "algorithm.filter_groups.max_num_gen_batches": Range(
        "a number of batches, or 0 for one pass over the training prompts", lambda value: value >= 0
    ),
    "reward.num_workers": Range(
        "from 0 to 1024 processes (null starts one for each core, at most 8)", lambda value: 0 <= value <= 1024
    ),
    "reward.cpu_seconds": _POSITIVE,
    "reward.wall_seconds": _POSITIVE,
    "reward.memory_mb": _COUNT,
    "reward.reward_kwargs.max_resp_len": _COUNT,
    "reward.reward_kwargs.overlong_buffer_cfg.len": _NOT_NEGATIVE,
    "reward.reward_kwargs.overlong_buffer_cfg.penalty_factor": _POSITIVE,
    "trainer.total_epochs": _COUNT,
    "trainer.total_training_steps": _COUNT,
    "trainer.log_val_generations": _NOT_NEGATIVE,
    "trainer.nnodes": _COUNT,
    "trainer.n_gpus_per_node": _COUNT,
    "trainer.save_freq": _FREQUENCY,
    "trainer.test_freq": _FREQUENCY,
    "trainer.critic_warmup": _NOT_NEGATIVE,
    "trainer.max_actor_ckpt_to_keep": _COUNT,
    "trainer.seed": _NOT_NEGATIVE,
    **{
        f"{section}.optim.{name}": allowed
        for section in (ACTOR, "critic")
        for name, allowed in {
            "lr": _NOT_NEGATIVE,
            "lr_warmup_steps_ratio": _SHARE,
            "min_lr_ratio": _SHARE,
            "num_cycles": _POSITIVE,
            "weight_decay": _NOT_NEGATIVE,
            "betas": Range("two numbers from 0 to below 1", lambda pair: all(0 <= value < 1 for value in pair)),
            "clip_grad": _POSITIVE,
        }.items()
    },
}
#: The names that keys of type text, or list of text, take.
NAMES: Mapping[str, Names] = {
    **{
        f"{section}.{name}": Names("dtype", ENGINE_DTYPES)
        for section in (f"{ACTOR}.fsdp_config", f"{REF}.fsdp_config", "critic.fsdp")
        for name in ("model_dtype", "dtype")
    },
    f"{ROLLOUT}.name": Names("rollout engine", ("hf",)),
    f"{ROLLOUT}.dtype": Names("dtype", ROLLOUT_DTYPES),
    "trainer.logger": Names("logger", ("console", "jsonl", "file", "tensorboard", "wandb", "mlflow", "swanlab")),
}


def out_of_range(key: str, value: Any) -> str | None:
    """Say what is wrong with a value of the key's type by itself; None if nothing is."""
    if value is None:
        return None
    if key in RANGES and not RANGES[key].holds(value):
        return f"{key}={show(value)} must be {RANGES[key].words}."
    what, known = NAMES.get(key, ("", ()))
    for name in value if isinstance(value, list) else [value]:
        if known and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = f" Did you mean {close[0]}?" if close else ""
            return f"{key}: there is no {what} {name!r}; the names are {', '.join(known)}.{meant}"
    return None
