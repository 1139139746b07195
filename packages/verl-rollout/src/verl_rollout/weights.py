"""The sending half of a weight update: a stream of a trainer's weights, cast and checksummed, and its endpoint."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor

from verl_rollout.checksum import weight_checksum
from verl_rollout.interface import Endpoint, SentWeight, WeightMetadata, WeightSource, WeightStream


class WeightSender:
    """Sends a source's weights to whoever receives at the endpoint."""

    def __init__(self, source: WeightSource, endpoint: Endpoint) -> None:
        self._source = source
        self._endpoint = endpoint

    def send(self, version: int) -> None:
        """Offer the source's current weights as `version`.

        In-process, tensors are read only when the receiver pulls them, so the source must not change before that.
        """
        self._endpoint.put(_SourceStream(self._source, version))


class InProcessEndpoint:
    """Sender and receiver in one process: the receiver pulls weight after weight, so the model is never copied."""

    def __init__(self) -> None:
        self._stream: WeightStream | None = None

    def put(self, stream: WeightStream) -> None:
        """Offer a version of the weights, in place of any earlier offer that nobody took."""
        self._stream = stream

    def take(self) -> WeightStream:
        """Take the offer."""
        if self._stream is None:
            raise RuntimeError(
                "There are no weights at this endpoint, so there is nothing to receive. In one process the sender "
                "comes first: call WeightSender(source, endpoint).send(version) before receive_weights(endpoint, "
                "version), once for each update."
            )
        stream, self._stream = self._stream, None
        return stream


@dataclass(frozen=True)
class _SourceStream:
    """A source's weights, gathered, cast and checksummed one by one as they are pulled."""

    source: WeightSource
    version: int

    def metadata(self) -> list[WeightMetadata]:
        return [WeightMetadata(name, dtype, tuple(shape)) for name, dtype, shape in self.source.metadata()]

    def tensors(self, dtypes: Mapping[str, torch.dtype]) -> Iterator[SentWeight]:
        for name, tensor in self.source:
            if name not in dtypes:
                raise RuntimeError(
                    f"The weight source yields {name}, which its metadata() does not list. Both must name the same "
                    f"weights."
                )
            whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            cast = whole.detach().to(dtypes[name])
            yield SentWeight(name, cast, weight_checksum(name, cast))
