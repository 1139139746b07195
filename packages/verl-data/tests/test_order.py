"""The order of rows: pure functions of seed, epoch and the rows in use."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_data.order import RowOrder, apportion, choose, interleave, ranks, whole_weights

WEIGHTS = st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any)


def mixed(rows: list[int], weights: list[float], **given: object) -> RowOrder:
    """An order of sources with so many rows each, the rows of a source side by side."""
    settings = {"batch_size": 8, "seed": 1, "shuffle": True, "drop_last": True, "values": None, **given}
    sources = np.repeat(np.arange(len(rows)), rows)
    return RowOrder(rows=sum(rows), weights=whole_weights(weights), sources=sources, **settings)  # type: ignore[arg-type]


def test_weights_are_what_was_written() -> None:
    assert whole_weights([0.7, 0.2, 0.1]) == [7, 2, 1]
    assert whole_weights([1 / 3, 1 / 3]) == [1, 1]
    assert whole_weights([2, 0, 4.0]) == [1, 0, 2]
    assert whole_weights([1e-5, 1]) == [1, 100000]


@settings(deadline=None)
@given(WEIGHTS, st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_every_batch_has_each_quota_rounded_down_or_up(weights: list[int], sizes: list[int]) -> None:
    lags = [0] * len(weights)
    for size, counts in zip(sizes, apportion(sizes, weights, lags), strict=True):
        assert sum(counts) == size
        for weight, count in zip(weights, counts, strict=True):
            quota = size * weight / sum(weights)
            assert math.floor(quota) <= count <= math.ceil(quota)
            assert count == 0 or weight > 0
    assert sum(lags) == 0


@settings(deadline=None)
@given(WEIGHTS, st.integers(1, 40))
def test_what_a_batch_cannot_give_comes_in_later_ones(weights: list[int], size: int) -> None:
    batches = 60
    drawn = np.cumsum(apportion([size] * batches, weights, [0] * len(weights)), axis=0)
    due = np.outer(np.arange(1, batches + 1) * size, np.array(weights) / sum(weights))
    assert np.abs(drawn - due).max() < len(weights)  # it does not grow with the number of batches


def test_largest_remainders_by_hand() -> None:
    # quotas of 4 rows are 2.8, 0.8 and 0.4
    counts = apportion([4] * 5, [7, 2, 1], [0, 0, 0])
    assert counts == [[3, 1, 0], [3, 0, 1], [3, 1, 0], [2, 1, 1], [3, 1, 0]]
    assert np.sum(counts, axis=0).tolist() == [14, 4, 2]  # 20 rows in exact proportion


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 20), min_size=3, max_size=3).filter(any), min_size=1, max_size=5))
def test_sources_lie_evenly_over_a_batch(counts: list[list[int]]) -> None:
    source = interleave(counts)
    begin = 0
    for of_batch in counts:
        size = sum(of_batch)
        batch = source[begin : begin + size]
        begin += size
        assert [int(np.sum(batch == index)) for index in range(3)] == of_batch
        half = batch[: size // 2]
        for index in range(3):
            assert abs(np.sum(half == index) - of_batch[index] / 2) <= 2


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.data(),
    st.integers(1, 9),
    st.booleans(),
    st.booleans(),
)
def test_no_row_comes_again_before_all_of_its_source(
    rows: list[int], data: st.DataObject, size: int, shuffle: bool, drop_last: bool
) -> None:
    weights = data.draw(st.lists(st.integers(1, 9), min_size=len(rows), max_size=len(rows)))
    size = min(size, sum(rows))
    order = mixed(rows, [float(weight) for weight in weights], batch_size=size, shuffle=shuffle, drop_last=drop_last)
    assert order.sources is not None
    epochs = [order.epoch(number) for number in range(5)]
    assert {len(epoch) for epoch in epochs} == {order.rows_per_epoch}
    assert order.rows_per_epoch == (sum(rows) // size * size if drop_last else sum(rows))
    drawn = np.concatenate(epochs)
    for source, count in enumerate(rows):
        own = drawn[order.sources[drawn] == source]
        for begin in range(0, len(own), count):
            one_pass = own[begin : begin + count]
            assert len(set(one_pass.tolist())) == len(one_pass)
            if not shuffle:
                assert one_pass.tolist() == sorted(one_pass.tolist())
    again = mixed(rows, [float(weight) for weight in weights], batch_size=size, shuffle=shuffle, drop_last=drop_last)
    for number in (3, 1, 4):  # an epoch by itself, as after a resume
        assert again.epoch(number).tolist() == epochs[number].tolist()


def test_passes_and_sources_have_their_own_orders() -> None:
    order = mixed([20, 20], [1, 1], batch_size=40)
    first, second = order.epoch(0), order.epoch(1)
    assert (np.sort(first) == np.arange(40)).all()
    own = [epoch[epoch < 20].tolist() for epoch in (first, second)]
    other = (first[first >= 20] - 20).tolist()
    assert own[0] != own[1] and own[0] != other
    assert mixed([20, 20], [1, 1], batch_size=40, seed=2).epoch(0).tolist() != first.tolist()


def test_a_small_source_with_a_large_weight_repeats_within_a_batch() -> None:
    order = mixed([2, 14], [3, 1])
    counts = Counter(order.epoch(0)[:8].tolist())
    assert counts[0] == counts[1] == 3 and sum(counts.values()) == 8


@pytest.mark.parametrize("shuffle", [True, False])
def test_values_order_an_epoch_and_ties_stay_shuffled(shuffle: bool) -> None:
    values = np.array([2.0, 1.0, 0.0, 1.0, 1.0, 2.0, 0.0, 1.0])
    order = RowOrder(rows=8, batch_size=4, seed=1, shuffle=shuffle, drop_last=True, values=values)
    epochs = [order.epoch(number).tolist() for number in range(4)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(8))
        assert values[epoch].tolist() == sorted(values.tolist())
    if shuffle:
        assert len({tuple(epoch) for epoch in epochs}) > 1
    else:
        assert epochs[0] == [2, 6, 1, 3, 4, 7, 0, 5] == epochs[1]


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False) | st.integers() | st.fractions() | st.sampled_from([2**60, 2**60 + 1, 0])))
def test_ranks_are_exact_and_equals_share_one(values: list[Any]) -> None:
    found = ranks(values).tolist()
    for one, rank in zip(values, found, strict=True):
        assert [one < other for other in values] == [rank < other for other in found]
    assert sorted(set(found)) == list(range(len(set(found))))


def test_rows_that_fill_no_batch_are_not_always_the_last_by_value() -> None:
    values = np.arange(10, dtype=np.float64)
    order = RowOrder(rows=10, batch_size=4, seed=1, shuffle=True, drop_last=True, values=values)
    left_out = {row for number in range(20) for row in set(range(10)) - set(order.epoch(number).tolist())}
    assert len(left_out) > 5


def test_values_order_every_pass_of_every_source() -> None:
    values = np.array([3.0, 1.0, 2.0, 30.0, 10.0, 20.0, 40.0])
    order = mixed([3, 4], [1, 1], batch_size=7, values=values)
    drawn = np.concatenate([order.epoch(number) for number in range(6)])
    small, large = drawn[drawn < 3], drawn[drawn >= 3]
    assert small.tolist() == [1, 2, 0] * 7
    assert large.tolist() == ([4, 5, 3, 6] * 6)[: len(large)]


def test_the_choice_of_samples() -> None:
    assert (
        choose(5, -1, shuffle=True, seed=1).tolist() == [0, 1, 2, 3, 4] == choose(5, 9, shuffle=True, seed=1).tolist()
    )
    assert choose(5, 2, shuffle=False, seed=1).tolist() == [0, 1]
    chosen = choose(50, 9, shuffle=True, seed=1).tolist()
    assert chosen == sorted(set(chosen)) and len(chosen) == 9
    assert chosen != choose(50, 9, shuffle=True, seed=2).tolist()


def test_the_mixed_order_never_changes_between_releases() -> None:
    order = mixed([5, 3], [3, 1], batch_size=4)
    assert [order.epoch(number).tolist() for number in range(2)] == [[0, 1, 5, 2, 4, 3, 7, 2], [0, 4, 6, 3, 1, 4, 7, 0]]
