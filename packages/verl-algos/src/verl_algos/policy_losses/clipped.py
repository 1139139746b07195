"""Losses that bound the ratio of each token: vanilla (PPO), CISPO, SAPO."""

import torch

from verl_algos.policy_losses.columns import LossAndMetrics, TokenColumns


def vanilla(
    columns: TokenColumns, *, clip_ratio_low: float, clip_ratio_high: float, clip_ratio_c: float
) -> LossAndMetrics:
    """PPO's clipped surrogate (Schulman et al. 2017, arXiv:1707.06347, eq. 7) with separate bounds and dual clip.

    With ``ratio = exp(logprobs - old_logprobs)`` the loss of a token is
    ``max(-A ratio, -A clip(ratio, 1 - clip_ratio_low, 1 + clip_ratio_high))`` and for ``A < 0`` at most
    ``-A clip_ratio_c`` (Ye et al. 2020, arXiv:1912.09729). Separate bounds: DAPO's clip-higher (arXiv:2503.14476).

    Metrics: ``pg_clipfrac`` (tokens whose gradient the clip cut), ``pg_clipfrac_lower`` (those that the dual clip cut)
    and ``ppo_kl``.
    """
    advantage, ratio = columns.advantages, columns.ratio
    surrogate = -advantage * ratio
    clipped = -advantage * ratio.clamp(1.0 - clip_ratio_low, 1.0 + clip_ratio_high)
    larger = torch.maximum(surrogate, clipped)
    bound = torch.where(advantage < 0, -advantage * clip_ratio_c, torch.inf)
    return columns.loss(torch.minimum(larger, bound)), {
        "pg_clipfrac": columns.share(clipped > surrogate),
        "pg_clipfrac_lower": columns.share(larger > bound),
        "ppo_kl": columns.ppo_kl(),
    }


def cispo(columns: TokenColumns, *, clip_ratio_low: float, clip_ratio_high: float) -> LossAndMetrics:
    """Clipped importance sampling (MiniMax-M1 2025, arXiv:2506.13585, eq. 4): no token's gradient is cut off.

    ``-sg(clip(ratio, 1 - clip_ratio_low, 1 + clip_ratio_high)) A logprobs`` where sg stops the gradient: the clip
    bounds the weight of a token, whichever the sign of its advantage.

    Metrics: ``pg_clipfrac`` (tokens whose weight the clip changed) and ``ppo_kl``.
    """
    ratio = columns.ratio.detach()
    weight = ratio.clamp(1.0 - clip_ratio_low, 1.0 + clip_ratio_high)
    return columns.loss(-weight * columns.advantages * columns.logprobs), {
        "pg_clipfrac": columns.share(weight != ratio),
        "ppo_kl": columns.ppo_kl(),
    }


def sapo(columns: TokenColumns, *, tau_pos: float, tau_neg: float) -> LossAndMetrics:
    """Soft adaptive policy optimisation (Gao et al. 2025, arXiv:2511.20347): a smooth gate in place of the clip.

    ``-A (4 / tau) sigmoid(tau (ratio - 1))`` with ``tau = tau_pos`` where ``A > 0``, else `tau_neg`. Its gradient is
    the policy gradient times ``4 s (1 - s)``, s the sigmoid: 1 at ratio 1, falling off on both sides. Published with
    aggregation seq-mean-token-mean.

    Metrics: ``pg_gate`` (mean of ``4 s (1 - s)``: how much of the policy gradient passes) and ``ppo_kl``.
    """
    tau = torch.full_like(columns.ratio, tau_neg).masked_fill(columns.advantages > 0, tau_pos)
    gate = torch.sigmoid(tau * (columns.ratio - 1.0))
    return columns.loss(-columns.advantages * gate * (4.0 / tau)), {
        "pg_gate": columns.share(4.0 * gate * (1.0 - gate)),
        "ppo_kl": columns.ppo_kl(),
    }
