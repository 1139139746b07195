"""The weights of a sharded model under Hugging Face names."""

from collections.abc import Iterator

import torch
from torch.distributed.tensor import DTensor

from verl_engine.interface import WeightMetadata


class ShardedWeights:
    """`WeightSource` over a module's parameters; tied weights appear once, under their first name."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def metadata(self) -> list[WeightMetadata]:
        """Name, dtype and global shape of every weight."""
        return [
            WeightMetadata(name, parameter.dtype, tuple(parameter.shape))
            for name, parameter in self._module.named_parameters()
        ]

    def held_names(self) -> frozenset[str]:
        """Names of which this rank holds at least one element."""
        return frozenset(name for name, weight in self if local_part(weight).numel() > 0)

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield ``(name, tensor or DTensor)``; the tensors share memory with the model."""
        for name, parameter in self._module.named_parameters():
            yield name, parameter.detach()


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds of a tensor that may be sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
