"""Policy losses per token, before aggregation.

Each returns the loss of every token in the shape of the inputs, 0 where the mask excludes it, and metrics as
``{name: (sum, count)}`` so that those of micro-batches and ranks add up. Sum the loss with `verl_algos.aggregation`.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from verl_algos._layout import Layout, at_least_float32

__all__ = ["compute", "vanilla"]

#: exp(20) = 4.9e8: larger log-ratios would overflow long after any clip has cut the gradient.
_LOG_RATIO_LIMIT = 20.0

PolicyMetrics = dict[str, tuple[Tensor, Tensor]]


def vanilla(
    *,
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.2,
    clip_ratio_c: float = 3.0,
    rollout_weights: Tensor | None = None,
) -> tuple[Tensor, PolicyMetrics]:
    """PPO's clipped surrogate (Schulman et al. 2017, arXiv:1707.06347, eq. 7) with separate bounds and dual clip.

    With ``ratio = exp(logprobs - old_logprobs)`` the loss of a token is
    ``max(-A ratio, -A clip(ratio, 1 - clip_ratio_low, 1 + clip_ratio_high))`` and for ``A < 0`` at most
    ``-A clip_ratio_c`` (Ye et al. 2020, arXiv:1912.09729). Separate bounds: DAPO's clip-higher (arXiv:2503.14476).

    Args:
        logprobs: (B, T) or (T,), of the policy that is trained.
        old_logprobs: same shape, of the policy before this step's updates.
        advantages: same shape.
        mask: same shape, the tokens that are trained (the loss mask); all of them if None.
        cu_seqlens: (N+1,) offsets of packed sequences.
        clip_ratio_low: within [0, 1].
        clip_ratio_high: at least 0.
        clip_ratio_c: dual-clip bound, above 1.
        rollout_weights: same shape, multiplies each token's loss (importance weights of the rollout), or None.

    Returns:
        The loss per token and ``pg_clipfrac`` (tokens whose gradient the clip cut), ``pg_clipfrac_lower`` (those
        that the dual clip cut) and ``ppo_kl`` (old minus new log-prob, the k1 estimate of the step's KL).

    Raises:
        ValueError: shapes disagree or a bound is out of range.
    """
    if not 0.0 <= clip_ratio_low <= 1.0:
        raise ValueError(
            f"clip_ratio_low={clip_ratio_low} is outside [0, 1]: the ratio is clipped below at 1 minus it."
        )
    if not clip_ratio_high >= 0.0:
        raise ValueError(f"clip_ratio_high={clip_ratio_high} is below 0: the ratio is clipped above at 1 plus it.")
    if not clip_ratio_c > 1.0:
        raise ValueError(
            f"clip_ratio_c={clip_ratio_c} must be above 1: it bounds the ratio of tokens with a negative advantage, "
            "and 1 is where every ratio starts."
        )
    columns = {"logprobs": logprobs, "old_logprobs": old_logprobs, "advantages": advantages}
    if rollout_weights is not None:
        columns["rollout_weights"] = rollout_weights
    layout = Layout.of(mask, cu_seqlens, **columns)
    selected = {name: at_least_float32(layout.select(column)) for name, column in columns.items()}

    advantage = selected["advantages"]
    log_ratio = (selected["logprobs"] - selected["old_logprobs"]).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
    surrogate = -advantage * ratio
    clipped = -advantage * ratio.clamp(1.0 - clip_ratio_low, 1.0 + clip_ratio_high)
    bound = torch.where(advantage < 0, -advantage * clip_ratio_c, torch.inf)
    per_token = torch.minimum(torch.maximum(surrogate, clipped), bound)
    if rollout_weights is not None:
        per_token = per_token * selected["rollout_weights"]

    tokens = layout.mask.sum()
    metrics = {
        "pg_clipfrac": ((clipped > surrogate).sum(), tokens),
        "pg_clipfrac_lower": ((torch.maximum(surrogate, clipped) > bound).sum(), tokens),
        "ppo_kl": (-log_ratio.detach().sum(), tokens),
    }
    return per_token, metrics


_LOSSES: Mapping[str, Callable[..., tuple[Tensor, PolicyMetrics]]] = MappingProxyType({"vanilla": vanilla})


def compute(
    name: str,
    *,
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    clip_ratio_low: float = 0.2,
    clip_ratio_high: float = 0.2,
    clip_ratio_c: float = 3.0,
    rollout_weights: Tensor | None = None,
) -> tuple[Tensor, PolicyMetrics]:
    """Compute ``(loss per token, metrics)`` with the policy loss called `name` ("vanilla"); see each one's docstring.

    Raises:
        ValueError: the name is not known or the inputs do not fit together.
    """
    if name not in _LOSSES:
        raise ValueError(f"Unknown policy loss {name!r}. Known: {', '.join(sorted(_LOSSES))}.")
    return _LOSSES[name](
        logprobs=logprobs,
        old_logprobs=old_logprobs,
        advantages=advantages,
        mask=mask,
        cu_seqlens=cu_seqlens,
        clip_ratio_low=clip_ratio_low,
        clip_ratio_high=clip_ratio_high,
        clip_ratio_c=clip_ratio_c,
        rollout_weights=rollout_weights,
    )
