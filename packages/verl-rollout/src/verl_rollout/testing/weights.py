"""Weight sources that stand in for a trainer."""

from collections.abc import Iterator, Mapping

import torch

from verl_rollout.interface import WeightMetadata


class TensorSource:
    """A `WeightSource` over tensors by name."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = dict(tensors)

    def metadata(self) -> list[WeightMetadata]:
        """Every tensor, in the mapping's order."""
        return [WeightMetadata(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in self._tensors.items()]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor with its name."""
        yield from self._tensors.items()


class ModuleSource(TensorSource):
    """A `WeightSource` over a module's parameters, tied ones once; it follows the module."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__(dict(module.named_parameters()))
