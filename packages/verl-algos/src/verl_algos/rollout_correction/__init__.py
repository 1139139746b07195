"""Correction of the mismatch between the policy that is trained and the rollout engine that sampled.

The two compute the same distribution with other kernels and precisions, or with older weights. Importance weights make
up for it on average; rejection takes out the tokens or sequences where that is hopeless. Call `correct` once a step,
with all rows, before denominators are counted: the mask that it returns is the loss mask from then on, in the
numerator and in the denominators.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from verl_algos._layout import Layout
from verl_algos._numbers import checked
from verl_algos.rollout_correction.mismatch import divergence_metrics, probability_metrics
from verl_algos.rollout_correction.ratios import Mismatch, mean
from verl_algos.rollout_correction.rejection import masked_fractions, rejected
from verl_algos.rollout_correction.weights import bounded_weights, raw_weights, weight_metrics
from verl_algos.rollout_correction_options import LEVELS, Level, parse_rejections, parse_weight_bounds

__all__ = ["Correction", "correct", "probability_metrics", "weight_total"]

_PREFIX = "rollout_corr/"
_SMALLEST_MEAN = 1e-8  # the published value: below it weights are left as they are


@dataclass(frozen=True)
class Correction:
    """What a step is trained with."""

    mask: Tensor
    """Bool, in the shape of the token columns: the given mask without the rejected tokens."""
    weights: Tensor | None
    """At least float32, same shape: the ``rollout_weights`` of a policy loss, 0 outside `mask`; None without
    ``rollout_is``. A token that IcePop zeroed stays in `mask`, as published, and counts in denominators."""
    metrics: dict[str, float]
    """``rollout_corr/...`` of the rows of the call."""


def correct(
    *,
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    rollout_is: Level | None = None,
    rollout_is_threshold: str | float = 2.0,
    rollout_is_batch_normalize: bool = False,
    rollout_rs: str | None = None,
    rollout_rs_threshold: str | float | None = None,
    weight_mean: float | None = None,
) -> Correction:
    """Weights, the edited loss mask and metrics, with ``d = old_logprobs - rollout_logprobs`` of each token.

    Weights (`rollout_is`), with every exponent within +-20:

    ========= ============== ===================================================================================
    token     exp(d)         low variance, biased for sequence-level returns (TIS, https://fengyao.notion.site/off-policy-rl)
    sequence  exp(sum d)     unbiased; falls or grows with length: 20 tokens at d = -0.05 weigh 0.37
    geometric exp(mean d)    does not depend on length; biased: the same 20 tokens weigh 0.95
    ========= ============== ===================================================================================

    `rollout_is_threshold`: a number truncates weights above it; "lo_hi" sets weights outside [lo, hi] to 0 (IcePop,
    arXiv:2510.18855). With `rollout_is_batch_normalize` weights are divided by their mean over the tokens of the edited
    mask (over its sequences for the sequence levels).

    Rejection (`rollout_rs`, a comma list of which every entry must hold), from ``k1 = -d``, ``k2 = d^2 / 2`` and
    ``k3 = exp(d) - 1 - d``: ``token_k1|k2|k3`` rejects tokens, ``seq_sum_*``, ``seq_mean_*`` and ``seq_max_k2|k3``
    whole sequences. `rollout_rs_threshold` is a bound for each, or one for all: an upper bound for k2 and k3; for k1
    "lo_hi", or x for [1/x, x], between which ``exp(k1)`` must lie: **rollout over policy**, the inverse of the weight.

    Args:
        old_logprobs: (B, T) or (T,), of the policy before this step's updates.
        rollout_logprobs: same shape, of the engine that sampled.
        mask: same shape, the loss mask so far; all tokens if None.
        cu_seqlens: (N+1,) offsets of packed sequences.
        rollout_is: "token", "sequence", "geometric" or None for no weights.
        rollout_is_threshold: see above.
        rollout_is_batch_normalize: see above.
        rollout_rs: see above; None rejects nothing.
        rollout_rs_threshold: see above.
        weight_mean: the mean to normalise by where this call sees a part of the step only: the quotient of the sums of
            `weight_total` over all parts.

    Returns:
        See `Correction`. Metrics are those of the rows of this call and do not add up over parts (std, extremes,
        effective sample size): compute them once a step. Mismatch, weights and rejection are measured over the given
        mask, before rejection; ``rollout_is_applied_mean`` is the mean weight as the loss receives it.

    Raises:
        ValueError: shapes disagree, an option is not known, or thresholds do not fit.
        NonFiniteError: a log-prob of a valid token is not finite.
    """
    if rollout_is is not None and rollout_is not in LEVELS:
        raise ValueError(f"Unknown rollout_is={rollout_is!r}. Known: {', '.join(LEVELS)}, or None for no weights.")
    if rollout_is_batch_normalize and rollout_is is None:
        raise ValueError("rollout_is_batch_normalize normalises weights, but rollout_is is None: set both or neither.")
    if weight_mean is not None and not rollout_is_batch_normalize:
        raise ValueError("weight_mean was given, but only rollout_is_batch_normalize divides by it: set it, too.")
    if weight_mean is not None:
        checked("weight_mean", weight_mean, "it is the mean of weights, see weight_total", minimum=0.0)
    rejections = parse_rejections(rollout_rs, rollout_rs_threshold)
    mismatch = Mismatch.of(old_logprobs, rollout_logprobs, mask, cu_seqlens)
    metrics = divergence_metrics(mismatch)

    lost = torch.zeros_like(mismatch.layout.mask)
    for rejection in rejections:
        tokens, rejection_metrics = rejected(mismatch, rejection)
        lost |= tokens
        metrics.update(rejection_metrics)
    if rejections:
        metrics.update({f"rollout_rs_{name}": value for name, value in masked_fractions(mismatch, lost).items()})
    kept = Layout(mismatch.layout.mask & ~lost, mismatch.layout.cu_seqlens)

    weights = None
    if rollout_is is not None:
        bounds = parse_weight_bounds(rollout_is_threshold)
        metrics.update(weight_metrics(mismatch, rollout_is, bounds))
        weights = kept.select(bounded_weights(raw_weights(mismatch, rollout_is), bounds))
        if rollout_is_batch_normalize:
            if weight_mean is None:
                total, count = weight_total(weights, level=rollout_is, mask=kept.mask, cu_seqlens=kept.cu_seqlens)
                weight_mean = total / max(count, 1.0)
            factor = weight_mean if weight_mean > _SMALLEST_MEAN else 1.0
            weights = weights / factor
            metrics["rollout_is_batch_norm_factor"] = factor
        metrics["rollout_is_applied_mean"] = mean(kept.compact(weights))
        weights = weights.to(torch.promote_types(old_logprobs.dtype, torch.float32))
    return Correction(kept.mask, weights, {f"{_PREFIX}{name}": value for name, value in metrics.items()})


def weight_total(
    weights: Tensor, *, level: Level, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
) -> tuple[float, float]:
    """``(sum, count)`` of weights that are not normalised, over tokens or, for the sequence levels, over sequences.

    Add both up over all parts of a step; the quotient is the `weight_mean` that `correct` normalises each part by.

    Args:
        weights: (B, T) or (T,), `Correction.weights`.
        level: the ``rollout_is`` that they were computed with.
        mask: same shape, `Correction.mask`.
        cu_seqlens: (N+1,) offsets of packed sequences.
    """
    layout = Layout.of(mask, cu_seqlens, weights=weights)
    if level == "token":
        return float(layout.compact(weights).double().sum()), float(layout.mask.sum())
    counts = layout.counts()
    return float((layout.sums(weights) / counts.clamp(min=1)).sum()), float((counts > 0).sum())
