"""Training sequences as arrays: padded ones for other people's training loops, the packed batch for ours."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from verl_data.batch import PackedBatch
from verl_data.columns import SequenceColumn
from verl_data.errors import DataError
from verl_data.sft import SftSequence

#: The label that loss functions leave out: `ignore_index` of torch's cross-entropy.
IGNORE_INDEX = -100


def collate_padded(
    sequences: Sequence[SftSequence], *, pad_token_id: int | None, pad_to_multiple_of: int = 1
) -> dict[str, NDArray[np.int64]]:
    """Pad sequences on the right to the longest, for pipelines that train on padded batches.

    What is padding follows from lengths and what is trained from masks, never from the value of a token: where the
    padding token is also EOS, the EOS of a response stays trained.

    Args:
        sequences: B sequences.
        pad_token_id: what fills up `input_ids`.
        pad_to_multiple_of: T is rounded up to a multiple of this many tokens.

    Returns:
        `input_ids`, `attention_mask` (1 on real tokens) and `labels` (the token where it is trained, else -100), each
        (B, T) int64; labels are not shifted, as Hugging Face models expect them.

    Raises DataError for no sequences and for a tokenizer without padding token.
    """
    if pad_token_id is None:
        raise DataError("The tokenizer has no padding token. Pass its eos_token_id: masks come from lengths.")
    if not sequences:
        raise DataError("There are no sequences to put into a batch.")
    longest = max(len(sequence) for sequence in sequences)
    width = -(-longest // pad_to_multiple_of) * pad_to_multiple_of
    input_ids = np.full((len(sequences), width), pad_token_id, dtype=np.int64)
    attention_mask = np.zeros_like(input_ids)
    labels = np.full_like(input_ids, IGNORE_INDEX)
    for row, sequence in enumerate(sequences):
        length = len(sequence)
        input_ids[row, :length] = sequence.input_ids
        attention_mask[row, :length] = 1
        labels[row, :length] = np.where(sequence.loss_mask, input_ids[row, :length], IGNORE_INDEX)
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


def pack_sequences(
    sequences: Sequence[SftSequence], columns: Mapping[str, SequenceColumn] | None = None
) -> PackedBatch:
    """Make the batch that a `TrainEngine` trains on: token columns `input_ids`, `sampled_mask` and `loss_mask`.

    The first token of a sequence is in no mask: nothing predicts it, so it must not count in a denominator either.

    Args:
        sequences: N sequences.
        columns: sequence columns to go with them.
    """
    masks = [[False, *sequence.loss_mask[1:]] for sequence in sequences if len(sequence)]
    filled = [sequence.input_ids for sequence in sequences if len(sequence)]
    if len(filled) < len(sequences):
        raise DataError(f"{len(sequences) - len(filled)} of {len(sequences)} sequences have no tokens.")
    return PackedBatch.from_sequences({"input_ids": filled, "sampled_mask": masks, "loss_mask": masks}, columns)
