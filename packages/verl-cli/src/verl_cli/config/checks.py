"""What must hold between the values of a run, each with its remedy."""

import math
from collections.abc import Iterator

from verl_engine.config import DTYPES as ENGINE_DTYPES
from verl_engine.config import EngineConfig

from verl_cli.config.algorithm_checks import correction_problems, estimator_problems, policy_loss_problems
from verl_cli.config.keys import live_keys
from verl_cli.config.problem import Problem
from verl_cli.config.ranges import out_of_range
from verl_cli.config.reward_checks import reward_problems
from verl_cli.config.rule import ACTOR, REF, ROLLOUT, Values
from verl_cli.config.schema import RunConfig

MODEL = "actor_rollout_ref.model"


#: Keys that every run must be given.
REQUIRED = {
    f"{MODEL}.path": "the Hugging Face folder of the model to train",
    "data.train_files": "the Parquet or JSONL file(s) with the training prompts",
    "data.val_files": "the Parquet or JSONL file(s) that validation scores",
}


def problems(values: Values, user_keys: frozenset[str], faultless: frozenset[str]) -> Iterator[Problem]:
    """Everything wrong with the resolved values.

    Keys in `faultless` have no effect or follow others, and are not judged.
    """
    for key, what in REQUIRED.items():
        if not values[key]:
            yield Problem((key,), f"{key} is not set. Set it to {what}.")
    for key in live_keys():
        if key not in faultless and (wrong := out_of_range(key, values[key])):
            yield Problem((key,), wrong)
    yield from _batches(values, faultless)
    yield from _algorithm(values, user_keys, faultless)
    yield from reward_problems(values)
    yield from _devices(values)
    for key in ("trainer.default_local_dir", "trainer.default_hdfs_dir", "trainer.resume_from_path"):
        if values[key] is not None and not values[key].strip():
            yield Problem((key,), f"{key} is empty, perhaps an unset shell variable. Name a place, or leave it out.")
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
        named = fsdp.model_dtype in ENGINE_DTYPES and fsdp.dtype in (None, *ENGINE_DTYPES)
        if named and faultless.isdisjoint(keys):
            try:
                EngineConfig(model, optim, fsdp)
            except ValueError as error:
                yield Problem(keys, f"{section}.{name}: {error}")


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
    yield from estimator_problems(values)
    yield from policy_loss_problems(values, faultless)
    yield from correction_problems(values)
    n, sampling = f"{ROLLOUT}.n", "algorithm.filter_groups.enable"
    if values[sampling] and values[n] == 1:
        yield Problem(
            (n, sampling),
            f"{n}=1 with {sampling}=true: prompts are kept whose responses differ, and a single response differs from "
            f"nothing. Set {n} to 2 or more (8 to 16 is usual), or {sampling}=false.",
        )
    in_reward, in_loss = "algorithm.use_kl_in_reward", f"{ACTOR}.use_kl_loss"
    if values[in_reward] and values[in_loss] and not {in_reward, in_loss} <= user_keys:
        yield Problem(
            (in_reward, in_loss),
            f"The KL term would be both in the reward ({in_reward}=true) and in the loss ({in_loss}=true), which "
            "counts it twice. Set one of them to false; if you want both, set both to true yourself.",
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
