from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_data import PackedBatch, balance, pack
from verl_data.packing import attention_work

lengths = st.lists(st.integers(0, 50), max_size=40)


def test_balance_on_the_published_cases() -> None:
    ten_to_three = list(range(10, 2, -1))
    assert [sum(ten_to_three[row] for row in part) for part in balance(ten_to_three, 2)] == [26, 26]
    five = [8, 7, 6, 5, 4]
    assert sorted(sum(five[row] for row in part) for part in balance(five, 3)) == [8, 11, 11]
    assert attention_work([1, 1024, 32768]).tolist() == [24577, 26214400, 1879048192]


@settings(deadline=None)
@given(lengths, st.integers(1, 7))
def test_balance_covers_every_row_once_and_is_close_to_even(sizes: list[int], k: int) -> None:
    parts = balance(sizes, k)
    assert len(parts) == k
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(sizes)))
    firsts = [part[0] for part in parts if len(part)]
    assert firsts == sorted(firsts)
    assert all(np.all(np.diff(part) > 0) for part in parts)
    sums = [sum(sizes[row] for row in part) for part in parts]
    assert max(sums) - min(sums) <= max(sizes, default=0)  # differencing never leaves more than the largest item
    assert [part.tolist() for part in balance(np.array(sizes, dtype=np.int64), k)] == [part.tolist() for part in parts]


def longest_first(sizes: list[int], k: int) -> int:
    """The largest part of the greedy split, written anew."""
    sums = [0] * k
    for size in sorted(sizes, reverse=True):
        sums[sums.index(min(sums))] += size
    return max(sums)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 7))
def test_balance_is_never_worse_than_greedy(sizes: list[int], k: int) -> None:
    assert max(sum(sizes[row] for row in part) for part in balance(sizes, k)) <= longest_first(sizes, k)


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=7), st.integers(2, 3))
def test_balance_is_within_its_bound_of_the_best_split(sizes: list[int], k: int) -> None:
    def largest(parts: tuple[int, ...]) -> int:
        return max(sum(size for size, part in zip(sizes, parts, strict=True) if part == wanted) for wanted in range(k))

    best = min(largest(parts) for parts in product(range(k), repeat=len(sizes)))
    ours = max(sum(sizes[row] for row in part) for part in balance(sizes, k))
    assert best <= ours <= (4 / 3 - 1 / (3 * k)) * best


def test_greedy_is_taken_where_differencing_is_worse() -> None:
    sizes = [3, 3, 5, 7, 2, 8, 3, 10]  # differencing alone: 15
    assert max(sum(sizes[row] for row in part) for part in balance(sizes, 3)) == 14


def test_balance_of_many_sequences_is_nearly_exact() -> None:
    work = np.random.default_rng(0).integers(1, 10_000, 2048)
    sums = [work[part].sum() for part in balance(work, 16)]
    assert max(sums) / (work.sum() / 16) < 1.0001


def test_rows_come_back_in_their_own_order() -> None:
    """Bug bank D05: micro-batches are a plan over rows, and what they compute goes back to the rows."""
    sizes = [5, 1, 4, 2]
    plan = pack(sizes, max_tokens=6, max_sequences=None)
    assert [rows.tolist() for rows in plan] == [[0, 1], [2, 3]]
    batch = PackedBatch.from_sequences({"input_ids": [[row] * size for row, size in enumerate(sizes)]})
    out = np.full(4, -1)
    for rows in plan:
        micro_batch = batch.select(rows)
        out[rows] = [part[0] for part in micro_batch.per_sequence("input_ids")]
    assert out.tolist() == [0, 1, 2, 3]


def test_the_budget_counts_real_tokens() -> None:
    """Bug bank D07: a padded width does not exist."""
    assert [rows.tolist() for rows in pack([3, 5], max_tokens=16, max_sequences=None)] == [[0, 1]]


def test_the_budget_is_a_hard_cap() -> None:
    assert [rows.tolist() for rows in pack([6, 6, 6], max_tokens=10, max_sequences=None)] == [[0], [1], [2]]
    with pytest.raises(ValueError, match=r"Sequence 1 has 11 tokens.*\(10 tokens\)"):
        pack([6, 11], max_tokens=10, max_sequences=None)


def test_a_cap_on_sequences_alone_gives_consecutive_rows() -> None:
    assert [rows.tolist() for rows in pack([9, 1, 9, 1, 9], max_tokens=None, max_sequences=2)] == [[0, 1], [2, 3], [4]]
    assert [rows.tolist() for rows in pack([9, 1], max_tokens=None, max_sequences=None)] == [[0, 1]]
    assert pack([], max_tokens=None, max_sequences=2) == []
    with pytest.raises(ValueError, match="max_sequences is 0"):
        pack([1], max_tokens=None, max_sequences=0)
    with pytest.raises(ValueError, match="not 0"):
        balance([1], 0)


@settings(deadline=None)
@given(lengths, st.integers(50, 120), st.none() | st.integers(1, 5))
def test_pack_keeps_both_caps(sizes: list[int], max_tokens: int, max_sequences: int | None) -> None:
    plan = pack(sizes, max_tokens=max_tokens, max_sequences=max_sequences)
    assert sorted(row for rows in plan for row in rows) == list(range(len(sizes)))
    for rows in plan:
        assert 0 < len(rows) <= (max_sequences or len(sizes))
        assert sum(sizes[row] for row in rows) <= max_tokens
        assert rows.dtype == np.int64 and np.all(np.diff(rows) > 0)
    firsts = [int(rows[0]) for rows in plan]
    assert firsts == sorted(firsts)
    again = pack(np.array(sizes, np.int32), max_tokens=max_tokens, max_sequences=max_sequences)
    assert [rows.tolist() for rows in again] == [rows.tolist() for rows in plan]  # every pass gets the same plan
    if max_sequences is None:  # no two micro-batches that would fit into one
        sums = sorted(sum(sizes[row] for row in rows) for rows in plan)
        assert len(sums) < 2 or sums[0] + sums[1] > max_tokens


@pytest.mark.parametrize("sizes", [[1.9, 1.9], ["1"], [True], [None], [[1, 2]], np.array([1.0, 2.0]), [2**64]])
def test_lengths_are_integers(sizes: Any) -> None:
    with pytest.raises(ValueError, match="one integer per sequence"):
        pack(sizes, max_tokens=2, max_sequences=None)
    with pytest.raises(ValueError, match="one integer per sequence"):
        attention_work(sizes)


def test_lengths_are_counts() -> None:
    for caps in ({"max_tokens": 4, "max_sequences": None}, {"max_tokens": None, "max_sequences": 2}):
        with pytest.raises(ValueError, match="Sequence 1 cannot have -5 tokens"):
            pack([3, -5, 4], **caps)
        with pytest.raises(ValueError, match="Sequence 0 cannot have 9223372036854775808 tokens"):
            pack(np.array([2**63], np.uint64), **caps)
    assert [rows.tolist() for rows in pack(np.array([3, 1], np.uint8), max_tokens=4, max_sequences=None)] == [[0, 1]]


@pytest.mark.parametrize("cap", [0, -1, 1.5, float("nan"), "4"])
def test_caps_are_integers_of_1_or_more(cap: Any) -> None:
    for sizes in ([], [0, 0], [1]):
        with pytest.raises(ValueError, match=f"at least 1 token, but max_tokens is {cap}"):
            pack(sizes, max_tokens=cap, max_sequences=None)
        with pytest.raises(ValueError, match=f"at least 1 sequence, but max_sequences is {cap}"):
            pack(sizes, max_tokens=4, max_sequences=cap)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        ([1, float("nan"), 3, 4], "row 1 is nan"),
        ([1, 2, float("inf")], "row 2 is inf"),
        ([1, -2], "row 1 is -2"),
        (["1", "2"], "one number per row"),
        ([1, None], "one number per row"),
        ([[1, 2]], r"shape \(1, 2\)"),
    ],
)
def test_work_is_finite_and_not_negative(work: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        balance(work, 2)


def test_parts_beyond_the_rows_are_empty_and_cost_nothing() -> None:
    parts = balance([3, 0, 1], 3_000_000)
    assert [part.tolist() for part in parts[:3]] == [part.tolist() for part in balance([3, 0, 1], 3)]
    assert len(parts) == 3_000_000
    assert len({id(part) for part in parts[3:]}) == 1 and parts[-1].dtype == np.int64 and not len(parts[-1])
    assert [part.tolist() for part in balance([], 2)] == [[], []]
