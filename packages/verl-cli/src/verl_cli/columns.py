"""The driver's bridge between the batch (numpy) and verl-algos (torch)."""

import torch
from verl_algos import aggregation
from verl_data import PackedBatch
from verl_engine import Denominators


def tensors(batch: PackedBatch, *names: str, mask: str) -> dict[str, torch.Tensor]:
    """The named columns (those that the batch has), `mask` and `cu_seqlens`: the arguments of a verl-algos function."""
    columns = {name: batch[name] for name in names if name in batch}
    return {
        name: torch.tensor(column)
        for name, column in {**columns, "mask": batch[mask], "cu_seqlens": batch.cu_seqlens}.items()
    }


def loss_denominators(batch: PackedBatch) -> Denominators:
    """Count what a mini-batch's loss is divided by; after the last edit of `loss_mask`."""
    return Denominators(*aggregation.count(**tensors(batch, mask="loss_mask")))
