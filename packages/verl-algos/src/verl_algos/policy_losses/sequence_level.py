"""Losses whose ratio belongs to the whole sequence: GSPO, GMPO. Both are meant for aggregation seq-mean-token-mean.

Each writes its sequence's loss to the sequence's valid tokens, so that the mean over tokens gives it back. A sequence
lies in one part of a mini-batch; with global denominators no split changes the result.
"""

import torch
from torch import Tensor

from verl_algos._finite import DIFFERENCE_LIMIT
from verl_algos.policy_losses.columns import LossAndMetrics, TokenColumns

_SEQUENCE_LOG_RATIO_LIMIT = 10.0  # the published value; exp(10) = 22,026
_WEIGHT_EPSILON = 1e-10  # the published value: a token that IcePop zeroed does not silence its whole sequence


def gspo(columns: TokenColumns, *, clip_ratio_low: float, clip_ratio_high: float) -> LossAndMetrics:
    """Group sequence policy optimisation (Zheng et al. 2025, arXiv:2507.18071).

    ``max(-A s, -A clip(s, 1 - clip_ratio_low, 1 + clip_ratio_high))`` with ``s`` the geometric mean of the sequence's
    ratios; each token has the gradient ``-A s`` where the clip does not cut it (the straight-through form, which also
    takes advantages that differ between tokens). The paper clips at 3e-4 and 4e-4: s moves far less than one ratio.

    Metrics: ``pg_clipfrac`` (tokens whose gradient the clip cut) and ``ppo_kl``.
    """
    difference = (columns.logprobs - columns.old_logprobs).detach().clamp(-DIFFERENCE_LIMIT, DIFFERENCE_LIMIT)
    mean = _sequence_means(columns, difference).to(difference.dtype)
    log_ratio = columns.logprobs - columns.logprobs.detach() + columns.layout.spread(mean)
    ratio = log_ratio.clamp(max=_SEQUENCE_LOG_RATIO_LIMIT).exp()
    surrogate = -columns.advantages * ratio
    clipped = -columns.advantages * ratio.clamp(1.0 - clip_ratio_low, 1.0 + clip_ratio_high)
    return columns.loss(torch.maximum(surrogate, clipped)), {
        "pg_clipfrac": columns.share(clipped > surrogate),
        "ppo_kl": columns.ppo_kl(),
    }


def geo_mean(columns: TokenColumns, *, clip_ratio_low: float, clip_ratio_high: float) -> LossAndMetrics:
    """Geometric-mean policy optimisation, GMPO (Zhao et al. 2025, arXiv:2507.20673).

    ``-mean(A) exp(mean(c))`` over each sequence's tokens, ``c = min(d, clip_ratio_high)`` where ``A > 0``,
    ``max(d, -clip_ratio_low)`` where ``A < 0``, 0 where ``A = 0``, and ``d = logprobs - old_logprobs``. Rollout
    weights enter as their geometric mean over the sequence.

    Metrics: ``pg_clipfrac`` and ``pg_clipfrac_lower`` as published: tokens with ``d`` outside the band and a positive,
    a negative advantage, whether or not the clip acted on them; ``pg_cutfrac``: tokens whose gradient the clip cut;
    ``ppo_kl``.
    """
    advantage, log_ratio = columns.advantages, columns.log_ratio
    positive, negative = advantage > 0, advantage < 0
    kept = torch.where(positive, log_ratio.clamp(max=clip_ratio_high), log_ratio.clamp(min=-clip_ratio_low))
    kept = torch.where(positive | negative, kept, 0)
    per_sequence = -_sequence_means(columns, advantage) * _sequence_means(columns, kept).exp()
    if columns.rollout_weights is not None:
        per_sequence = per_sequence * _sequence_means(columns, (columns.rollout_weights + _WEIGHT_EPSILON).log()).exp()
    above, below = log_ratio > clip_ratio_high, log_ratio < -clip_ratio_low
    return columns.layout.spread(per_sequence.to(advantage.dtype)), {
        "pg_clipfrac": columns.share((above | below) & positive),
        "pg_clipfrac_lower": columns.share((above | below) & negative),
        "pg_cutfrac": columns.share((above & positive) | (below & negative)),
        "ppo_kl": columns.ppo_kl(),
    }


def _sequence_means(columns: TokenColumns, column: Tensor) -> Tensor:
    return columns.layout.sums(column) / columns.layout.counts().clamp(min=1)
