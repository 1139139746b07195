"""Importance weights of the rollout's tokens."""

import torch
from torch import Tensor

from verl_algos.rollout_correction.ratios import LOG_RATIO_LIMIT, Mismatch, mean, spread_of, std
from verl_algos.rollout_correction_options import Level, WeightBounds


def raw_log_weights(mismatch: Mismatch, level: Level) -> Tensor:
    """Unbounded log-weights: of tokens, in their shape, for level "token"; else of sequences, (N,)."""
    if level == "token":
        return mismatch.log_ratio
    return (
        mismatch.sequence_sums(mismatch.log_ratio)
        if level == "sequence"
        else mismatch.sequence_means(mismatch.log_ratio)
    )


def raw_weights(mismatch: Mismatch, level: Level) -> Tensor:
    """Weights before any bound but the one of the exponent, in the shape of tokens."""
    weights = raw_log_weights(mismatch, level).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    return mismatch.layout.select(weights) if level == "token" else mismatch.layout.spread(weights)


def bounded_weights(weights: Tensor, bounds: WeightBounds) -> Tensor:
    """Truncated importance sampling, or IcePop."""
    if bounds.zero_outside:
        return torch.where(_outside(weights, bounds), 0.0, weights)
    return weights.clamp(max=bounds.upper)


def weight_metrics(mismatch: Mismatch, level: Level, bounds: WeightBounds) -> dict[str, float]:
    """Statistics of the raw weights over valid tokens; of sequences (their mean weight) where the name says seq.

    ``std`` and ``eff_sample_size`` (``mean(w)^2 / mean(w^2)``, within (0, 1]) are those of the weights clamped into the
    bounds, as published: one raw weight of 1e8 would say nothing else.
    """
    layout = mismatch.layout
    weights = layout.compact(raw_weights(mismatch, level))
    clamped = weights.clamp(bounds.lower, bounds.upper)
    log_weights = raw_log_weights(mismatch, level)
    units = layout.compact(log_weights) if level == "token" else log_weights[mismatch.sequences]
    units = units.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    sequences = mismatch.sequence_means(raw_weights(mismatch, level))[mismatch.sequences]
    metrics = {
        "mean": mean(weights),
        **spread_of("", units),
        "std": std(clamped, unbiased=False),
        "eff_sample_size": float(clamped.mean() ** 2 / clamped.square().mean()) if len(clamped) else 0.0,
        "ratio_fraction_high": mean((units > bounds.upper).double()),
        "ratio_fraction_low": mean((units < bounds.lower).double()),
        "seq_mean": mean(sequences),
        "seq_std": std(sequences, unbiased=True),
        **spread_of("seq", sequences),
        "seq_max_deviation": float((sequences - 1.0).abs().max()) if len(sequences) else 0.0,
        "seq_fraction_high": mean((sequences > bounds.upper).double()),
        "seq_fraction_low": mean((sequences < bounds.lower).double()),
    }
    if bounds.zero_outside:
        metrics["oob_ratio"] = mean(_outside(weights, bounds).double())
    return {f"rollout_is_{name.removeprefix('_')}": value for name, value in metrics.items()}


def _outside(weights: Tensor, bounds: WeightBounds) -> Tensor:
    return (weights < bounds.lower) | (weights > bounds.upper)
