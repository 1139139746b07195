"""Training sequences as arrays: padded ones for other people's training loops, the packed batch for ours."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from verl_data.batch import PackedBatch
from verl_data.columns import SequenceColumn, as_rows, lay_end_to_end
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

    Raises DataError for no sequences and for a tokenizer without padding token; ValueError for tokens that are no
    integers, masks that are neither booleans nor 0 and 1, and a multiple that is no integer of 1 or more.
    """
    if pad_token_id is None:
        raise DataError("The tokenizer has no padding token. Pass its eos_token_id: masks come from lengths.")
    if not sequences:
        raise DataError("There are no sequences to put into a batch.")
    if not isinstance(pad_token_id, (int, np.integer)):
        raise ValueError(f"A padding token is an integer, not {pad_token_id!r}.")
    if not (isinstance(pad_to_multiple_of, (int, np.integer)) and pad_to_multiple_of >= 1):
        raise ValueError(f"Sequences can be padded to a multiple of 1 token or more, not {pad_to_multiple_of!r}.")
    tokens, masks = _columns(sequences)
    longest = max(len(sequence) for sequence in sequences)
    width = -(-longest // pad_to_multiple_of) * pad_to_multiple_of
    input_ids = np.full((len(sequences), width), pad_token_id, dtype=np.int64)
    attention_mask = np.zeros_like(input_ids)
    labels = np.full_like(input_ids, IGNORE_INDEX)
    end = 0
    for row, sequence in enumerate(sequences):
        length = len(sequence)
        begin, end = end, end + length
        input_ids[row, :length] = tokens[begin:end]
        attention_mask[row, :length] = 1
        labels[row, :length] = np.where(masks[begin:end], tokens[begin:end], IGNORE_INDEX)
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


def pack_sequences(
    sequences: Sequence[SftSequence], columns: Mapping[str, SequenceColumn] | None = None
) -> PackedBatch:
    """Make the batch that a `TrainEngine` trains on: token columns `input_ids`, `sampled_mask` and `loss_mask`.

    The first token of a sequence is in no mask: nothing predicts it, so it must not count in a denominator either.

    Args:
        sequences: N sequences.
        columns: sequence columns to go with them.

    Raises DataError for sequences without tokens; ValueError for tokens that are no integers and masks that are neither
    booleans nor 0 and 1.
    """
    without = sum(1 for sequence in sequences if not len(sequence))
    if without:
        raise DataError(f"{without} of {len(sequences)} sequences have no tokens.")
    tokens, masks = _columns(sequences)
    cu_seqlens = np.cumsum([0, *map(len, sequences)], dtype=np.int64)
    masks[cu_seqlens[:-1]] = False
    return PackedBatch(cu_seqlens, {"input_ids": tokens, "sampled_mask": masks, "loss_mask": masks}, columns)


def _columns(sequences: Sequence[SftSequence]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the tokens and the masks of all sequences, end to end, new arrays by the rules of a packed batch."""
    tokens = as_rows("input_ids", (sequence.input_ids for sequence in sequences))
    masks = as_rows("loss_mask", (sequence.loss_mask for sequence in sequences))
    return lay_end_to_end("input_ids", tokens, "int64"), lay_end_to_end("loss_mask", masks, "bool")
