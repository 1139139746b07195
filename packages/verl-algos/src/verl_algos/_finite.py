"""Arithmetic that stays finite: what overflows counts as the largest number of its type.

Sums are accumulated in float64 and rounded once.
"""

from typing import Any

import torch
from torch import Tensor

_FLOAT64_LIMIT = 1e300
"""Below the largest float64 (1.8e308) by so much that sums over any batch stay finite, too."""


DIFFERENCE_LIMIT = 1e6
"""Differences of two log-probs of a token count within +-1e6 before they are added up over a sequence.

No model has such a difference: exp(-1e6) is no probability that anything can be sampled with. Sums over sequences of a
million tokens are then right to 1e-4, and their means to 1e-10, in whatever order they are added; between numbers of
1e38, which cancel, nothing of the others would be left.
"""


def limit(dtype: torch.dtype) -> float:
    """The largest number that columns of a floating type are brought to."""
    return min(torch.finfo(dtype).max, _FLOAT64_LIMIT)


def saturated(x: Tensor) -> Tensor:
    """`x` within the limit of its type: what overflowed is finite, with gradient 0. NaN stays."""
    bound = limit(x.dtype)
    return x.clamp(-bound, bound)


def narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x`, computed in float64, in a floating type that may hold less; what was infinite before stays so."""
    bound = limit(dtype)
    return torch.where(x.isinf(), x, x.clamp(-bound, bound)).to(dtype)


def at_least_float32(column: Tensor) -> Tensor:
    """Half-precision columns as float32, others unchanged: differences of log-probs need more than 8 bits."""
    return column.to(torch.promote_types(column.dtype, torch.float32))


def summable(x: Tensor) -> Tensor:
    """`x` in float64, its finite numbers so small that no sum of them overflows."""
    return narrowed(x, x.dtype) if x.dtype == torch.float64 else x.double()


def total(x: Tensor) -> Tensor:
    """Sum over all elements, 0-d, in the type of `x` (of whole numbers in int64)."""
    return narrowed(summable(x).sum(), x.dtype) if x.is_floating_point() else x.sum()


def trained(column: Tensor) -> Tensor:
    """`column` in float32 at least; a gradient beyond what its own type holds becomes the largest that it does."""
    if not column.requires_grad:
        return at_least_float32(column)
    wide: Tensor = _Trained.apply(column)  # type: ignore[no-untyped-call]  # torch's own
    return wide


class _Trained(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(column: Tensor) -> Tensor:
        wide = at_least_float32(column)
        return wide.view_as(wide)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.dtype = inputs[0].dtype

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        bound = limit(ctx.dtype)
        return gradient.clamp(-bound, bound).to(ctx.dtype)
