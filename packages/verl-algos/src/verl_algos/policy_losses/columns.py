"""What a policy loss computes from, checked once."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from verl_algos._finite import at_least_float32, saturated, trained
from verl_algos._layout import Layout, as_mask

#: exp(20) = 4.9e8: larger log-ratios would overflow long after any clip has cut the gradient.
LOG_RATIO_LIMIT = 20.0

#: Advantages and rollout weights beyond it count as it, so that no product of them with a ratio overflows.
_FACTOR_LIMITS = {torch.float32: 1e14, torch.float64: 1e140}

PolicyMetrics = dict[str, tuple[Tensor, Tensor]]
LossAndMetrics = tuple[Tensor, PolicyMetrics]


@dataclass(frozen=True)
class TokenColumns:
    """Columns of one call in float32 at least, (B, T) or (T,), exactly 0 at tokens that the mask excludes."""

    layout: Layout
    logprobs: Tensor
    """Of the policy that is trained; the only column with a gradient."""
    old_logprobs: Tensor
    """Of the policy before this step's updates (the rollout's, where the trainer bypasses that pass)."""
    advantages: Tensor
    """Within +-1e14 (float64: 1e140), as the weights."""
    rollout_weights: Tensor | None
    covariance_selected: Tensor | None
    """Bool: the tokens that a covariance loss treats apart."""

    @classmethod
    def of(
        cls,
        *,
        logprobs: Tensor,
        old_logprobs: Tensor,
        advantages: Tensor,
        mask: Tensor | None,
        cu_seqlens: Tensor | None,
        rollout_weights: Tensor | None = None,
        covariance_selected: Tensor | None = None,
    ) -> "TokenColumns":
        """Check shapes and select the valid tokens.

        Raises:
            ValueError: shapes disagree, or log-probs are whole numbers.
        """
        columns = {"logprobs": logprobs, "old_logprobs": old_logprobs, "advantages": advantages}
        if rollout_weights is not None:
            columns["rollout_weights"] = rollout_weights
        if covariance_selected is not None:
            columns["covariance_selected"] = covariance_selected
        layout = Layout.of(mask, cu_seqlens, **columns)
        for name in ("logprobs", "old_logprobs"):
            if not columns[name].is_floating_point():
                raise ValueError(f"{name} has dtype {columns[name].dtype}: log-probs are floating-point numbers.")

        def selected(column: Tensor) -> Tensor:
            return at_least_float32(layout.select(column))

        def factor(column: Tensor) -> Tensor:
            column = selected(column).detach()
            bound = _FACTOR_LIMITS[column.dtype]
            return column.clamp(-bound, bound)

        return cls(
            layout,
            trained(layout.select(logprobs)),
            selected(old_logprobs).detach(),
            factor(advantages),
            None if rollout_weights is None else factor(rollout_weights),
            None if covariance_selected is None else as_mask("covariance_selected", covariance_selected) & layout.mask,
        )

    @cached_property
    def log_ratio(self) -> Tensor:
        """``log(policy / old policy)`` within +-20; where that limit acts the gradient is 0."""
        return (self.logprobs - self.old_logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)

    @cached_property
    def ratio(self) -> Tensor:
        """``policy / old policy``, 1 at tokens that are not valid."""
        return self.log_ratio.exp()

    def loss(self, per_token: Tensor) -> Tensor:
        """`weighted` for finite columns: what overflowed on the way is the largest number of its type."""
        return saturated(self.weighted(saturated(per_token)))

    def weighted(self, per_token: Tensor) -> Tensor:
        """`per_token` times the rollout weights, if there are any; 0 at tokens that are not valid."""
        per_token = self.layout.select(per_token)
        return per_token if self.rollout_weights is None else per_token * self.rollout_weights

    def share(self, flags: Tensor) -> tuple[Tensor, Tensor]:
        """``(sum, count)`` of flags, or of numbers, over the valid tokens."""
        return self.layout.total(flags.detach()), self.layout.mask.sum()

    def ppo_kl(self) -> tuple[Tensor, Tensor]:
        """Old minus new log-prob, the k1 estimate of the KL that this step's updates made."""
        return self.share(-self.log_ratio)
