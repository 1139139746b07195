"""The losses that the trainer hands to the engines, put together from verl-algos by the configuration.

Each is a small picklable value: a mini-batch's loss is a sum over tokens or sequences divided by the mini-batch's own
global denominators, so micro-batches and ranks only add up.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from verl_algos import aggregation, kl, policy_losses, value_losses
from verl_engine import Denominators, MetricTerm, Output

from verl_cli.config import ActorConfig, CriticConfig

Tensors = Mapping[str, torch.Tensor]
Loss = tuple[torch.Tensor, dict[str, MetricTerm]]


@dataclass(frozen=True)
class ActorLoss:
    """Policy loss - entropy_coeff * entropy + kl_loss_coef * KL(policy, reference)."""

    config: ActorConfig

    @property
    def outputs(self) -> tuple[Output, ...]:
        """Entropy is computed only where it has a gradient to give."""
        return ("logprobs", "entropy") if self.config.entropy_coeff else ("logprobs",)

    def __call__(self, outputs: Tensors, columns: Tensors, denominators: Denominators) -> Loss:
        """See `verl_engine.Loss`."""
        config, mask, cu_seqlens = self.config, columns["loss_mask"], columns["cu_seqlens"]

        def aggregate(per_token: torch.Tensor) -> torch.Tensor:
            return aggregation.aggregate(
                per_token,
                mode=config.loss_agg_mode,
                denominators=denominators,
                mask=mask,
                cu_seqlens=cu_seqlens,
                scale=config.loss_scale_factor,
            )

        per_token, metrics = policy_losses.compute(
            config.policy_loss.loss_mode,
            logprobs=outputs["logprobs"],
            old_logprobs=columns["old_logprobs"],
            advantages=columns["advantages"],
            mask=mask,
            cu_seqlens=cu_seqlens,
            clip_ratio_low=config.clip_ratio_low,
            clip_ratio_high=config.clip_ratio_high,
            clip_ratio_c=config.clip_ratio_c,
        )
        loss = aggregate(per_token)
        terms: dict[str, MetricTerm] = {"pg_loss": (loss.detach(), None), **metrics}
        if config.entropy_coeff:
            entropy = aggregate(outputs["entropy"])
            terms["entropy_loss"] = (entropy.detach(), None)
            loss = loss - config.entropy_coeff * entropy
        if config.use_kl_loss:
            divergence = aggregate(kl.penalty(config.kl_loss_type, outputs["logprobs"], columns["ref_logprobs"]))
            terms["kl_loss"] = (divergence.detach(), None)
            loss = loss + config.kl_loss_coef * divergence
        terms["loss"] = (loss.detach(), None)
        return loss, terms


@dataclass(frozen=True)
class CriticLoss:
    """Clipped value loss."""

    config: CriticConfig

    @property
    def outputs(self) -> tuple[Output, ...]:
        """Only the values."""
        return ("values",)

    def __call__(self, outputs: Tensors, columns: Tensors, denominators: Denominators) -> Loss:
        """See `verl_engine.Loss`."""
        mask, cu_seqlens = columns["loss_mask"], columns["cu_seqlens"]
        per_token, metrics = value_losses.compute(
            values=outputs["values"],
            old_values=columns["values"],
            returns=columns["returns"],
            mask=mask,
            cu_seqlens=cu_seqlens,
            cliprange_value=self.config.cliprange_value,
        )
        loss = aggregation.aggregate(
            per_token,
            mode=self.config.loss_agg_mode,
            denominators=denominators,
            mask=mask,
            cu_seqlens=cu_seqlens,
            scale=self.config.loss_scale_factor,
        )
        return loss, {"vf_loss": (loss.detach(), None), **metrics}


@dataclass(frozen=True)
class SftLoss:
    """Mean negative log-likelihood of the trained tokens."""

    @property
    def outputs(self) -> tuple[Output, ...]:
        """Only the log-probs."""
        return ("logprobs",)

    def __call__(self, outputs: Tensors, columns: Tensors, denominators: Denominators) -> Loss:
        """See `verl_engine.Loss`."""
        loss = aggregation.aggregate(
            -outputs["logprobs"],
            mode="token-mean",
            denominators=denominators,
            mask=columns["loss_mask"],
            cu_seqlens=columns["cu_seqlens"],
        )
        return loss, {"loss": (loss.detach(), None)}
