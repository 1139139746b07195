"""Values that follow from others: what a null becomes."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from verl_cli.config.keys import live_keys

#: Rules that no reference to another key can tell.
_RULES: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "algorithm.use_kl_in_reward": lambda values: (
        values["algorithm.adv_estimator"] == "gae" and not values["actor_rollout_ref.actor.use_kl_loss"]
    ),
    "critic.loss_scale_factor": lambda values: (
        values["actor_rollout_ref.actor.loss_scale_factor"]
        if values["critic.loss_agg_mode"] == "seq-mean-token-sum-norm"
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
