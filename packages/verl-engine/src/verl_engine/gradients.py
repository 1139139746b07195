"""The global norm of sharded gradients, and clipping by it."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor


def local_gradients(parameters: Iterable[torch.nn.Parameter]) -> list[torch.Tensor]:
    """Return this rank's shard of every gradient that exists."""
    gradients = (parameter.grad for parameter in parameters)
    return [
        gradient.to_local() if isinstance(gradient, DTensor) else gradient
        for gradient in gradients
        if gradient is not None
    ]


def global_norm(shards: list[torch.Tensor], device: torch.device) -> float:
    """Return the 2-norm over all ranks of gradients of which each rank holds disjoint `shards`; the same on every rank.

    Squares are added up in float64, so that the norm does not depend on how many ranks share the work.
    """
    total = torch.zeros((), dtype=torch.float64, device=device)
    if shards:
        total += torch.stack(torch._foreach_norm(shards)).double().square().sum()
    if dist.get_world_size() > 1:
        dist.all_reduce(total)
    return float(total.sqrt())


def clip(shards: list[torch.Tensor], norm: float, largest: float) -> None:
    """Scale gradients of global norm `norm` in place to at most `largest`, as torch's clip_grad_norm_ does."""
    scale = largest / (norm + 1e-6)
    if shards and scale < 1:
        torch._foreach_mul_(shards, scale)
