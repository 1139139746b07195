"""The KL over the whole vocabulary, where the logits of both models are at hand."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from verl_algos._finite import limit
from verl_algos._layout import check_column, check_device
from verl_algos._vocabulary import row_parts
from verl_algos.logprobs import _log_distribution

#: Far above any divergence that means something; sums and gradients of numbers up to it do not overflow in float32.
_LOG_RATIO_LIMIT = 1e30


def full(logits: Tensor, ref_logits: Tensor, temperature: float = 1.0) -> Tensor:
    """``KL(policy || reference) = sum_v pi_v (log pi_v - log ref_v)`` at each position, exact, shape (...).

    Both distributions are softmax(logits / temperature), in float32 at least. The rows are worked through a few at a
    time, in the backward pass again: beside the logits only their gradient is as large as they are. Value and gradient
    are finite for every finite input: log-ratios are clamped to +-1e30. A token that the policy excludes (-inf) adds
    nothing.

    Args:
        logits: (..., V), of the policy; receives the gradient.
        ref_logits: same shape, of the reference; without gradient.
        temperature: that of sampling, above 0.

    Raises:
        ValueError: the shapes differ, the temperature is not above 0, or ref_logits wants a gradient.
    """
    check_column("logits", logits)
    check_column("ref_logits", ref_logits)
    check_device("ref_logits", ref_logits, "logits", logits)
    if logits.shape != ref_logits.shape or logits.dim() == 0:
        raise ValueError(
            f"ref_logits has shape {tuple(ref_logits.shape)} but logits has {tuple(logits.shape)}: both are (..., V)."
        )
    if ref_logits.requires_grad:
        raise ValueError("ref_logits requires a gradient, but the reference is fixed: detach it.")
    vocabulary = logits.shape[-1]
    flat: Tensor = _FullKL.apply(  # type: ignore[no-untyped-call]  # torch's own
        logits.reshape(-1, vocabulary), ref_logits.reshape(-1, vocabulary), temperature
    )
    return flat.view(logits.shape[:-1])


class _FullKL(torch.autograd.Function):
    """Computes log-softmax anew in the backward pass, instead of keeping two of them."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ref_logits: Tensor, temperature: float) -> Tensor:
        """(M, V), (M, V) -> (M,)."""
        divergence = logits.new_empty(len(logits), dtype=torch.promote_types(logits.dtype, torch.float32))
        for part in row_parts(logits):
            policy, log_ratio = _policy_and_log_ratio(logits[part], ref_logits[part], temperature)
            divergence[part] = policy.mul_(log_ratio).sum(dim=-1)
        ctx.save_for_backward(logits, ref_logits, divergence)
        ctx.temperature = temperature
        return divergence

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """``pi_v (log pi_v - log ref_v - KL) / temperature``."""
        logits, ref_logits, divergence = ctx.saved_tensors
        result = torch.empty_like(logits)
        for part in row_parts(logits):
            policy, log_ratio = _policy_and_log_ratio(logits[part], ref_logits[part], ctx.temperature)
            log_ratio -= divergence[part].unsqueeze(-1)
            bound = limit(logits.dtype)
            part_gradient = policy.mul_(log_ratio).mul_(gradient[part].unsqueeze(-1) / ctx.temperature)
            result[part] = part_gradient.clamp_(-bound, bound)
        return result, None, None


def _policy_and_log_ratio(logits: Tensor, ref_logits: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """pi, and log pi - log ref, which is 0 where pi is 0."""
    policy = _log_distribution(logits, temperature)
    log_ratio = policy - _log_distribution(ref_logits, temperature)
    policy = policy.exp_()
    log_ratio.clamp_(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT).masked_fill_(policy == 0.0, 0.0)
    return policy, log_ratio
