"""What a run maximises, in a few words; and whether functions of the user's own can be called."""

from collections.abc import Iterator

from verl_algos.import_path import is_import_path

from verl_cli.config import RunConfig
from verl_cli.errors import UserError


def algorithm_words(config: RunConfig) -> str:
    """Advantages, policy loss with its aggregation, KL terms and rollout correction."""
    actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
    parts = [
        f"advantages by {algorithm.adv_estimator}",
        f"policy loss {config.policy_loss} ({actor.loss_agg_mode})",
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
