"""Losses without a bound on the ratio: GPG, DRO."""

import math

from verl_algos._finite import limit, saturated
from verl_algos.policy_losses.columns import LossAndMetrics, TokenColumns


def gpg(columns: TokenColumns) -> LossAndMetrics:
    """The plain policy gradient, ``-A logprobs`` (group policy gradient, Chu et al. 2025, arXiv:2504.02546).

    With rollout weights it is REINFORCE with importance sampling, the published `loss_type` "reinforce".

    Metrics: ``ppo_kl``.
    """
    return columns.loss(-columns.advantages * columns.logprobs), {"ppo_kl": columns.ppo_kl()}


def dro(columns: TokenColumns, *, dro_beta: float) -> LossAndMetrics:
    """Direct reward optimisation (Richemond et al. 2024, arXiv:2405.19107): ``-(A logprobs - dro_beta / 2 d^2)``.

    ``d = logprobs - old_logprobs`` is not clamped (but where its square would overflow): the square is what brings a
    token back that went far off.

    Metrics: ``dro_penalty`` (mean of ``dro_beta / 2 d^2``) and ``ppo_kl``.
    """
    furthest = math.sqrt(limit(columns.logprobs.dtype))  # its square is finite
    difference = (columns.logprobs - columns.old_logprobs).clamp(-furthest, furthest)
    penalty = saturated(0.5 * dro_beta * difference.square())
    return columns.loss(penalty - saturated(columns.advantages * columns.logprobs)), {
        "dro_penalty": columns.share(penalty),
        "ppo_kl": columns.ppo_kl(),
    }
