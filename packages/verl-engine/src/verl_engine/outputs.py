"""From a packed batch to what a model says about its tokens: the one place where outputs are shifted by a token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from verl_data import PackedBatch

from verl_engine.interface import Output

# Distributions of which a sum is taken at a time where no gradient is asked for: bounds the temporary copy.
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class ModelInputs:
    """A packed batch as a transformers model takes it, and what it is asked about."""

    input_ids: torch.Tensor
    """(1, T) int64."""
    position_ids: torch.Tensor
    """(1, T) int64, counted from 0 in each sequence."""
    cu_seqlens: torch.Tensor
    """(N+1,) int32."""
    max_length: int
    """Tokens of the longest sequence."""
    targets: torch.Tensor
    """(K,) int64: the tokens that outputs speak about."""
    sources: torch.Tensor
    """(K,) int64: the token before each target, at which the model speaks about it."""


def next_token_targets(
    cu_seqlens: NDArray[np.int64], sampled_mask: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which tokens the model is asked about and where it answers: the shift by one, inside each sequence.

    `cu_seqlens` (N+1,), `sampled_mask` (T,) -> targets (K,), the sampled tokens except the first of a sequence, which
    has nothing before it; and sources (K,) = targets - 1.
    """
    asked = np.array(sampled_mask, dtype=bool)
    starts = cu_seqlens[:-1]
    asked[starts[starts < len(asked)]] = False
    targets = np.flatnonzero(asked)
    return targets, targets - 1


def model_inputs(batch: PackedBatch, device: torch.device) -> ModelInputs:
    """Prepare a packed batch, with columns input_ids and sampled_mask, for the model."""
    cu_seqlens, lengths = batch.cu_seqlens, batch.lengths
    targets, sources = next_token_targets(cu_seqlens, batch["sampled_mask"])
    positions = np.arange(batch.num_tokens, dtype=np.int64) - np.repeat(cu_seqlens[:-1], lengths)

    def on_device(array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(np.array(array)).to(device)

    return ModelInputs(
        input_ids=on_device(batch["input_ids"])[None],
        position_ids=on_device(positions)[None],
        cu_seqlens=on_device(cu_seqlens.astype(np.int32)),
        max_length=int(lengths.max()),
        targets=on_device(targets),
        sources=on_device(sources),
    )


def compute_outputs(
    model: torch.nn.Module, inputs: ModelInputs, outputs: Sequence[Output], temperature: float
) -> dict[str, torch.Tensor]:
    """Run the model and return each of `outputs` (T,), in float32 or wider, 0 where no token was sampled.

    `logprobs`, `entropy` and `sum_pi_squared` come from one tensor of logits divided by `temperature`; the vocabulary
    head runs only where the next token is a target, inside the model's own forward, which keeps what an architecture
    does to its logits.
    """
    packed = {
        "input_ids": inputs.input_ids,
        "position_ids": inputs.position_ids,
        "use_cache": False,
        "cu_seq_lens_q": inputs.cu_seqlens,
        "cu_seq_lens_k": inputs.cu_seqlens,
        "max_length_q": inputs.max_length,
        "max_length_k": inputs.max_length,
    }
    found: dict[str, torch.Tensor] = {}
    if "values" in outputs:
        values = model(**packed).logits[0, :, 0]
        found["values"] = _wide(values.index_select(0, inputs.sources))
    else:
        logits = _wide(model(**packed, logits_to_keep=inputs.sources).logits[0])
        if temperature != 1.0:
            logits = logits / temperature
        log_distribution = functional.log_softmax(logits, dim=-1)
        if "logprobs" in outputs:
            labels = inputs.input_ids[0].index_select(0, inputs.targets)
            found["logprobs"] = log_distribution.gather(-1, labels[:, None])[:, 0]
        if "entropy" in outputs:
            found["entropy"] = _of_each_row(_entropy, log_distribution)
        if "sum_pi_squared" in outputs:
            found["sum_pi_squared"] = _of_each_row(_sum_pi_squared, log_distribution)
    tokens = inputs.input_ids.shape[1]
    return {name: value.new_zeros(tokens).index_copy(0, inputs.targets, value) for name, value in found.items()}


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _of_each_row(statistic: Callable[[torch.Tensor], torch.Tensor], log_distribution: torch.Tensor) -> torch.Tensor:
    """A statistic of each row: (K, V) log-probs -> (K,). Without gradient, of a bounded number of rows at a time."""
    if torch.is_grad_enabled():
        return statistic(log_distribution)
    result = log_distribution.new_empty(log_distribution.shape[0])
    for start in range(0, log_distribution.shape[0], _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        result[rows] = statistic(log_distribution[rows])
    return result


def _entropy(log_distribution: torch.Tensor) -> torch.Tensor:
    """Entropy in nats."""
    return -(log_distribution.exp() * log_distribution).sum(-1)


def _sum_pi_squared(log_distribution: torch.Tensor) -> torch.Tensor:
    """``sum_v pi_v^2``: 1 over the vocabulary's size for a uniform distribution, 1 for a certain token."""
    return (2.0 * log_distribution).exp().sum(-1)
