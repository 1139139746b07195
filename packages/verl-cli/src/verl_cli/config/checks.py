"""What must hold between the values of a run, each with its remedy."""

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from verl_algos.kl import PENALTIES
from verl_engine.config import EngineConfig

from verl_cli.config.applicability import ACTOR, REF, ROLLOUT, Values
from verl_cli.config.schema import RunConfig
from verl_cli.config.values import show

MODEL = "actor_rollout_ref.model"


class Problem(NamedTuple):
    """Something that cannot work."""

    reads: tuple[str, ...]
    """The keys that it is about."""
    text: str


class _Range(NamedTuple):
    words: str
    holds: Callable[[Any], bool]


_COUNT = _Range("at least 1", lambda value: value >= 1)
_NOT_NEGATIVE = _Range("at least 0", lambda value: value >= 0)
_POSITIVE = _Range("above 0", lambda value: value > 0)
_SHARE = _Range("between 0 and 1", lambda value: 0 <= value <= 1)
_PROBABILITY = _Range("above 0 and at most 1", lambda value: 0 < value <= 1)
_FREQUENCY = _Range("a number of steps, or -1 for never in between", lambda value: value == -1 or value >= 1)
_TOP_K = _Range("at least 1, or -1 for all tokens", lambda value: value == -1 or value >= 1)

_RANGES: Mapping[str, _Range] = {
    f"{ACTOR}.ppo_mini_batch_size": _COUNT,
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": _COUNT,
    f"{ACTOR}.ppo_max_token_len_per_gpu": _COUNT,
    f"{ACTOR}.clip_ratio": _PROBABILITY,
    f"{ACTOR}.clip_ratio_low": _PROBABILITY,
    f"{ACTOR}.clip_ratio_high": _POSITIVE,
    f"{ACTOR}.clip_ratio_c": _Range("above 1", lambda value: value > 1),
    f"{ACTOR}.loss_scale_factor": _POSITIVE,
    f"{ACTOR}.kl_loss_coef": _NOT_NEGATIVE,
    f"{ACTOR}.ppo_epochs": _COUNT,
    f"{REF}.log_prob_micro_batch_size_per_gpu": _COUNT,
    f"{REF}.log_prob_max_token_len_per_gpu": _COUNT,
    f"{ROLLOUT}.n": _COUNT,
    f"{ROLLOUT}.temperature": _Range("above 0 (training samples its responses)", lambda value: value > 0),
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
            "betas": _Range("two numbers from 0 to below 1", lambda pair: all(0 <= value < 1 for value in pair)),
            "clip_grad": _POSITIVE,
        }.items()
    },
}
_REQUIRED = {
    f"{MODEL}.path": "the Hugging Face folder of the model to train",
    "data.train_files": "the Parquet or JSONL file(s) with the training prompts",
    "data.val_files": "the Parquet or JSONL file(s) that validation scores",
}
_LOGGERS = ("console", "jsonl", "file")
_ENGINES = ("hf",)
_NORM = "seq-mean-token-sum-norm"


def problems(values: Values, user_keys: frozenset[str], faultless: frozenset[str]) -> Iterator[Problem]:
    """Everything wrong with the resolved values.

    Keys in `faultless` have no effect or follow others, and are not judged.
    """
    for key, what in _REQUIRED.items():
        if not values[key]:
            yield Problem((key,), f"{key} is not set. Set it to {what}.")
    for key, allowed in _RANGES.items():
        if key not in faultless and values[key] is not None and not allowed.holds(values[key]):
            yield Problem((key,), f"{key}={show(values[key])} must be {allowed.words}.")
    yield from _names(values, faultless)
    yield from _batches(values, faultless)
    yield from _algorithm(values, user_keys, faultless)
    yield from _devices(values)
    if values["trainer.resume_mode"] == "path" and not values["trainer.resume_from_path"]:
        yield Problem(
            ("trainer.resume_mode", "trainer.resume_from_path"),
            "trainer.resume_mode=path needs a checkpoint to go on from. Set trainer.resume_from_path to a folder "
            "global_step_N.",
        )


def engine_problems(config: RunConfig, faultless: frozenset[str]) -> Iterator[Problem]:
    """What the training engine itself refuses."""
    arr = config.actor_rollout_ref
    engines = {ACTOR: (arr.model, arr.actor.optim, arr.actor.fsdp_config, "fsdp_config")}
    engines[REF] = (arr.model, None, arr.ref.fsdp_config, "fsdp_config")  # type: ignore[assignment]
    engines["critic"] = (config.critic.model, config.critic.optim, config.critic.fsdp, "fsdp")
    for section, (model, optim, fsdp, name) in engines.items():
        keys = (f"{section}.{name}.model_dtype", f"{section}.{name}.dtype")
        if faultless.isdisjoint(keys):
            try:
                EngineConfig(model, optim, fsdp).compute_dtype  # noqa: B018 (it validates)
            except ValueError as error:
                yield Problem(keys, f"{section}.{name}: {error}")


def _names(values: Values, faultless: frozenset[str]) -> Iterator[Problem]:
    for name in values["trainer.logger"]:
        if name not in _LOGGERS:
            yield Problem(("trainer.logger",), f"trainer.logger: there is no logger {name!r}{_like(name, _LOGGERS)}")
    engine = values[f"{ROLLOUT}.name"]
    if engine is not None and engine not in _ENGINES:
        yield Problem(
            (f"{ROLLOUT}.name",), f"{ROLLOUT}.name: there is no rollout engine {engine!r}{_like(engine, _ENGINES)}"
        )
    for key in ("algorithm.kl_penalty", f"{ACTOR}.kl_loss_type"):
        if key not in faultless and values[key] not in PENALTIES:
            yield Problem((key,), f"{key}: there is no KL estimator {values[key]!r}{_like(values[key], PENALTIES)}")


def _like(name: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    meant = f" Did you mean {close[0]}?" if close else ""
    return f"; the names are {', '.join(known)}.{meant}"


def _batches(values: Values, faultless: frozenset[str]) -> Iterator[Problem]:
    prompts = values["data.train_batch_size"]
    for section in (ACTOR, "critic"):
        key = f"{section}.ppo_mini_batch_size"
        mini = values[key]
        if key in faultless or mini < 1 or prompts < 1 or prompts % mini == 0:
            continue
        divisor = next(size for size in range(min(mini, prompts), 0, -1) if prompts % size == 0)
        yield Problem(
            ("data.train_batch_size", key),
            f"data.train_batch_size={prompts} prompts cannot be cut into whole mini-batches of {key}={mini} prompts. "
            f"Set {key}={divisor}, or make data.train_batch_size a multiple of {mini}.",
        )
    limits = ("data.max_prompt_length", "data.max_response_length")
    longest = sum(values[limit] for limit in limits)
    for section, tokens in (
        (ACTOR, "ppo_max_token_len_per_gpu"),
        (REF, "log_prob_max_token_len_per_gpu"),
        ("critic", "ppo_max_token_len_per_gpu"),
    ):
        key = f"{section}.{tokens}"
        if key not in faultless and 1 <= values[key] < longest:
            yield Problem(
                (key, *limits),
                f"{key}={values[key]} tokens cannot hold the longest sequence, {' + '.join(limits)} = {longest} "
                f"tokens. Set it to at least {longest}.",
            )


def _algorithm(values: Values, user_keys: frozenset[str], faultless: frozenset[str]) -> Iterator[Problem]:
    n, estimator = f"{ROLLOUT}.n", "algorithm.adv_estimator"
    if values[estimator] == "grpo" and values[n] == 1:
        yield Problem(
            (n, estimator),
            f"{n}=1 with {estimator}=grpo: an advantage compares the responses of one prompt, and a single response "
            f"has nothing to be compared with. Set {n} to 2 or more (5 is usual), or {estimator}=gae.",
        )
    in_reward, in_loss = "algorithm.use_kl_in_reward", f"{ACTOR}.use_kl_loss"
    if values[in_reward] and values[in_loss] and not {in_reward, in_loss} <= user_keys:
        yield Problem(
            (in_reward, in_loss),
            f"The KL term would be both in the reward ({in_reward}=true) and in the loss ({in_loss}=true), which "
            "counts it twice. Set one of them to false; if you want both, set both to true yourself.",
        )
    for section in (ACTOR, "critic"):
        mode, scale = f"{section}.loss_agg_mode", f"{section}.loss_scale_factor"
        if mode not in faultless and values[mode] == _NORM and values[scale] is None:
            yield Problem(
                (mode, scale, f"{ACTOR}.loss_agg_mode"),
                f"{mode}={_NORM} divides each sequence's sum by a constant number of tokens. Set {scale}, "
                f"for example to data.max_response_length={values['data.max_response_length']}.",
            )


def _devices(values: Values) -> Iterator[Problem]:
    keys = ("trainer.nnodes", "trainer.n_gpus_per_node")
    ranks = math.prod(values[key] for key in keys)
    if ranks > 1:
        yield Problem(
            keys,
            f"trainer.nnodes={values[keys[0]]} x trainer.n_gpus_per_node={values[keys[1]]} asks for {ranks} ranks, and "
            "this version runs one. Set both to 1.",
        )
