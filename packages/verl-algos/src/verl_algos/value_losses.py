"""The critic's loss per token, before aggregation, and how much of the returns the critic explains."""

import torch
from torch import Tensor

from verl_algos._layout import Layout, at_least_float32
from verl_algos.masked import masked_var

__all__ = ["compute", "explained_variance"]


def compute(
    *,
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    cliprange_value: float = 0.5,
) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
    """Clipped squared error, ``max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / 2``.

    Args:
        values: (B, T) or (T,), of the critic that is trained.
        old_values: same shape, of the critic before this step's updates.
        returns: same shape.
        mask: same shape, the tokens that are trained; all of them if None.
        cu_seqlens: (N+1,) offsets of packed sequences.
        cliprange_value: c, at least 0.

    Returns:
        The loss per token, 0 where the mask excludes it, and ``{name: (sum, count)}`` of ``vf_clipfrac`` (tokens
        whose gradient the clip cut) and ``vpred_mean``.

    Raises:
        ValueError: shapes disagree or cliprange_value is negative.
    """
    if not cliprange_value >= 0.0:
        raise ValueError(f"cliprange_value={cliprange_value} is below 0: values may move that far from the old ones.")
    layout = Layout.of(mask, cu_seqlens, values=values, old_values=old_values, returns=returns)
    value, old, target = (at_least_float32(layout.select(column)) for column in (values, old_values, returns))
    plain = (value - target).square()
    clipped = (torch.clamp(value, old - cliprange_value, old + cliprange_value) - target).square()
    tokens = layout.mask.sum()
    metrics = {
        "vf_clipfrac": ((clipped > plain).sum(), tokens),
        "vpred_mean": (value.detach().sum(), tokens),
    }
    return 0.5 * torch.maximum(plain, clipped), metrics


def explained_variance(
    values: Tensor, returns: Tensor, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
) -> Tensor:
    """``1 - var(R - V) / (var(R) + 1e-5)`` over valid tokens, 0-d: 1 is a perfect critic, 0 or less a useless one."""
    layout = Layout.of(mask, cu_seqlens, values=values, returns=returns)
    value, target = (at_least_float32(layout.select(column)) for column in (values, returns))
    return 1.0 - masked_var(target - value, layout.mask) / (masked_var(target, layout.mask) + 1e-5)
