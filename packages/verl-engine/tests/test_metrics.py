"""Metrics combine as they declare: over micro-batches and ranks, and over optimiser steps."""

import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_data import PackedBatch
from verl_engine import Denominators, FsdpEngine, Metric, Metrics, Reducer, merge_metrics, over_steps
from verl_engine.testing import count, engine_config, random_batch, tiny_model

# Sums of integers are exact, so that results can be compared without a tolerance.
NUMBERS = st.lists(st.integers(-1000, 1000).map(float), min_size=1, max_size=8)
REDUCERS: list[Reducer] = ["mean", "sum", "max", "min", "last"]
EXPECTED: dict[Reducer, Callable[[list[float]], float]] = {
    "mean": lambda values: sum(values) / len(values),
    "sum": sum,
    "max": max,
    "min": min,
    "last": lambda values: values[-1],
}


@settings(deadline=None)
@given(st.text(max_size=12) | st.sampled_from(["minmax_diff", "maximum", "admin/mean", "last_sum"]), NUMBERS)
def test_only_the_declaration_decides_whatever_the_name_says(name: str, values: list[float]) -> None:
    for reducer in REDUCERS:
        expected = EXPECTED[reducer](values)
        assert merge_metrics([{name: Metric(value, reducer)} for value in values])[name].number() == expected
        assert over_steps([{name: Metric(value, reducer)} for value in values]) == {name: expected}


@settings(deadline=None)
@given(NUMBERS, st.sampled_from(REDUCERS), st.sampled_from(REDUCERS))
def test_steps_may_combine_otherwise_than_their_parts(
    values: list[float], of_parts: Reducer, of_steps: Reducer
) -> None:
    step = merge_metrics([{"m": Metric(value, of_parts, over_steps=of_steps)} for value in values])
    other = {"m": Metric(7.0, of_parts, over_steps=of_steps)}
    parts = EXPECTED[of_parts](values)
    if of_parts == of_steps == "mean":
        assert over_steps([step, other]) == {"m": (sum(values) + 7.0) / (len(values) + 1)}
    else:
        assert over_steps([step, other]) == {"m": EXPECTED[of_steps]([parts, 7.0])}


@settings(deadline=None)
@given(NUMBERS, st.sampled_from(REDUCERS), st.data())
def test_tensors_give_the_same_numbers_as_floats(values: list[float], reducer: Reducer, data: st.DataObject) -> None:
    mixed = [
        torch.tensor(value, dtype=torch.float32) if data.draw(st.booleans(), label="a tensor") else value
        for value in values
    ]
    merged = merge_metrics([{"m": Metric(value, reducer)} for value in mixed])["m"]
    assert type(merged.value) is float
    assert merged == merge_metrics([{"m": Metric(value, reducer)} for value in values])["m"]


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-1000, 1000).map(float), max_size=5), min_size=1, max_size=5))
def test_a_mean_does_not_depend_on_how_its_values_were_divided(parts: list[list[float]]) -> None:
    values = [value for part in parts for value in part]
    metrics = [{"m": Metric.mean(sum(part), len(part))} for part in parts]
    expected = {"m": sum(values) / len(values)} if values else {}
    assert over_steps([merge_metrics(metrics)]) == expected
    assert over_steps(metrics) == expected


@pytest.mark.parametrize(("ranks", "expected"), [([[1, 3], [5, 7]], 4.0), ([[1], [5, 7]], 13 / 3)])
def test_the_numbers_of_all_ranks_are_gathered_with_their_counts(ranks: list[list[int]], expected: float) -> None:
    """G07: rank-local metric reported as global."""
    merged = merge_metrics([{"loss": Metric.mean(float(sum(rank)), float(len(rank)))} for rank in ranks])
    assert merged["loss"].number() == pytest.approx(expected, abs=1e-12)
    assert over_steps([merged]) == {"loss": pytest.approx(expected, abs=1e-12)}


def test_a_rank_without_values_and_a_mean_of_nothing_are_absent_not_nan() -> None:
    """G09: padding rows counted in metrics (there is none: a rank or a batch may be empty instead)."""
    assert merge_metrics([{"m": Metric.mean(2.0, 2.0)}, {}])["m"].number() == 1.0
    empty = merge_metrics([{"m": Metric.mean(torch.tensor(0.0), torch.tensor(0))}])
    assert empty["m"].empty and math.isnan(empty["m"].number())
    assert over_steps([empty]) == {} == over_steps([])
    assert over_steps([empty, {"m": Metric.mean(3.0)}]) == {"m": 3.0}


def test_three_sequences_on_two_ranks_stay_three() -> None:
    """G09: padding rows counted in metrics."""
    batch = random_batch(0, (4, 4, 4)).with_columns(sequences={"reward": np.array([1.0, 0.0, 1.0])})
    shares = [batch.select(rows) for rows in batch.split(2)]
    assert sorted(len(share) for share in shares) == [1, 2]
    parts = [{"reward": Metric.mean(float(np.sum(share["reward"])), len(share))} for share in shares]
    assert merge_metrics(parts)["reward"].number() == pytest.approx(2 / 3, abs=1e-12)


def test_nan_in_one_part_is_nan_in_the_whole() -> None:
    reducers: list[Reducer] = ["mean", "sum", "max", "min"]
    pairs: list[list[torch.Tensor | float]] = [
        [math.nan, 1.0],
        [1.0, math.nan],
        [torch.tensor(math.nan), 1.0],
        [1.0, torch.tensor(math.nan)],
    ]
    for reducer in reducers:
        for values in pairs:
            assert math.isnan(merge_metrics([{"m": Metric(value, reducer)} for value in values])["m"].number())


def test_two_declarations_of_one_metric_are_refused() -> None:
    with pytest.raises(ValueError, match=r"The metric clip is declared as sum in one part and as mean in another\."):
        merge_metrics([{"clip": Metric(1.0, "sum")}, {"clip": Metric.mean(1.0)}])
    with pytest.raises(ValueError, match=r"as sum \(over steps: mean\) in one part and as sum in another"):
        merge_metrics([{"m": Metric(1.0, "sum", over_steps="mean")}, {"m": Metric(1.0, "sum")}])


def test_a_metric_travels_between_processes() -> None:
    metric = Metric(1.0, "sum", over_steps="mean")
    assert pickle.loads(pickle.dumps(metric)) == metric


@dataclass(frozen=True)
class ConstantLoss:
    """A loss of 1 for every token: token mean 1."""

    outputs: Sequence[str] = ("logprobs",)

    def __call__(
        self, outputs: Mapping[str, torch.Tensor], columns: Mapping[str, torch.Tensor], denominators: Denominators
    ) -> tuple[torch.Tensor, Metrics]:
        loss = (outputs["logprobs"] * 0.0 + 1.0)[columns["loss_mask"]].sum() / denominators.tokens
        return loss, {"loss": Metric(loss, "sum", over_steps="mean"), "micro_batches": Metric(1.0, "sum")}


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_the_logged_loss_is_the_same_for_any_number_of_micro_batches(tmp_path: Path, micro_batches: int) -> None:
    """G02: logged loss scaled twice."""
    config = engine_config(tiny_model(tmp_path), max_sequences_per_micro_batch=4 // micro_batches)
    batch: PackedBatch = random_batch(3, (6, 9, 4, 7))
    metrics = FsdpEngine(config).train_batch(batch, ConstantLoss(), count(batch))  # type: ignore[arg-type]
    assert metrics["micro_batches"].number() == micro_batches
    assert metrics["loss"].number() == pytest.approx(1.0, abs=1e-12)
    assert over_steps([metrics, metrics])["loss"] == pytest.approx(1.0, abs=1e-12)


def test_a_skipped_step_counts_once_however_many_ranks_know_of_it() -> None:
    of_ranks = [{"grad_norm_nonfinite": Metric(1.0, "max", over_steps="sum")} for _ in range(4)]
    taken = {"grad_norm_nonfinite": Metric(0.0, "max", over_steps="sum")}
    assert over_steps([merge_metrics(of_ranks), taken, merge_metrics(of_ranks)]) == {"grad_norm_nonfinite": 2.0}
