"""The losses that the trainer hands to the engines, put together from verl-algos by the configuration.

Each is a small picklable value: a mini-batch's loss is a sum over tokens or sequences divided by the mini-batch's own
global denominators, so micro-batches and ranks only add up.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from verl_algos import aggregation, kl, policy_losses, value_losses
from verl_algos.import_path import is_import_path
from verl_algos.loss_options import POLICY_LOSS_OPTIONS
from verl_data import PackedBatch
from verl_engine import Denominators, Metric, Metrics, Output

from verl_cli.columns import tensors
from verl_cli.config import ActorConfig, CriticConfig, RunConfig
from verl_cli.failures.own_code import own_failure

Tensors = Mapping[str, torch.Tensor]
Loss = tuple[torch.Tensor, Metrics]

#: What a run says of the actor (`actor/<name>`) besides a policy loss's own metrics.
_TAKEN = frozenset(
    {
        *("loss", "pg_loss", "entropy_loss", "kl_loss", "entropy", "lr", "grad_norm", "grad_norm_nonfinite"),
        *("reward_kl_penalty", "reward_kl_penalty_coeff"),
    }
)


def _share(part: torch.Tensor) -> Metric:
    """A loss that is divided already: the parts of a mini-batch add up, mini-batches are averaged."""
    return Metric(part.detach(), "sum", over_steps="mean")


def _means(pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> Metrics:
    """The (sum, count) pairs of verl-algos: means by its contract."""
    return {name: Metric.mean(total, count) for name, (total, count) in pairs.items()}


def _check_names(own: Iterable[str]) -> None:
    """Raise ValueError if a user's metric has a name that the run uses."""
    if taken := sorted(_TAKEN & set(own)):
        raise ValueError(
            f"it returned a metric {taken[0]!r}, which the run itself reports as actor/{taken[0]}. Rename it"
        )


@dataclass(frozen=True)
class ActorLoss:
    """Policy loss - entropy_coeff * entropy + kl_loss_coef * KL(policy, reference)."""

    config: ActorConfig
    name: str
    """The policy loss, by name or import path."""

    @classmethod
    def of(cls, config: RunConfig) -> "ActorLoss":
        """The actor's loss in a run."""
        return cls(config.actor_rollout_ref.actor, config.policy_loss)

    @property
    def outputs(self) -> tuple[Output, ...]:
        """Entropy is computed only where it has a gradient to give."""
        return ("logprobs", "entropy") if self.config.entropy_coeff else ("logprobs",)

    @property
    def options(self) -> dict[str, Any]:
        """What the configuration says to this policy loss."""
        if is_import_path(self.name):
            return dict(self.config.policy_loss.loss_kwargs)
        return {
            option: getattr(self.config if hasattr(self.config, option) else self.config.policy_loss, option)
            for option in POLICY_LOSS_OPTIONS[self.name]
        }

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

        try:
            per_token, pairs = policy_losses.compute(
                self.name,
                logprobs=outputs["logprobs"],
                old_logprobs=columns["old_logprobs"],
                advantages=columns["advantages"],
                mask=mask,
                cu_seqlens=cu_seqlens,
                rollout_weights=columns.get("rollout_weights"),
                covariance_selected=columns.get("covariance_selected"),
                **self.options,
            )
            if is_import_path(self.name):
                _check_names(pairs)
        except Exception as error:
            if is_import_path(self.name):  # whose mistakes are the user's to mend
                raise own_failure(f"actor_rollout_ref.actor.policy_loss.loss_mode={self.name}", error) from error
            raise
        loss = aggregate(per_token)
        metrics = {"pg_loss": _share(loss), **_means(pairs)}
        if config.entropy_coeff:
            entropy = aggregate(outputs["entropy"])
            metrics["entropy_loss"] = _share(entropy)
            loss = loss - config.entropy_coeff * entropy
        if config.use_kl_loss:
            kl_per_token, _ = kl.loss(
                config.kl_loss_type,
                logprobs=outputs["logprobs"],
                ref_logprobs=columns["ref_logprobs"],
                mask=mask,
                cu_seqlens=cu_seqlens,
            )
            divergence = aggregate(kl_per_token)
            metrics["kl_loss"] = _share(divergence)
            loss = loss + config.kl_loss_coef * divergence
        metrics["loss"] = _share(loss)
        return loss, metrics


def chosen_tokens(
    batch: PackedBatch, loss: ActorLoss, sequence_keys: np.ndarray, seed: Sequence[int]
) -> dict[str, np.ndarray]:
    """The column covariance_selected, bool (T,), of a mini-batch: the tokens that clip_cov or kl_cov treats apart.

    Args:
        batch: the whole mini-batch.
        loss: with the policy loss that chooses them.
        sequence_keys: (N,), different for every sequence.
        seed: names the draw.
    """
    columns = tensors(batch, "old_logprobs", "advantages", mask="loss_mask")
    selected = policy_losses.select_by_covariance(
        loss.name,
        logprobs=columns["old_logprobs"],
        advantages=columns["advantages"],
        mask=columns["mask"],
        cu_seqlens=columns["cu_seqlens"],
        seed=int(np.random.SeedSequence(list(seed)).generate_state(1, np.uint64)[0] >> np.uint64(1)),
        sequence_keys=torch.from_numpy(sequence_keys),
        **loss.options,
    )
    return {"covariance_selected": selected.numpy()}


@dataclass(frozen=True)
class CriticLoss:
    """Value loss, clipped or plain."""

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
