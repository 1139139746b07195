"""The losses that the trainer hands to the engines, put together from verl-algos by the configuration.

Each is a small picklable value: a mini-batch's loss is a sum over tokens or sequences divided by the mini-batch's own
global denominators, so micro-batches and ranks only add up.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from verl_algos import aggregation, kl, policy_losses, value_losses
from verl_engine import Denominators, Metric, Metrics, Output

from verl_cli.config import ActorConfig, CriticConfig

Tensors = Mapping[str, torch.Tensor]
Loss = tuple[torch.Tensor, Metrics]


def _share(part: torch.Tensor) -> Metric:
    """A loss that is divided already: the parts of a mini-batch add up, mini-batches are averaged."""
    return Metric(part.detach(), "sum", over_steps="mean")


def _means(pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> Metrics:
    """The (sum, count) pairs of verl-algos: means by its contract."""
    return {name: Metric.mean(total, count) for name, (total, count) in pairs.items()}


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

        per_token, pairs = policy_losses.compute(
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
        metrics = {"pg_loss": _share(loss), **_means(pairs)}
        if config.entropy_coeff:
            entropy = aggregate(outputs["entropy"])
            metrics["entropy_loss"] = _share(entropy)
            loss = loss - config.entropy_coeff * entropy
        if config.use_kl_loss:
            divergence = aggregate(kl.penalty(config.kl_loss_type, outputs["logprobs"], columns["ref_logprobs"]))
            metrics["kl_loss"] = _share(divergence)
            loss = loss + config.kl_loss_coef * divergence
        metrics["loss"] = _share(loss)
        return loss, metrics


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
        per_token, pairs = value_losses.compute(
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
        return loss, {"vf_loss": _share(loss), **_means(pairs)}


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
        return loss, {"loss": _share(loss)}
