"""The driver's bridge between the batch (numpy) and verl-algos (torch)."""

import numpy as np
import torch
from verl_algos import aggregation
from verl_data import PackedBatch
from verl_engine import Denominators


def tensors(batch: PackedBatch, *names: str, mask: str | np.ndarray) -> dict[str, torch.Tensor]:
    """The named columns (those that the batch has), `mask` and `cu_seqlens`: the arguments of a verl-algos function."""
    tokens = batch[mask] if isinstance(mask, str) else mask
    columns = {name: batch[name] for name in names if name in batch}
    return {
        name: torch.tensor(column)
        for name, column in {**columns, "mask": tokens, "cu_seqlens": batch.cu_seqlens}.items()
    }


def loss_denominators(batch: PackedBatch) -> Denominators:
    """Count what a mini-batch's loss is divided by; after the last edit of `loss_mask`."""
    return Denominators(*aggregation.count(**tensors(batch, mask="loss_mask")))


def scored_tokens(batch: PackedBatch, column: str = "sampled_mask") -> np.ndarray:
    """`column`, a mask of tokens, without the responses that could not be scored (NaN in "reward"), bool (T,)."""
    mask: np.ndarray = batch[column] & np.repeat(~np.isnan(batch["reward"]), np.diff(batch.cu_seqlens))
    return mask
