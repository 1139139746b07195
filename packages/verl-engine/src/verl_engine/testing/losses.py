"""Small losses that exercise an engine; the real ones are in verl-algos."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from verl_engine.interface import Denominators, Output
from verl_engine.metrics import Metric, Metrics


@dataclass(frozen=True)
class PolicyLoss:
    """Importance-weighted policy gradient, token mean, with an optional entropy bonus."""

    entropy_coeff: float = 0.0
    """Weight of the entropy bonus; 0 asks the engine for no entropy."""
    scale: float = 1.0
    """Factor of the whole loss; NaN and infinity poison the gradient."""

    @property
    def outputs(self) -> Sequence[Output]:
        """Log-probs, and the entropy where it is used."""
        return ("logprobs", "entropy") if self.entropy_coeff else ("logprobs",)

    def __call__(
        self, outputs: Mapping[str, torch.Tensor], columns: Mapping[str, torch.Tensor], denominators: Denominators
    ) -> tuple[torch.Tensor, Metrics]:
        """Return the share; metrics loss, micro_batches, off_policy_tokens (log-probs unequal to the old), logprob."""
        mask = columns["loss_mask"]
        change = outputs["logprobs"] - columns["old_logprobs"]
        loss = -(columns["advantages"] * change.exp() * mask).sum() / denominators.tokens
        if self.entropy_coeff:
            loss = loss - self.entropy_coeff * (outputs["entropy"] * mask).sum() / denominators.tokens
        loss = self.scale * loss
        return loss, {
            "loss": Metric(loss, "sum", over_steps="mean"),
            "micro_batches": Metric(1.0, "sum"),
            "off_policy_tokens": Metric(((change != 0) & mask).sum(), "sum"),
            "logprob": Metric.mean((outputs["logprobs"] * mask).sum(), mask.sum()),
        }


@dataclass(frozen=True)
class ValueLoss:
    """Half the squared error of the values, token mean."""

    outputs: Sequence[Output] = ("values",)

    def __call__(
        self, outputs: Mapping[str, torch.Tensor], columns: Mapping[str, torch.Tensor], denominators: Denominators
    ) -> tuple[torch.Tensor, Metrics]:
        """Return the loss share; metric `loss`."""
        error = (outputs["values"] - columns["returns"]) * columns["loss_mask"]
        loss = 0.5 * error.square().sum() / denominators.tokens
        return loss, {"loss": Metric(loss, "sum", over_steps="mean")}
