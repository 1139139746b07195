"""Losses whose trust region is a divergence of the token's probability: DPPO with total variation and with KL."""

import torch
from torch import Tensor

from verl_algos.policy_losses.columns import LossAndMetrics, TokenColumns

_PROBABILITY_EPSILON = 1e-8  # the published value


def dppo_tv(
    columns: TokenColumns, *, clip_ratio_low: float, clip_ratio_high: float, clip_ratio_c: float
) -> LossAndMetrics:
    """DPPO with the binary total variation (arXiv:2602.04879).

    ``-A sg(min(ratio, clip_ratio_c)) logprobs`` for tokens inside the trust region, 0 outside: with p and q the
    token's new and old probability, inside means ``p - q <= clip_ratio_high`` where ``A > 0`` and
    ``p - q >= -clip_ratio_low`` elsewhere. (The original gives every run `clip_ratio_c` 3 through its configuration
    although 20 is meant; the default here is 20.)

    Metrics: ``pg_clipfrac`` (tokens outside the trust region), ``pg_clipfrac_lower`` (tokens inside whose ratio was
    truncated) and ``ppo_kl``.
    """
    rise = columns.logprobs.detach().exp() - columns.old_logprobs.exp()
    inside = torch.where(columns.advantages > 0, rise <= clip_ratio_high, rise >= -clip_ratio_low)
    return _truncated(columns, inside, clip_ratio_c)


def dppo_kl(
    columns: TokenColumns, *, clip_ratio_low: float, clip_ratio_high: float, clip_ratio_c: float
) -> LossAndMetrics:
    """DPPO with the binary KL (arXiv:2602.04879).

    As `dppo_tv`, but a token is inside if the KL of (token, any other token) from the old policy to the new one is at
    most `clip_ratio_high` where ``A > 0``, `clip_ratio_low` elsewhere, or if the gradient moves it back: ``p <= q``
    where ``A > 0``, ``p >= q`` elsewhere.

    Metrics: as `dppo_tv`.
    """
    log_p, log_q = columns.logprobs.detach(), columns.old_logprobs
    # -expm1(x) is 1 - exp(x) without the rounding that loses tokens of probability near 1.
    other_p, other_q = -torch.expm1(log_p), -torch.expm1(log_q)
    divergence = log_q.exp() * (log_q - log_p) + other_q * (
        (other_q + _PROBABILITY_EPSILON).log() - (other_p + _PROBABILITY_EPSILON).log()
    )
    inside = torch.where(
        columns.advantages > 0,
        (divergence <= clip_ratio_high) | (log_p <= log_q),
        (divergence <= clip_ratio_low) | (log_p >= log_q),
    )
    return _truncated(columns, inside, clip_ratio_c)


def _truncated(columns: TokenColumns, inside: Tensor, limit: float) -> LossAndMetrics:
    ratio = columns.ratio.detach()
    loss = torch.where(inside, -columns.advantages * ratio.clamp(max=limit) * columns.logprobs, 0)
    return columns.loss(loss), {
        "pg_clipfrac": columns.share(~inside),
        "pg_clipfrac_lower": columns.share((ratio > limit) & inside),
        "ppo_kl": columns.ppo_kl(),
    }
