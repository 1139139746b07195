"""Rejection of tokens and sequences on which policy and rollout disagree too much."""

import torch
from torch import Tensor

from verl_algos.rollout_correction.ratios import Mismatch, mean, spread_of, std
from verl_algos.rollout_correction_options import Rejection


def rejected(mismatch: Mismatch, rejection: Rejection) -> tuple[Tensor, dict[str, float]]:
    """The valid tokens that one criterion rejects, bool in the shape of tokens, and statistics of what it measured."""
    layout = mismatch.layout
    statistic = _statistic(mismatch, rejection)
    outside = (statistic < rejection.lower) | (statistic > rejection.upper)
    if rejection.over == "token":
        tokens, units = outside & layout.mask, layout.compact(statistic)
        per_token, sequences = units, mismatch.sequence_means(statistic)[mismatch.sequences]
    else:
        tokens, units = layout.spread(outside.long()).bool(), statistic[mismatch.sequences]
        per_token, sequences = layout.compact(layout.spread(statistic)), units
    floor = max(rejection.lower, 0.0) if rejection.estimator != "k1" else rejection.lower
    metrics = {
        "mean": mean(per_token),
        **spread_of("", units),
        "std": std(per_token.clamp(floor, rejection.upper), unbiased=False),
        "fraction_high": mean((units > rejection.upper).double()),
        "fraction_low": mean((units < rejection.lower).double()),
        "seq_mean": mean(sequences),
        "seq_std": std(sequences, unbiased=True),
        **spread_of("seq", sequences),
        "seq_max_deviation": float(sequences.abs().max()) if len(sequences) else 0.0,
        "seq_fraction_high": mean((sequences > rejection.upper).double()),
        "seq_fraction_low": mean((sequences < rejection.lower).double()),
        **masked_fractions(mismatch, tokens),
    }
    return tokens, {f"rollout_rs_{rejection.name}_{name.removeprefix('_')}": value for name, value in metrics.items()}


def masked_fractions(mismatch: Mismatch, tokens: Tensor) -> dict[str, float]:
    """Share of the valid tokens that are rejected, and of the sequences that lose at least one."""
    sequences = mismatch.sequence_sums(tokens.double())[mismatch.sequences] > 0
    return {
        "masked_fraction": mean(mismatch.layout.compact(tokens).double()),
        "seq_masked_fraction": mean(sequences.double()),
    }


def _statistic(mismatch: Mismatch, rejection: Rejection) -> Tensor:
    log_ratio = mismatch.bounded
    if rejection.estimator == "k1":
        divergence = -log_ratio  # log(rollout / policy): the published direction of the bounds
    elif rejection.estimator == "k2":
        divergence = 0.5 * log_ratio.square()
    else:
        divergence = torch.expm1(log_ratio) - log_ratio
    if rejection.over == "token":
        return divergence
    reduce = {
        "seq_sum": mismatch.sequence_sums,
        "seq_mean": mismatch.sequence_means,
        "seq_max": mismatch.sequence_maxima,
    }[rejection.over]
    return reduce(divergence)
