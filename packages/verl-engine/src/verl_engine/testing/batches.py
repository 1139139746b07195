"""Random packed batches with every column that the losses of this kit read."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from verl_data import PackedBatch

from verl_engine.interface import Denominators


def random_batch(seed: int, lengths: Sequence[int], vocab_size: int = 32) -> PackedBatch:
    """Return a batch of sequences of `lengths` tokens: the first third is prompt, one sampled token in eight is not "
    "trained."""
    rng = np.random.default_rng(seed)

    def column(make: str) -> list[NDArray[np.float32]]:
        return [getattr(rng, make)(size=length).astype(np.float32) for length in lengths]

    sampled = [np.arange(length) >= max(1, length // 3) for length in lengths]
    return PackedBatch.from_sequences(
        {
            "input_ids": [rng.integers(0, vocab_size, length) for length in lengths],
            "sampled_mask": sampled,
            "loss_mask": [mask & (rng.random(len(mask)) > 0.125) for mask in sampled],
            "old_logprobs": [-3 - draw for draw in column("random")],
            "advantages": column("standard_normal"),
            "returns": column("standard_normal"),
        }
    )


def count(batch: PackedBatch) -> Denominators:
    """Return the denominators of a whole mini-batch."""
    trained = [bool(mask.any()) for mask in batch.per_sequence("loss_mask")]
    return Denominators(float(batch["loss_mask"].sum()), float(sum(trained)))
