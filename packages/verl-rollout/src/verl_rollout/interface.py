"""What a rollout engine is: the protocol that every backend implements."""

import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import numpy as np

from verl_rollout.errors import RolloutError

if TYPE_CHECKING:
    import torch

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True)
class Request:
    """One response to generate: n responses of a prompt are n requests, made in one place, the trainer."""

    prompt_ids: Sequence[int]
    key: tuple[int, ...]
    """Names the request's random stream together with the sampling seed: the same key, seed and weights give the same
    response, in any batch. The trainer uses (step, row, repeat). Each part is a signed 64-bit integer."""

    def __post_init__(self) -> None:
        if len(self.prompt_ids) == 0:
            raise RolloutError(
                f"Request {self.key} has an empty prompt, so there is nothing to continue. Give it at least one "
                f"token, for example the tokenizer's beginning-of-sequence id."
            )


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn."""

    max_tokens: int
    """Most new tokens of a response."""
    temperature: float = 1.0
    """Divides the logits; 0 takes the likeliest token."""
    top_p: float = 1.0
    top_k: int = -1
    """-1 keeps all tokens."""
    seed: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    """Ends a response, besides the model's own end-of-sequence ids; kept as its last token."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise RolloutError(
                f"max_tokens is {self.max_tokens}; a response has at least one token, so set it to 1 or more."
            )
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise RolloutError(
                f"temperature is {self.temperature}; set it to 0 (the likeliest token) or a positive number."
            )
        if not 0 < self.top_p <= 1:
            raise RolloutError(
                f"top_p is {self.top_p}; it is a probability mass, so set it above 0 and at most 1 (keeps all)."
            )
        if self.top_k != -1 and self.top_k < 1:
            raise RolloutError(
                f"top_k is {self.top_k}; set it to a number of tokens, at least 1, or to -1 to keep all."
            )


@dataclass(frozen=True)
class Completion:
    """One finished response."""

    request: Request
    token_ids: np.ndarray
    """(R,) int64, the end-of-sequence token included where one was sampled."""
    logprobs: np.ndarray
    """(R,) float32, of each sampled token under softmax(logits / temperature) over the whole vocabulary."""
    finish_reason: FinishReason
    weight_version: int


@dataclass(frozen=True)
class SyncReport:
    """What one weight update did."""

    version: int
    tensors: int
    bytes_received: int
    checksum: int
    """Equal on both sides, or the update would have failed."""
    seconds: float
    changed: bool = field(default=True)
    """False when every weight equals the version before, which a training step should never give."""


class WeightMetadata(NamedTuple):
    """One weight as Hugging Face names it."""

    name: str
    dtype: "torch.dtype"
    shape: tuple[int, ...]


class WeightSource(Protocol):
    """A trainer's current weights, as a rollout engine needs them; can be iterated any number of times."""

    def metadata(self) -> "Sequence[tuple[str, torch.dtype, tuple[int, ...]]]":
        """``(name, dtype, global shape)`` of every weight, under Hugging Face names; tied weights appear once."""
        ...

    def __iter__(self) -> "Iterator[tuple[str, torch.Tensor]]":
        """Yield ``(name, tensor or DTensor)`` of every weight; all ranks of a sharded source iterate together."""
        ...


class SentWeight(NamedTuple):
    """One whole weight on its way, already in the rollout's dtype."""

    name: str
    tensor: "torch.Tensor"
    checksum: int
    """`verl_rollout.checksum.weight_checksum` of `tensor`, computed by the sender."""


class WeightStream(Protocol):
    """One version of a trainer's weights on offer."""

    @property
    def version(self) -> int:
        """The version of the weights."""
        ...

    def metadata(self) -> list[WeightMetadata]:
        """Every weight on offer, so that a receiver can check names and shapes before it takes any."""
        ...

    def tensors(self, dtypes: "Mapping[str, torch.dtype]") -> Iterator[SentWeight]:
        """Yield every weight once, cast to the receiver's dtype before it travels."""
        ...


class Endpoint(Protocol):
    """Where a sender and a receiver of weights meet; a transport implements it."""

    def put(self, stream: WeightStream) -> None:
        """Offer a version of the weights, in place of any earlier offer that nobody took."""
        ...

    def take(self) -> WeightStream:
        """Take the offer; each is taken once."""
        ...


class RolloutEngine(Protocol):
    """A model that generates, with weights that follow the trainer's."""

    @property
    def version(self) -> int:
        """The version of the weights in use; 0 is the model folder's own."""
        ...

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Generate one completion per request, in the order of the requests."""
        ...

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> AsyncIterator[Completion]:
        """Generate the same completions, each handed over as soon as it is finished."""
        ...

    def receive_weights(self, endpoint: Endpoint, version: int) -> SyncReport:
        """Take the weights that a `WeightSender` put on `endpoint`, verify them, and drop caches of the old ones."""
        ...

    def update_weights(self, source: WeightSource, version: int) -> SyncReport:
        """Do both halves of a weight update in one process."""
        ...

    def sleep(self, level: Literal[1, 2]) -> None:
        """Free the accelerator: level 1 keeps the weights in host memory, level 2 drops them until the next update."""
        ...

    def wake(self) -> None:
        """Make ready to generate again."""
        ...
