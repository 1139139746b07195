"""The critic's loss per token, before aggregation, and how much of the returns the critic explains."""

import math

import torch
from torch import Tensor

from verl_algos._finite import at_least_float32, limit, narrowed, saturated, trained
from verl_algos._layout import Layout
from verl_algos._numbers import checked
from verl_algos.masked import masked_var

__all__ = ["compute", "explained_variance"]


def compute(
    *,
    values: Tensor,
    returns: Tensor,
    old_values: Tensor | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    cliprange_value: float | None = 0.5,
) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
    """Squared error of the critic, clipped as in PPO (Schulman et al. 2017, its implementation) or plain.

    Clipped: ``max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) / 2``: a value gains nothing by moving further than
    c from where it was. Plain: ``(V - R)^2 / 2``.

    Args:
        values: (B, T) or (T,), of the critic that is trained.
        returns: same shape.
        old_values: same shape, of the critic before this step's updates; the plain loss does not need them.
        mask: same shape, the tokens that are trained; all of them if None.
        cu_seqlens: (N+1,) offsets of packed sequences.
        cliprange_value: c, at least 0; None for the plain loss.

    Returns:
        The loss per token, 0 where the mask excludes it, and ``{name: (sum, count)}`` of ``vpred_mean`` and, if
        clipped, ``vf_clipfrac`` (tokens whose gradient the clip cut).

    Raises:
        ValueError: shapes disagree, cliprange_value is negative, or old_values is missing for the clip.
    """
    columns = {"values": values, "returns": returns}
    if cliprange_value is not None:
        if cliprange_value != math.inf:  # which clips nothing
            checked("cliprange_value", cliprange_value, "values may move that far from the old ones", minimum=0.0)
        if old_values is None:
            raise ValueError(
                f"The value loss with cliprange_value={cliprange_value} needs old_values, which was not given: supply "
                "the values from before this step's updates, or pass cliprange_value=None for the plain squared error."
            )
        columns["old_values"] = old_values
    layout = Layout.of(mask, cu_seqlens, **columns)
    selected = {
        name: trained(layout.select(column if name == "values" else column.detach()))
        for name, column in columns.items()
    }
    value, target = selected["values"], selected["returns"]
    error = _squared_error(value, target)
    tokens = layout.mask.sum()
    metrics = {"vpred_mean": (layout.total(value.detach()), tokens)}
    if cliprange_value is None:
        return 0.5 * error, metrics
    old = selected["old_values"]
    low, high = saturated(old - cliprange_value), saturated(old + cliprange_value)
    clipped = _squared_error(torch.clamp(value, low, high), target)
    metrics["vf_clipfrac"] = ((clipped > error).sum(), tokens)
    return 0.5 * torch.maximum(error, clipped), metrics


def explained_variance(
    values: Tensor, returns: Tensor, mask: Tensor | None = None, cu_seqlens: Tensor | None = None
) -> Tensor:
    """``1 - var(R - V) / (var(R) + 1e-5)`` over valid tokens, 0-d: 1 is a perfect critic, 0 or less a useless one."""
    layout = Layout.of(mask, cu_seqlens, values=values, returns=returns)
    value, target = (layout.select(column).double() for column in (values, returns))
    unexplained = masked_var(saturated(target - value), layout.mask) / (masked_var(target, layout.mask) + 1e-5)
    return narrowed(1.0 - unexplained, at_least_float32(values).dtype)


def _squared_error(value: Tensor, target: Tensor) -> Tensor:
    """Finite for finite numbers: beyond what its square can hold an error counts as that, with gradient 0."""
    furthest = math.sqrt(limit(value.dtype))
    error = value - target
    bounded = error.clamp(-furthest, furthest)
    return torch.where(value.isfinite() & target.isfinite(), bounded, error).square()
