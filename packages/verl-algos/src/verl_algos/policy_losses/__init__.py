"""Policy losses per token, before aggregation.

Each returns the loss of every token in the shape of the inputs, 0 where the mask excludes it, and metrics as
``{name: (sum, count)}`` so that those of micro-batches and ranks add up. Sum the loss with `verl_algos.aggregation`,
in a mode that `verl_algos.loss_options.AGGREGATION_MODES` allows for the loss.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypedDict, Unpack

from torch import Tensor

from verl_algos.import_path import is_import_path, load_function, require_function
from verl_algos.loss_options import MINI_BATCH_INPUTS, POLICY_LOSS_OPTIONS, canonical_loss, checked_options
from verl_algos.policy_losses import custom
from verl_algos.policy_losses.clipped import cispo, sapo, vanilla
from verl_algos.policy_losses.columns import LossAndMetrics, PolicyMetrics, TokenColumns
from verl_algos.policy_losses.covariance import clip_cov, kl_cov, select_by_covariance
from verl_algos.policy_losses.custom import PolicyLossFunction
from verl_algos.policy_losses.divergence import dppo_kl, dppo_tv
from verl_algos.policy_losses.sequence_level import geo_mean, gspo
from verl_algos.policy_losses.unclipped import dro, gpg

__all__ = [
    "LossAndMetrics",
    "PolicyLossFunction",
    "PolicyLossOptions",
    "PolicyMetrics",
    "TokenColumns",
    "cispo",
    "clip_cov",
    "compute",
    "dppo_kl",
    "dppo_tv",
    "dro",
    "geo_mean",
    "gpg",
    "gspo",
    "kl_cov",
    "sapo",
    "select_by_covariance",
    "vanilla",
]

_LOSSES: Mapping[str, Callable[..., LossAndMetrics]] = MappingProxyType(
    {
        "vanilla": vanilla,
        "gspo": gspo,
        "sapo": sapo,
        "cispo": cispo,
        "gpg": gpg,
        "clip_cov": clip_cov,
        "kl_cov": kl_cov,
        "geo_mean": geo_mean,
        "dro": dro,
        "dppo_tv": dppo_tv,
        "dppo_kl": dppo_kl,
    }
)


class PolicyLossOptions(TypedDict, total=False):
    """Every option of some policy loss; `verl_algos.loss_options.POLICY_LOSS_OPTIONS` says which takes which."""

    clip_ratio_low: float
    clip_ratio_high: float
    clip_ratio_c: float
    tau_pos: float
    tau_neg: float
    clip_cov_ratio: float
    clip_cov_lb: float
    clip_cov_ub: float
    kl_cov_ratio: float
    ppo_kl_coef: float
    dro_beta: float


def compute(
    name: str | PolicyLossFunction,
    *,
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    rollout_weights: Tensor | None = None,
    covariance_selected: Tensor | None = None,
    seed: int | None = None,
    sequence_keys: Tensor | None = None,
    **options: Unpack[PolicyLossOptions],
) -> LossAndMetrics:
    """Compute ``(loss per token, metrics)``; each loss is described at the function of its name.

    Value and gradient of the published losses are finite for every finite input: log-ratios count within +-20,
    advantages and rollout weights within +-1e14 (float64: 1e140); what overflows its type is the largest number of it.

    Args:
        name: a key of `verl_algos.loss_options.POLICY_LOSS_OPTIONS`, in whatever spelling ("GSPO", "Clip-Cov", "GMPO"),
            or a loss of your own: a function, or its import path ``package.module:function`` or ``file.py:function``
            (`PolicyLossFunction`; it gets all `options`).
        logprobs: (B, T) or (T,), of the policy that is trained.
        old_logprobs: same shape, of the policy before this step's updates.
        advantages: same shape.
        mask: same shape, the tokens that are trained (the loss mask); all of them if None.
        cu_seqlens: (N+1,) offsets of packed sequences.
        rollout_weights: same shape, multiplies each token's loss (`verl_algos.rollout_correction`), or None.
        covariance_selected: bool, same shape; for "clip_cov" and "kl_cov", from `select_by_covariance` over the
            whole mini-batch. If None they choose among the tokens of this call, and depend on how it was split.
        seed: of the choice within this call; see `select_by_covariance`.
        sequence_keys: (N,), as `seed`.
        **options: options of the loss; defaults and ranges are in the same table.

    Raises:
        ValueError: the name is not known, an option or an input is not one of the loss or out of range, or the inputs
            do not fit together.
    """
    if isinstance(name, str):
        name = canonical_loss(name)
    else:
        require_function(name, "policy loss", _LOSSES)
    columns = TokenColumns.of(
        logprobs=logprobs,
        old_logprobs=old_logprobs,
        advantages=advantages,
        mask=mask,
        cu_seqlens=cu_seqlens,
        rollout_weights=rollout_weights,
        covariance_selected=covariance_selected,
    )
    choice = {"covariance_selected": covariance_selected, "seed": seed, "sequence_keys": sequence_keys}
    by_covariance = isinstance(name, str) and "covariance_selected" in MINI_BATCH_INPUTS.get(name, ())
    if not by_covariance and (given := [key for key, value in choice.items() if value is not None]):
        raise ValueError(f"{' and '.join(given)} belongs to the losses clip_cov and kl_cov: {name!r} does not use it.")
    if not isinstance(name, str) or is_import_path(name):
        function = load_function(name, "policy loss") if isinstance(name, str) else name
        return custom.call(function, columns, options)
    settings = checked_options("policy loss", name, POLICY_LOSS_OPTIONS, options)
    if by_covariance:
        return _LOSSES[name](columns, seed=seed, sequence_keys=sequence_keys, **settings)
    return _LOSSES[name](columns, **settings)
