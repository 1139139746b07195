"""The receiving half of a weight update: match every name and shape first, then copy, then verify what was copied."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from verl_rollout.checksum import add_up, weight_checksum
from verl_rollout.errors import RolloutError
from verl_rollout.interface import WeightMetadata, WeightStream

_NAMES_IN_ERROR = 8


@dataclass(frozen=True)
class Received:
    """What one update brought."""

    tensors: int
    bytes_received: int
    checksum: int


@dataclass(frozen=True)
class _Weight:
    tensor: torch.Tensor
    shape: tuple[int, ...]
    names: tuple[str, ...]
    """More than one where weights are tied: one storage, several names."""


class ModuleWeights:
    """The weights of a module, parameters and persistent buffers, each storage once."""

    def __init__(self, module: torch.nn.Module) -> None:
        names_of: dict[int, list[str]] = {}
        tensors: dict[int, torch.Tensor] = {}
        for name, tensor in module.state_dict(keep_vars=True).items():
            names_of.setdefault(id(tensor), []).append(name)
            tensors[id(tensor)] = tensor
        self._weights = [_Weight(tensor, tuple(tensor.shape), tuple(names_of[key])) for key, tensor in tensors.items()]

    def match(self, offered: Sequence[WeightMetadata]) -> dict[str, torch.Tensor]:
        """Find the tensor for every offered name; a tied weight may be offered under any one of its names.

        Raises:
            RolloutError: unless each weight is offered exactly once in its own shape. Nothing has been written then.
        """
        own = {name: weight for weight in self._weights for name in weight.names}
        matched: dict[str, torch.Tensor] = {}
        taken: dict[int, str] = {}
        problems: list[str] = []
        unknown: list[str] = []
        for name, _, shape in offered:
            weight = own.get(name)
            if weight is None:
                unknown.append(name)
            elif id(weight) in taken:
                problems.append(
                    f"the trainer offers {name} beside {taken[id(weight)]}, which are one tied weight in the rollout "
                    f"model"
                )
            elif tuple(shape) != weight.shape:
                problems.append(f"{name} has shape {tuple(shape)} in the trainer and {weight.shape} in the rollout")
                taken[id(weight)] = name
            else:
                taken[id(weight)] = name
                matched[name] = weight.tensor
        missing = [" = ".join(weight.names) for weight in self._weights if id(weight) not in taken]
        if unknown:
            problems.insert(0, f"only the trainer has {_listed(unknown)}")
        if missing:
            problems.insert(0, f"only the rollout has {_listed(missing)}")
        if problems:
            raise RolloutError(
                f"The trainer's weights do not match the rollout model's, and nothing was changed: "
                f"{'; '.join(problems)}. Both sides must load the same architecture with the same tying of "
                f"embeddings, under the same names: compare the two config.json, and rename in the weight source if a "
                f"wrapper adds a prefix."
            )
        return matched

    def receive(self, stream: WeightStream, matched: Mapping[str, torch.Tensor]) -> Received:
        """Copy every weight of the stream into its tensor, then compare checksums of what now lies there.

        Raises:
            RuntimeError: a weight is missing, comes twice or in another shape or dtype than announced, or a checksum
                differs; the module then holds a mix of weights.
        """
        sent: dict[str, int] = {}
        size = 0
        for name, tensor, checksum in stream.tensors({name: own.dtype for name, own in matched.items()}):
            own = matched.get(name)
            if own is None or name in sent or tensor.shape != own.shape or tensor.dtype != own.dtype:
                expected = "no such weight" if own is None else f"{own.dtype} {tuple(own.shape)}, once"
                raise RuntimeError(
                    f"Weight update {stream.version} brought {name} as {tensor.dtype} {tuple(tensor.shape)}, but "
                    f"announced {expected}. The weight source must yield exactly what its metadata() lists."
                )
            with torch.no_grad():
                own.copy_(tensor)
            sent[name] = checksum
            size += tensor.numel() * tensor.element_size()
        missing = [name for name in matched if name not in sent]
        if missing:
            raise RuntimeError(
                f"Weight update {stream.version} ended without {_listed(missing)}. The weight source must yield "
                f"exactly what its metadata() lists."
            )
        held = {name: weight_checksum(name, own) for name, own in matched.items()}
        differing = [name for name, checksum in held.items() if checksum != sent[name]]
        if differing:
            raise RuntimeError(
                f"Weight update {stream.version} arrived damaged: the checksum differs between trainer and rollout "
                f"for {_listed(differing)}. Either the transfer broke, or the trainer changed its weights while they "
                f"were read; send the update again."
            )
        return Received(len(held), size, add_up(held.values()))

    def checksum(self, matched: Mapping[str, torch.Tensor] | None = None) -> int:
        """The checksum of the weights as they are, under the given names or each storage's first."""
        named = matched if matched is not None else {weight.names[0]: weight.tensor for weight in self._weights}
        return add_up(weight_checksum(name, tensor) for name, tensor in named.items())

    def move(self, device: torch.device | str) -> None:
        """Move the weights, keeping their values and their tying."""
        for weight in self._weights:
            weight.tensor.data = weight.tensor.data.to(device)

    def drop(self) -> None:
        """Free the weights' memory."""
        for weight in self._weights:
            weight.tensor.data = weight.tensor.data.new_empty(0)

    def allocate(self, device: torch.device | str) -> None:
        """Allocate dropped weights again; their values are undefined until the next update."""
        for weight in self._weights:
            weight.tensor.data = torch.empty(weight.shape, dtype=weight.tensor.dtype, device=device)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMES_IN_ERROR])
    return shown if len(names) <= _NAMES_IN_ERROR else f"{shown} and {len(names) - _NAMES_IN_ERROR} more"
