"""Training sequences as arrays."""

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
