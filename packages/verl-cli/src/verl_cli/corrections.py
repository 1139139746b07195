"""The rollout correction of a step: weights and an edited loss mask, before denominators are counted."""

from collections.abc import Mapping

import numpy as np
import torch
from verl_algos import rollout_correction
from verl_data import PackedBatch
from verl_engine import Metric, Metrics

from verl_cli.columns import tensors
from verl_cli.config import RolloutCorrectionConfig


def corrected(
    batch: PackedBatch, config: RolloutCorrectionConfig, logprobs: np.ndarray
) -> tuple[PackedBatch, dict[str, float]]:
    """Edit `loss_mask` and add `rollout_weights`, if there are any; and the metrics rollout_corr/*.

    Args:
        batch: with rollout_logprobs.
        config: what to weight by and what to reject.
        logprobs: (T,), of the policy that is trained.
    """
    columns = tensors(batch, "rollout_logprobs", mask="loss_mask")
    weighted = config.rollout_is is not None and not (config.bypass_mode and config.loss_type == "ppo_clip")
    correction = rollout_correction.correct(
        old_logprobs=torch.tensor(logprobs),
        rollout_logprobs=columns["rollout_logprobs"],
        mask=columns["mask"],
        cu_seqlens=columns["cu_seqlens"],
        rollout_is=config.rollout_is if weighted else None,
        rollout_is_threshold=config.rollout_is_threshold,
        rollout_is_batch_normalize=weighted and config.rollout_is_batch_normalize,
        rollout_rs=config.rollout_rs,
        rollout_rs_threshold=config.rollout_rs_threshold,
    )
    edited: dict[str, np.ndarray] = {"loss_mask": correction.mask.numpy()}
    if correction.weights is not None:
        edited["rollout_weights"] = correction.weights.numpy()
    return batch.with_columns(tokens=edited), correction.metrics


def as_metrics(numbers: Mapping[str, float]) -> Metrics:
    """The numbers of one mini-batch, so that those of a step combine: extremes, and means of all others."""
    return {
        name: Metric(value, "max" if name.endswith("_max") else "min" if name.endswith("_min") else "mean")
        for name, value in numbers.items()
    }
