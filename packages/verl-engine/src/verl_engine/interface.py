"""What a training engine is: the protocol that every backend implements."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch
from verl_data import PackedBatch

from verl_engine.metrics import Metrics

Output = Literal["logprobs", "entropy", "sum_pi_squared", "values"]
"""What a model says about each sampled token t, given the tokens before it: the log-probability of token t; of the
distribution that it was sampled from, softmax(logits / temperature), the entropy in nats and the sum of the squared
probabilities, ``sum_v pi_v^2`` (the token baselines weigh by it); and the value of the state. Values come from a value
head, all others from a language-model head."""
Part = Literal["params", "grads", "optimizer"]


class Denominators(NamedTuple):
    """What a mini-batch's loss is divided by, counted over all ranks, so that no split of it changes the gradient."""

    tokens: float
    """Tokens with loss_mask set."""
    sequences: float
    """Sequences with at least one such token."""


class Loss(Protocol):
    """A loss over one packed micro-batch."""

    def __call__(
        self,
        outputs: Mapping[str, torch.Tensor],
        columns: Mapping[str, torch.Tensor],
        denominators: Denominators,
    ) -> tuple[torch.Tensor, Metrics]:
        """Return this micro-batch's share of the loss (a sum already divided by `denominators`) and its metrics.

        `outputs` holds what the model computed, each (T,), with gradient; `columns` the batch's numeric token columns
        (T,), its sequence columns (N,) and `cu_seqlens` (N+1,).
        """
        ...

    @property
    def outputs(self) -> Sequence[Output]:
        """The outputs that the loss needs from the model."""
        ...


class WeightMetadata(NamedTuple):
    """One weight as Hugging Face names it."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    """Global shape, whatever part of it a rank holds."""


class WeightSource(Protocol):
    """An engine's current weights under Hugging Face names; can be iterated any number of times."""

    def metadata(self) -> list[WeightMetadata]:
        """Every weight of the model, in the same order on every rank; tied weights appear once."""
        ...

    def held_names(self) -> frozenset[str]:
        """The names of which this rank holds at least a part."""
        ...

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield ``(name, tensor or DTensor)`` in the order of `metadata`; collective: all ranks iterate together."""
        ...


class TrainEngine(Protocol):
    """A model with its optimiser, sharded over ranks, that works on packed sequences."""

    def forward(self, batch: PackedBatch, outputs: Sequence[Output], adapter: bool = True) -> dict[str, np.ndarray]:
        """Compute token columns (T,), float32, in the batch's own order, without gradient; 0 where undefined.

        `adapter=False` computes with the base weights of a model that trains an adapter.
        """
        ...

    def train_batch(self, batch: PackedBatch, loss: Loss, denominators: Denominators) -> Metrics:
        """Take one optimiser step on this rank's share of a mini-batch; the metrics are those of this rank's part.

        `merge_metrics` puts the ranks together.
        """
        ...

    def weights(self) -> WeightSource:
        """The current weights, for a rollout engine or an export."""
        ...

    def save(self, directory: Path) -> None:
        """Write everything that `load` needs to go on exactly here: parameters, optimiser, learning-rate schedule."""
        ...

    def load(self, directory: Path) -> None:
        """Go on from what `save` wrote."""
        ...

    def export(self, directory: Path) -> None:
        """Write an ordinary Hugging Face folder: config, safetensors and tokenizer."""
        ...

    def onload(self, parts: Sequence[Part]) -> None:
        """Bring parts back to the accelerator."""
        ...

    def offload(self, parts: Sequence[Part]) -> None:
        """Move parts to host memory; gradients are dropped."""
        ...
