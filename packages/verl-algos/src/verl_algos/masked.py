"""Statistics over valid elements only; x and mask have the same shape, whatever it is, so both layouts work.

Elements that are not valid are selected away, not multiplied by 0: NaN or inf there changes nothing.
"""

import torch
from torch import Tensor

from verl_algos._finite import narrowed, saturated, summable, total, trained
from verl_algos._layout import as_mask, check_column

__all__ = ["masked_mean", "masked_sum", "masked_var", "masked_whiten"]

VARIANCE_EPSILON = 1e-8  # the published value; far below any variance that means something
_LARGEST_DEVIATION = 1e140  # whose squares' sum float64 holds


def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Sum of the elements of `x` where `mask` is set, 0-d."""
    return total(_select(x, mask))


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of the elements of `x` where `mask` is set, 0-d; 0 if there are none."""
    return narrowed(_mean(_select(x, mask), mask), _dtype(x))


def masked_var(x: Tensor, mask: Tensor, *, unbiased: bool = True) -> Tensor:
    """Variance of the elements of `x` where `mask` is set, 0-d; 0 for fewer than two elements."""
    return narrowed(_var(_centred(x, mask), mask, unbiased), _dtype(x))


def masked_whiten(x: Tensor, mask: Tensor) -> Tensor:
    """Bring the valid elements to mean 0 and unbiased variance 1; the others become exactly 0.

    ``(x - mean) / sqrt(var + 1e-8)``. A single valid element, and each of several equal ones, becomes 0.
    """
    centred = _centred(x, mask)
    return narrowed(centred * torch.rsqrt(_var(centred, mask, True) + VARIANCE_EPSILON), _dtype(x))


def _dtype(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _select(x: Tensor, mask: Tensor) -> Tensor:
    check_column("x", x)
    mask = as_mask("mask", mask)
    if x.shape != mask.shape:
        raise ValueError(f"mask has shape {tuple(mask.shape)} but x has {tuple(x.shape)}: they must be equal.")
    selected = torch.where(mask, x, 0)
    return trained(selected) if x.is_floating_point() else selected


def _mean(selected: Tensor, mask: Tensor) -> Tensor:
    return summable(selected).sum() / mask.bool().sum().clamp(min=1)


def _centred(x: Tensor, mask: Tensor) -> Tensor:
    selected = _select(x, mask).double()
    centred = (selected - _mean(selected, mask)).clamp(-_LARGEST_DEVIATION, _LARGEST_DEVIATION)
    return torch.where(mask.bool(), centred, 0)


def _var(centred: Tensor, mask: Tensor, unbiased: bool) -> Tensor:
    return saturated(centred.square().sum() / (mask.bool().sum() - int(unbiased)).clamp(min=1))
