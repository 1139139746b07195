"""Estimates of KL per token from log-probs of the tokens that were sampled."""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from verl_algos._finite import at_least_float32, limit, saturated, trained
from verl_algos._layout import Layout, check_column, check_device
from verl_algos.names import PENALTIES

_K3_LOG_RATIO_LIMIT = 20.0
_K3_LIMIT = 10.0


def _k1(difference: Tensor) -> Tensor:
    return saturated(difference)


def _k2(difference: Tensor) -> Tensor:
    furthest = math.sqrt(limit(difference.dtype))
    difference = difference.clamp(-furthest, furthest)
    return 0.5 * difference * difference


def _k3(difference: Tensor) -> Tensor:
    # Clamp before exp: clamping only the result would leave 0 * inf = NaN in the backward pass.
    log_ratio = -difference.clamp(-_K3_LOG_RATIO_LIMIT, _K3_LOG_RATIO_LIMIT)
    return (torch.expm1(log_ratio) - log_ratio).clamp(max=_K3_LIMIT)


_ESTIMATORS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "kl": _k1,
        "k1": _k1,
        "abs": lambda difference: _k1(difference).abs(),
        "mse": _k2,
        "k2": _k2,
        "low_var_kl": _k3,
        "k3": _k3,
    }
)


def penalty(name: str, logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """Estimate KL(policy || reference) per token from log-probs of tokens that the policy sampled.

    With ``d = logprobs - ref_logprobs`` (Schulman 2020, http://joschu.net/blog/kl-approx.html):

    ===================== ==================== ====================================================================
    k1, kl                d                    unbiased, may be negative
    abs                   abs(d)
    k2, mse               d^2 / 2              never negative; its gradient is an unbiased one of the KL
    k3, low_var_kl        exp(-d) + d - 1      never negative; d is clamped to +-20, the value to at most 10
    name+ (k3+, k1+, ...) that of name         straight-through: the gradient is that of k2, ``d`` times that of d
    ===================== ==================== ====================================================================

    As a loss, k1 teaches nothing: the expectation of its gradient over the policy's own samples is 0. That of k3 is
    the gradient of KL(reference || policy). Hence k2, or a name with ``+``.

    Value and gradient are finite for every finite input; where a clamp acts the gradient is 0.

    Args:
        name: one of `PENALTIES` or `STRAIGHT_THROUGH`.
        logprobs: any shape, of the policy.
        ref_logprobs: same shape, of the reference.

    Raises:
        ValueError: the name is not known or the shapes differ.
    """
    base = str(name).removesuffix("+")
    if base == "full":
        raise ValueError("The KL 'full' needs the logits of both models, not log-probs: call kl.full where they are.")
    if base not in _ESTIMATORS:
        raise ValueError(f"Unknown KL penalty {name!r}. Known: {', '.join(PENALTIES)}, and each with a + behind it.")
    check_column("logprobs", logprobs)
    check_column("ref_logprobs", ref_logprobs)
    if logprobs.shape != ref_logprobs.shape:
        raise ValueError(
            f"ref_logprobs has shape {tuple(ref_logprobs.shape)} but logprobs has {tuple(logprobs.shape)}: "
            "they must be equal."
        )
    check_device("ref_logprobs", ref_logprobs, "logprobs", logprobs)
    difference = trained(logprobs) - at_least_float32(ref_logprobs.detach())
    value = _ESTIMATORS[base](difference)
    if base == name:
        return value
    passing = _k2(difference)
    return passing - passing.detach() + value.detach()


def loss(
    name: str,
    *,
    logprobs: Tensor,
    ref_logprobs: Tensor,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
    """The KL of every trained token as a loss, to be summed with `verl_algos.aggregation` and a coefficient.

    Args:
        name: see `penalty`.
        logprobs: (B, T) or (T,), of the policy that is trained.
        ref_logprobs: same shape, of the reference.
        mask: same shape, the tokens that are trained (the loss mask); all of them if None.
        cu_seqlens: (N+1,) offsets of packed sequences.

    Returns:
        The loss per token, 0 with gradient 0 where the mask excludes it, whatever stands there, and
        ``{"kl": (sum, count)}``.

    Raises:
        ValueError: the name is not known or shapes disagree.
    """
    layout = Layout.of(mask, cu_seqlens, logprobs=logprobs, ref_logprobs=ref_logprobs)
    per_token = penalty(name, layout.select(logprobs), layout.select(ref_logprobs))
    return per_token, {"kl": (layout.total(per_token.detach()), layout.mask.sum())}
