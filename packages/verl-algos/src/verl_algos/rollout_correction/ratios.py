"""The mismatch between the policy and what sampled, as log-ratios, and statistics of them."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from verl_algos._finite import DIFFERENCE_LIMIT
from verl_algos._layout import Layout
from verl_algos.errors import NonFiniteError

#: exp(20) = 4.9e8, the published safety bound of every exponent.
LOG_RATIO_LIMIT = 20.0

#: exp(600) = 4e260, the bound of what is no importance ratio: perplexities, and their sums, are finite.
_EXPONENT_LIMIT = 600.0


@dataclass(frozen=True)
class Mismatch:
    """Log-probs of the policy and of the rollout, float64, exactly 0 at tokens that the mask excludes."""

    layout: Layout
    logprobs: Tensor
    rollout_logprobs: Tensor

    @classmethod
    def of(
        cls, old_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor | None, cu_seqlens: Tensor | None
    ) -> "Mismatch":
        """Check the columns.

        Raises:
            ValueError: shapes disagree.
            NonFiniteError: a log-prob of a valid token is not finite.
        """
        columns = {"old_logprobs": old_logprobs, "rollout_logprobs": rollout_logprobs}
        layout = Layout.of(mask, cu_seqlens, **columns)
        selected = {}
        for name, column in columns.items():
            values = layout.select(column).detach().double()
            bad = int((~values.isfinite()).sum())
            if bad:
                raise NonFiniteError(
                    f"{name} holds {bad} valid tokens whose log-prob is not finite: no importance ratio follows from "
                    "them. Repair the engine that computed them, or clear these tokens in the mask.",
                    name,
                )
            selected[name] = values
        return cls(layout, selected["old_logprobs"], selected["rollout_logprobs"])

    @cached_property
    def log_ratio(self) -> Tensor:
        """``log(policy / rollout)`` per token, within +-1e6."""
        return (self.logprobs - self.rollout_logprobs).clamp(-DIFFERENCE_LIMIT, DIFFERENCE_LIMIT)

    @cached_property
    def bounded(self) -> Tensor:
        """`log_ratio` within +-20."""
        return self.log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)

    @cached_property
    def sequences(self) -> Tensor:
        """Bool (N,): sequences with at least one valid token."""
        return self.layout.counts() > 0

    def log_perplexities(self) -> tuple[Tensor, Tensor]:
        """Log-perplexities of the sequences with tokens under the policy and under the rollout, each log-prob within
        +-1e6."""
        policy, rollout = (
            -self.sequence_means(column.clamp(-DIFFERENCE_LIMIT, DIFFERENCE_LIMIT))[self.sequences]
            for column in (self.logprobs, self.rollout_logprobs)
        )
        return policy, rollout

    def sequence_sums(self, column: Tensor) -> Tensor:
        """(N,)."""
        return self.layout.sums(column)

    def sequence_means(self, column: Tensor) -> Tensor:
        """(N,); 0 for a sequence without valid tokens."""
        return self.layout.sums(column) / self.layout.counts().clamp(min=1)

    def sequence_maxima(self, column: Tensor) -> Tensor:
        """(N,) of a column that is never negative; 0 for a sequence without valid tokens."""
        selected = self.layout.select(column)
        if self.layout.cu_seqlens is None:
            return selected.amax(dim=1) if selected.shape[1] else selected.new_zeros(len(selected))
        return torch.segment_reduce(selected, "max", offsets=self.layout.cu_seqlens, axis=0, initial=0.0)


def finite_exp(exponents: Tensor) -> Tensor:
    """Of float64 numbers."""
    return exponents.clamp(max=_EXPONENT_LIMIT).exp()


def mean(values: Tensor) -> float:
    """Mean of a vector; 0 if it is empty."""
    return float(values.mean()) if len(values) else 0.0


def spread_of(name: str, values: Tensor) -> dict[str, float]:
    """``{name}_max`` and ``{name}_min`` of a vector; 0 if it is empty."""
    return {
        f"{name}_max": float(values.max()) if len(values) else 0.0,
        f"{name}_min": float(values.min()) if len(values) else 0.0,
    }


def std(values: Tensor, *, unbiased: bool) -> float:
    """Standard deviation of a vector; 0 for fewer than two elements."""
    return float(values.std(correction=int(unbiased))) if len(values) > 1 else 0.0
