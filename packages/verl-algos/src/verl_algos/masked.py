"""Statistics over valid elements only; x and mask have the same shape, whatever it is, so both layouts work.

Elements that are not valid are selected away, not multiplied by 0: NaN or inf there changes nothing.
"""

import torch
from torch import Tensor

__all__ = ["masked_mean", "masked_sum", "masked_var", "masked_whiten"]

VARIANCE_EPSILON = 1e-8  # the published value; far below any variance that means something


def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Sum of the elements of `x` where `mask` is set, 0-d."""
    return _select(x, mask).sum()


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean of the elements of `x` where `mask` is set, 0-d; 0 if there are none."""
    return _select(x, mask).sum() / mask.bool().sum().clamp(min=1)


def masked_var(x: Tensor, mask: Tensor, *, unbiased: bool = True) -> Tensor:
    """Variance of the elements of `x` where `mask` is set, 0-d; 0 for fewer than two elements."""
    centred = _select(x - masked_mean(x, mask), mask)
    divisor = mask.bool().sum() - int(unbiased)
    return centred.square().sum() / divisor.clamp(min=1)


def masked_whiten(x: Tensor, mask: Tensor) -> Tensor:
    """Bring the valid elements to mean 0 and unbiased variance 1; the others become exactly 0.

    ``(x - mean) / sqrt(var + 1e-8)``. A single valid element, and each of several equal ones, becomes 0.
    """
    centred = _select(x - masked_mean(x, mask), mask)
    return centred * torch.rsqrt(masked_var(x, mask) + VARIANCE_EPSILON)


def _select(x: Tensor, mask: Tensor) -> Tensor:
    if x.shape != mask.shape:
        raise ValueError(f"mask has shape {tuple(mask.shape)} but x has {tuple(x.shape)}: they must be equal.")
    return torch.where(mask.bool(), x, 0)
