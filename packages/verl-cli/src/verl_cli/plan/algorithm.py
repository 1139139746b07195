"""What a run maximises, in a few words; and whether functions of the user's own can be called."""

from collections.abc import Iterator, Mapping
from typing import Any

from verl_algos.estimators import ESTIMATORS, canonical
from verl_algos.import_path import is_import_path
from verl_algos.loss_options import POLICY_LOSS_OPTIONS

from verl_cli.config import RunConfig
from verl_cli.config.algorithm_rules import ESTIMATOR_OPTION_KEYS, LOSS_OPTION_KEYS, estimator_takes
from verl_cli.config.keys import flatten
from verl_cli.config.values import show
from verl_cli.errors import UserError


def algorithm_words(config: RunConfig) -> str:
    """Advantages and policy loss with what they are told, KL terms and rollout correction."""
    parts = [
        _with_options(f"advantages by {config.algorithm.adv_estimator}", _of_estimator(config)),
        _with_options(f"policy loss {config.policy_loss}", _of_loss(config)),
        *_kl(config),
        *_correction(config),
    ]
    return ", ".join(parts)


def own_function_problems(config: RunConfig) -> list[str]:
    """What is wrong with functions of the user's own. Only they need torch, which takes seconds to import."""
    if not (is_import_path(config.algorithm.adv_estimator) or is_import_path(config.policy_loss)):
        return []
    from verl_cli.own_functions import check_own_functions

    try:
        check_own_functions(config)
    except UserError as error:
        return [str(error)]
    return []


def greedy_responses(config: RunConfig) -> int:
    """Responses that a step generates beside the sampled ones, to compare with: the likeliest to each prompt, or 0."""
    name = config.algorithm.adv_estimator
    try:
        if is_import_path(name):
            from verl_cli.estimation import Estimation

            compared = Estimation.of(config).needs("baseline")
        else:
            compared = "baseline" in ESTIMATORS[canonical(name)].required
    except (UserError, ValueError):  # which is among the problems
        return 0
    return config.data.train_batch_size if compared else 0


def _with_options(what: str, options: Mapping[str, Any]) -> str:
    told = ", ".join(f"{name} {show(value)}" for name, value in options.items())
    return f"{what} ({told})" if told else what


def _of_estimator(config: RunConfig) -> dict[str, Any]:
    """What the estimator is told, by the last part of its key."""
    algorithm, values = config.algorithm, flatten(config)
    name, own = algorithm.adv_estimator, is_import_path(algorithm.adv_estimator)
    told = {
        key.rpartition(".")[2]: values[key]
        for option, key in ESTIMATOR_OPTION_KEYS.items()
        if not own and estimator_takes(name, option)
    }
    lists = ("gdpo_reward_keys", "gdpo_reward_weights")
    told |= {name: value for name in lists if (value := getattr(algorithm, name))}
    return told | algorithm.adv_estimator_kwargs


def _of_loss(config: RunConfig) -> dict[str, Any]:
    """What the policy loss is told, by the last part of its key; one clip ratio where both are equal."""
    actor, values = config.actor_rollout_ref.actor, flatten(config)
    told: dict[str, Any] = {"aggregated by": actor.loss_agg_mode}
    for option in POLICY_LOSS_OPTIONS.get(config.policy_loss, ()):
        told[option] = values[LOSS_OPTION_KEYS[option]]
    if "clip_ratio_low" in told and told["clip_ratio_low"] == told["clip_ratio_high"]:
        told = {{"clip_ratio_low": "clip_ratio"}.get(name, name): value for name, value in told.items()}
        del told["clip_ratio_high"]
    return told | (actor.policy_loss.loss_kwargs if is_import_path(config.policy_loss) else {})


def _kl(config: RunConfig) -> Iterator[str]:
    actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
    if algorithm.use_kl_in_reward and algorithm.kl_ctrl.kl_coef:
        kind = "adaptive" if algorithm.kl_ctrl.type == "adaptive" else "fixed"
        yield f"KL ({algorithm.kl_penalty}) in the reward with weight {algorithm.kl_ctrl.kl_coef:g} ({kind})"
    if actor.use_kl_loss:
        yield f"KL ({actor.kl_loss_type}) in the loss with weight {actor.kl_loss_coef:g}"


def _correction(config: RunConfig) -> Iterator[str]:
    correction = config.algorithm.rollout_correction
    if correction.bypass_mode:
        yield "the rollout's log-probs for the old ones"
    if correction.rollout_is is not None:
        yield f"rollout weights by {correction.rollout_is} (threshold {correction.rollout_is_threshold})"
    if correction.rollout_rs is not None:
        yield f"rejection by {correction.rollout_rs} (threshold {correction.rollout_rs_threshold})"
