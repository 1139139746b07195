"""Losses without a bound on the ratio: GPG, DRO."""

from verl_algos.policy_losses.columns import LossAndMetrics, TokenColumns


def gpg(columns: TokenColumns) -> LossAndMetrics:
    """The plain policy gradient, ``-A logprobs`` (group policy gradient, Chu et al. 2025, arXiv:2504.02546).

    With rollout weights it is REINFORCE with importance sampling, the published `loss_type` "reinforce".

    Metrics: ``ppo_kl``.
    """
    return columns.weighted(-columns.advantages * columns.logprobs), {"ppo_kl": columns.ppo_kl()}


def dro(columns: TokenColumns, *, dro_beta: float) -> LossAndMetrics:
    """Direct reward optimisation (Richemond et al. 2024, arXiv:2405.19107): ``-(A logprobs - dro_beta / 2 d^2)``.

    ``d = logprobs - old_logprobs`` is not clamped: the square is what brings a token back that went far off.

    Metrics: ``dro_penalty`` (mean of ``dro_beta / 2 d^2``) and ``ppo_kl``.
    """
    penalty = 0.5 * dro_beta * (columns.logprobs - columns.old_logprobs).square()
    return columns.weighted(penalty - columns.advantages * columns.logprobs), {
        "dro_penalty": columns.share(penalty),
        "ppo_kl": columns.ppo_kl(),
    }
