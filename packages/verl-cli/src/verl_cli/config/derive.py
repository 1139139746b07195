"""Values that follow from others: what a null becomes."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from verl_algos.estimators import ESTIMATORS
from verl_algos.loss_options import AGGREGATION_MODES, POLICY_LOSS_OPTIONS

from verl_cli.config.keys import live_keys
from verl_cli.config.schema import effective_policy_loss

_NORM = "seq-mean-token-sum-norm"


def policy_loss(values: Mapping[str, Any]) -> str:
    """The run's policy loss by name or import path."""
    section = "algorithm.rollout_correction"
    return effective_policy_loss(
        values["actor_rollout_ref.actor.policy_loss.loss_mode"],
        values[f"{section}.bypass_mode"],
        values[f"{section}.loss_type"],
    )


def _clip_ratio_c(values: Mapping[str, Any]) -> float | None:
    option = POLICY_LOSS_OPTIONS.get(policy_loss(values), {}).get("clip_ratio_c")
    return None if option is None else option.default


#: Rules that no reference to another key can tell.
_RULES: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "actor_rollout_ref.actor.clip_ratio_c": _clip_ratio_c,
    "actor_rollout_ref.actor.loss_agg_mode": lambda values: AGGREGATION_MODES.get(policy_loss(values), ("token-mean",))[
        0
    ],
    "critic.enable": lambda values: (
        (spec := ESTIMATORS.get(values["algorithm.adv_estimator"])) is not None and "values" in spec.required
    ),
    "algorithm.use_kl_in_reward": lambda values: (
        values["algorithm.adv_estimator"] == "gae" and not values["actor_rollout_ref.actor.use_kl_loss"]
    ),
    "reward.reward_model.enable": lambda values: any(
        values[f"reward.reward_model.{name}"] is not None for name in ("path", "model_path")
    ),
    "actor_rollout_ref.actor.loss_scale_factor": lambda values: (
        values["data.max_response_length"] if values["actor_rollout_ref.actor.loss_agg_mode"] == _NORM else None
    ),
    "critic.loss_scale_factor": lambda values: (
        values["actor_rollout_ref.actor.loss_scale_factor"] or values["data.max_response_length"]
        if values["critic.loss_agg_mode"] == _NORM
        else None
    ),
}


def fill(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace every null that stands for another key's value; `values` holds all live keys."""
    filled = dict(values)
    for name, key in live_keys().items():
        if filled[name] is None and key.derived is not None:
            filled[name] = _RULES[name](filled) if name in _RULES else _evaluate(key.derived, filled)
    return filled


def _evaluate(expression: str, values: Mapping[str, Any]) -> Any:
    if whole := re.fullmatch(r"\$\{([\w.]+)\}", expression):
        return values[whole[1]]
    return re.sub(r"\$\{([\w.]+)\}", lambda match: str(values[match[1]]), expression)
