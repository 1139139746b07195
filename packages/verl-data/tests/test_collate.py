"""Training sequences as arrays."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_data.collate import IGNORE_INDEX, collate_padded, pack_sequences
from verl_data.errors import DataError
from verl_data.sft import SftSequence

EOS = 2
sequences = st.lists(
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=6).map(
        lambda pairs: SftSequence([token for token, _ in pairs], [wanted for _, wanted in pairs])
    ),
    min_size=1,
    max_size=5,
)


def test_the_real_eos_keeps_its_label() -> None:
    """Bug bank A20: padding is EOS too, and masks come from lengths."""
    batch = collate_padded([SftSequence([5, 6, EOS], [True] * 3)], pad_token_id=EOS, pad_to_multiple_of=5)
    assert batch["input_ids"].tolist() == [[5, 6, 2, 2, 2]]
    assert batch["labels"].tolist() == [[5, 6, 2, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0]]
    assert {column.dtype.name for column in batch.values()} == {"int64"}


@settings(deadline=None)
@given(sequences, st.integers(0, 4), st.integers(1, 4))
def test_padding_takes_nothing_away_and_trains_nothing_more(rows: list[SftSequence], pad: int, multiple: int) -> None:
    batch = collate_padded(rows, pad_token_id=pad, pad_to_multiple_of=multiple)
    width = batch["input_ids"].shape[1]
    assert width % multiple == 0 and width - max(map(len, rows)) < multiple
    for row, ids, real, labels in zip(rows, *(batch[name] for name in batch), strict=True):
        assert ids[real == 1].tolist() == row.input_ids
        assert ids[real == 0].tolist() == [pad] * (width - len(row))
        assert (labels[: len(row)] != IGNORE_INDEX).tolist() == row.loss_mask
        assert np.all(labels[len(row) :] == IGNORE_INDEX)
        assert np.all(labels[labels != IGNORE_INDEX] == ids[labels != IGNORE_INDEX])


@settings(deadline=None)
@given(sequences)
def test_the_packed_batch_holds_the_same(rows: list[SftSequence]) -> None:
    batch = pack_sequences(rows, {"data_source": [str(n) for n in range(len(rows))]})
    assert [ids.tolist() for ids in batch.per_sequence("input_ids")] == [row.input_ids for row in rows]
    masks = [mask.tolist() for mask in batch.per_sequence("loss_mask")]
    assert masks == [[False, *row.loss_mask[1:]] for row in rows]  # nothing predicts a first token
    assert int(batch["loss_mask"].sum()) == sum(row.trained_tokens for row in rows)
    assert np.array_equal(batch["sampled_mask"], batch["loss_mask"])
    assert batch.select([0])["data_source"] == ["0"]


def test_what_cannot_be_a_batch() -> None:
    with pytest.raises(DataError, match="no padding token"):
        collate_padded([SftSequence([1], [True])], pad_token_id=None)
    with pytest.raises(DataError, match="no sequences"):
        collate_padded([], pad_token_id=0)
    with pytest.raises(DataError, match="1 of 2 sequences have no tokens"):
        pack_sequences([SftSequence([], []), SftSequence([1], [True])])
    assert len(pack_sequences([])) == 0


@pytest.mark.parametrize(
    ("input_ids", "loss_mask", "message"),
    [
        ([1.7, 2], [True, True], "'input_ids', row 1, is float64; it must hold integers"),
        (["1", "2"], [True, True], "'input_ids', row 1, is <U1"),
        ([2**63, 2**63], [True, True], "'input_ids', row 1, holds 9223372036854775808"),
        ([1, 2], [-100, 2], "'loss_mask', row 1, holds -100; it must hold booleans, or 0 and 1"),
        ([1, 2], [-100, 0], "'loss_mask', row 1, holds -100"),  # at a first token too, where nothing is trained
        ([1, 2], [0, 0.4], "'loss_mask', row 1, holds 0.4"),
        ([1, 2], ["True", "False"], "'loss_mask', row 1, is <U5"),
        ([1, 2], [True, None], "'loss_mask', row 1, is object"),
    ],
)
def test_tokens_and_masks_are_not_cast_to_other_values(input_ids: Any, loss_mask: Any, message: str) -> None:
    rows = [SftSequence([1], [True]), SftSequence(input_ids, loss_mask)]
    with pytest.raises(ValueError, match=message):
        collate_padded(rows, pad_token_id=0)
    with pytest.raises(ValueError, match=message):
        pack_sequences(rows)


def test_arrays_and_masks_of_0_and_1_are_taken() -> None:
    ids: Any = np.array([4, 5, 6], np.int32)
    mask: Any = [0, 1, 0]
    rows = [SftSequence(ids, mask), SftSequence([], []), SftSequence([7, 8], [True, True])]
    labels = collate_padded(rows, pad_token_id=0)["labels"]
    assert labels.tolist() == [[-100, 5, -100], [-100] * 3, [7, 8, -100]]
    assert pack_sequences([rows[0], rows[2]])["loss_mask"].tolist() == [False, True, False, False, True]
    assert ids.tolist() == [4, 5, 6] and mask == [0, 1, 0]


def test_how_to_pad_is_an_integer() -> None:
    rows = [SftSequence([1], [True])]
    multiple: Any
    for multiple in (0, -2, 1.5):
        with pytest.raises(ValueError, match=f"multiple of 1 token or more, not {multiple}"):
            collate_padded(rows, pad_token_id=0, pad_to_multiple_of=multiple)
    token: Any = 1.5
    with pytest.raises(ValueError, match=r"A padding token is an integer, not 1\.5"):
        collate_padded(rows, pad_token_id=token)
