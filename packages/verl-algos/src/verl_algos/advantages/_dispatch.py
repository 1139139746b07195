"""Every estimator behind one call."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from torch import Tensor

from verl_algos.advantages._custom import CustomEstimator
from verl_algos.advantages._group_relative import (
    gpg,
    grpo,
    grpo_passk,
    opo,
    reinforce_plus_plus_baseline,
    rloo,
)
from verl_algos.advantages._groups import GroupIds
from verl_algos.advantages._multi_reward import gdpo
from verl_algos.advantages._reward_to_go import gae, reinforce_plus_plus, remax
from verl_algos.advantages._token_baseline import optimal_token_baseline, tir_optimal_token_baseline
from verl_algos.estimators import ESTIMATORS, INPUTS, EstimatorSpec, canonical
from verl_algos.import_path import hint, is_import_path, load_function, require_function

_FUNCTIONS: Mapping[str, Callable[..., tuple[Tensor, Tensor]]] = MappingProxyType(
    {
        function.__name__: function
        for function in (
            gae,
            grpo,
            grpo_passk,
            rloo,
            reinforce_plus_plus,
            reinforce_plus_plus_baseline,
            remax,
            opo,
            gpg,
            gdpo,
            optimal_token_baseline,
            tir_optimal_token_baseline,
        )
    }
)

#: What each estimator cannot do without, by name: the inputs that a trainer must be able to supply.
REQUIRED_INPUTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {name: spec.required for name, spec in ESTIMATORS.items()}
)


def describe(estimator: str | Callable[..., Any]) -> EstimatorSpec:
    """The inputs and options of an estimator: of a published one from `verl_algos.estimators`, of a user's own from
    its signature.

    Raises:
        ValueError: there is no such estimator.
    """
    custom = _custom(estimator)
    return custom.spec if custom is not None else ESTIMATORS[canonical(str(estimator))]


def compute(
    name: str | Callable[..., Any],
    *,
    token_rewards: Tensor,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    group: GroupIds | None = None,
    values: Tensor | None = None,
    baseline: Tensor | None = None,
    reward_components: Mapping[str, Tensor] | None = None,
    old_logprobs: Tensor | None = None,
    sum_pi_squared: Tensor | None = None,
    rollout_weights: Tensor | None = None,
    gamma: float = 1.0,
    lam: float = 1.0,
    whiten: bool = True,
    norm_by_std: bool = True,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Compute ``(advantages, returns)`` with one estimator, without gradient, in the shape of token_rewards.

    Both are exactly 0 at tokens that the mask excludes, whatever the inputs hold there. An estimator receives the
    inputs that it declares (`describe`); others may be given and are not looked at. So it is with gamma, lam, whiten
    and norm_by_std, which a trainer has from its configuration.

    Args:
        name: a published name ("gae", "grpo", ..., see `verl_algos.estimators.ESTIMATORS`) or an alias of it; a
            function of your own as ``package.module:function`` or ``file.py:function``, or itself. Your function is
            called with the inputs and options that it names, and returns ``(advantages, returns)``.
        token_rewards: (B, T) or (T,).
        mask: same shape, the sampled tokens; all of them if None.
        cu_seqlens: (N+1,) offsets of packed sequences.
        group: integer (N,), or a list of N whole numbers or strings: the prompt that each sequence belongs to.
        values: shape of token_rewards, the critic's.
        baseline: (N,), the reward of the greedy response to each sequence's prompt.
        reward_components: rewards (N,) by name.
        old_logprobs: shape of token_rewards, under the policy that sampled.
        sum_pi_squared: shape of token_rewards, the sum of that policy's squared probabilities (`sum_pi_squared`).
        rollout_weights: shape of token_rewards, truncated importance weights of the rollout.
        gamma: discount per sampled token, within [0, 1].
        lam: weight of longer returns, within [0, 1].
        whiten: bring the advantages to mean 0 and variance 1 over the valid tokens of the call.
        norm_by_std: divide by the standard deviation of the group.
        options: further ones that the estimator declares: `compat`, `reward_weights`, those of your function.

    Raises:
        ValueError: the name is not known, an input that the estimator needs is None, an option is not one of its
            own, or the inputs do not fit together.
    """
    custom = _custom(name)
    published = "" if custom is not None else canonical(str(name))
    spec = custom.spec if custom is not None else ESTIMATORS[published]
    called = custom.name if custom is not None else repr(published)
    inputs: dict[str, Any] = {
        "token_rewards": token_rewards,
        "group": group,
        "values": values,
        "baseline": baseline,
        "reward_components": reward_components,
        "old_logprobs": old_logprobs,
        "sum_pi_squared": sum_pi_squared,
        "rollout_weights": rollout_weights,
    }
    given = {column: value for column, value in inputs.items() if value is not None}
    shared: dict[str, Any] = {"gamma": gamma, "lam": lam, "whiten": whiten, "norm_by_std": norm_by_std}
    takes_any = custom is not None and custom.takes_any
    _check_unknown(called, [] if takes_any else [option for option in options if option not in spec.options], spec)
    _check_missing(called, [column for column in spec.required if column not in given and column not in options])
    _check_flags(called, shared | {name: options[name] for name in options if name == "compat"})
    if custom is not None:
        return custom(mask=mask, cu_seqlens=cu_seqlens, **given, **shared, **options)
    taken = {column: given[column] for column in (*spec.required, *spec.optional) if column in given}
    chosen = {option: value for option, value in shared.items() if option in spec.options}
    return _FUNCTIONS[published](mask=mask, cu_seqlens=cu_seqlens, **taken, **chosen, **options)


def _custom(estimator: str | Callable[..., Any]) -> CustomEstimator | None:
    if not isinstance(estimator, str):
        require_function(estimator, "advantage estimator", ESTIMATORS)
        return CustomEstimator.of(getattr(estimator, "__qualname__", type(estimator).__name__), estimator)
    if is_import_path(estimator):
        return CustomEstimator.of(estimator, load_function(estimator, "advantage estimator"))
    return None


def _check_flags(called: str, settings: dict[str, Any]) -> None:
    for name in ("whiten", "norm_by_std", "compat"):
        if not isinstance(value := settings.get(name, False), bool | np.bool_):
            raise ValueError(
                f"{name}={value!r} of the advantage estimator {called} is a {type(value).__name__}: give it True or "
                "False. Text is true whatever it says."
            )


def _check_missing(called: str, missing: list[str]) -> None:
    if missing:
        shapes = "; ".join(f"{column} is {INPUTS[column]}" for column in missing if column in INPUTS)
        raise ValueError(
            f"The advantage estimator {called} needs {' and '.join(missing)}, which was not given: supply it, or "
            f"choose an estimator that does without.{f' ({shapes}.)' if shapes else ''}"
        )


def _check_unknown(called: str, unknown: list[str], spec: EstimatorSpec) -> None:
    if unknown:
        raise ValueError(
            f"The advantage estimator {called} has no option {' and '.join(unknown)}. It takes "
            f"{', '.join(spec.options) or 'none'}.{hint(unknown[0], [*spec.options, *INPUTS])}"
        )
