"""KL between the policy and a reference: estimators per token, the penalty in the reward, coefficient controllers."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from verl_algos._layout import Layout, at_least_float32
from verl_algos.errors import NonFiniteError
from verl_algos.names import PENALTIES

__all__ = ["PENALTIES", "AdaptiveController", "FixedController", "apply_kl_to_rewards", "penalty"]

_K3_LOG_RATIO_LIMIT = 20.0
_K3_LIMIT = 10.0


def _k1(difference: Tensor) -> Tensor:
    limit = torch.finfo(difference.dtype).max
    return difference.clamp(-limit, limit)


def _k2(difference: Tensor) -> Tensor:
    limit = math.sqrt(torch.finfo(difference.dtype).max)
    difference = difference.clamp(-limit, limit)
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
    k2, mse               d^2 / 2              never negative
    k3, low_var_kl        exp(-d) + d - 1      never negative; d is clamped to +-20, the value to at most 10
    ===================== ==================== ====================================================================

    Value and gradient are finite for every finite input; where a clamp acts the gradient is 0.

    Args:
        name: one of `PENALTIES`.
        logprobs: any shape, of the policy.
        ref_logprobs: same shape, of the reference.

    Raises:
        ValueError: the name is not known or the shapes differ.
    """
    return _estimate(name, logprobs, ref_logprobs)


def apply_kl_to_rewards(
    *,
    token_rewards: Tensor,
    logprobs: Tensor,
    ref_logprobs: Tensor,
    coef: float,
    penalty: str = "kl",
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
    """Subtract ``coef * KL`` from the reward of every sampled token, without gradient.

    Args:
        token_rewards: (B, T) or (T,).
        logprobs: same shape, of the policy that sampled or of the one before this step's updates.
        ref_logprobs: same shape, of the reference.
        coef: the controller's coefficient.
        penalty: one of `PENALTIES`.
        mask: same shape, the sampled tokens (not the loss mask: rewards of rejected tokens stay); all of them if None.
        cu_seqlens: (N+1,) offsets of packed sequences.

    Returns:
        The new token rewards, 0 where the mask excludes a token, and ``{"reward_kl_penalty": (sum, count)}``: the
        KL of each sequence's mean token over the sequences that have one. Sequences without tokens do not dilute
        it: it drives `AdaptiveController`.

    Raises:
        ValueError: the penalty is not known or shapes disagree.
    """
    layout = Layout.of(mask, cu_seqlens, token_rewards=token_rewards, logprobs=logprobs, ref_logprobs=ref_logprobs)
    with torch.no_grad():
        kl = _estimate(penalty, layout.select(logprobs), layout.select(ref_logprobs))
        counts = layout.counts()
        per_sequence = layout.sums(kl) / counts.clamp(min=1)
        rewards = at_least_float32(layout.select(token_rewards)) - coef * kl
        return rewards, {"reward_kl_penalty": (per_sequence.sum(), (counts > 0).sum())}


def _estimate(name: str, logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    if name not in _ESTIMATORS:
        raise ValueError(f"Unknown KL penalty {name!r}. Known: {', '.join(PENALTIES)}.")
    if logprobs.shape != ref_logprobs.shape:
        raise ValueError(
            f"ref_logprobs has shape {tuple(ref_logprobs.shape)} but logprobs has {tuple(logprobs.shape)}: "
            "they must be equal."
        )
    return _ESTIMATORS[name](at_least_float32(logprobs) - at_least_float32(ref_logprobs))


@dataclass
class FixedController:
    """A KL coefficient that stays."""

    coef: float

    def update(self, current_kl: float, num_sequences: int) -> None:
        """Leave the coefficient as it is."""


@dataclass
class AdaptiveController:
    """A KL coefficient that follows the measured KL (Ziegler et al. 2019, arXiv:1909.08593, section 2.2)."""

    coef: float
    target: float
    """The KL per token to hold, above 0."""
    horizon: int
    """Sequences over which the coefficient may change by 20 %, above 0; more of them in one update change no more."""

    def __post_init__(self) -> None:
        if not (self.target > 0 and self.horizon > 0):
            raise ValueError(
                f"An adaptive KL controller needs target and horizon above 0, got {self.target}, {self.horizon}."
            )

    def update(self, current_kl: float, num_sequences: int) -> None:
        """Multiply the coefficient by ``1 + clip(current_kl / target - 1, -0.2, 0.2) * min(n / horizon, 1)``.

        n is `num_sequences`. The published rule has no ``min``. It is a step of an integral controller of log(coef),
        which holds while the step is small: with more than ``5 * horizon`` sequences the factor could fall below 0,
        and the coefficient would reward divergence. One measurement therefore changes it by at most 20 %.

        Args:
            current_kl: mean KL over sequences that have tokens (`apply_kl_to_rewards` measures it).
            num_sequences: sequences since the last update.

        Raises:
            NonFiniteError: current_kl is not finite; the coefficient would be lost.
        """
        if not math.isfinite(current_kl):
            raise NonFiniteError(
                f"The KL controller was given current_kl={current_kl}: the log-probs of this step are broken.",
                "current_kl",
            )
        error = min(max(current_kl / self.target - 1.0, -0.2), 0.2)
        self.coef *= 1.0 + error * min(num_sequences / self.horizon, 1.0)
