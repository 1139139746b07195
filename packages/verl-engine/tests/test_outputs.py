import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_data import PackedBatch
from verl_engine import next_token_targets
from verl_engine.outputs import compute_outputs, model_inputs

CPU = torch.device("cpu")


class FixedLogits(torch.nn.Module):
    """Stands for a model that gives the same logits everywhere."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.tensor(logits, dtype=torch.float32))

    def forward(self, input_ids: torch.Tensor, logits_to_keep: torch.Tensor, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=self.logits.expand(1, len(logits_to_keep), -1))


class SlopingLogits(torch.nn.Module):
    """Stands for a model that is surer of each token than of the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = torch.nn.Parameter(torch.tensor(1e-3))

    def forward(self, input_ids: torch.Tensor, logits_to_keep: torch.Tensor, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=(self.slope * logits_to_keep[:, None] * torch.tensor([1.0, 0.0, -1.0]))[None])


def batch(*sequences: list[int]) -> PackedBatch:
    return PackedBatch.from_sequences(
        {"input_ids": list(sequences), "sampled_mask": [np.ones(len(ids), bool) for ids in sequences]}
    )


def test_labels_stay_inside_their_sequence() -> None:
    packed = batch([10, 11, 12], [20, 21])
    targets, sources = next_token_targets(packed.cu_seqlens, packed["sampled_mask"])
    assert sources.tolist() == [0, 1, 3]
    assert packed["input_ids"][targets].tolist() == [11, 12, 21]


def test_position_ids_are_not_shifted() -> None:
    inputs = model_inputs(batch([10, 11, 12], [20, 21]), CPU)
    assert inputs.position_ids.tolist() == [[0, 1, 2, 0, 1]]
    assert inputs.input_ids.tolist() == [[10, 11, 12, 20, 21]]
    assert inputs.cu_seqlens.diff().tolist() == [3, 2]
    assert inputs.max_length == 3


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=6), data=st.data())
def test_targets_are_the_sampled_tokens_with_something_before_them(lengths: list[int], data: st.DataObject) -> None:
    cu_seqlens = np.concatenate([[0], np.cumsum(lengths)])
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=sum(lengths), max_size=sum(lengths))))
    targets, sources = next_token_targets(cu_seqlens, mask)
    expected = [
        start + offset
        for start, length in zip(cu_seqlens[:-1], lengths, strict=True)
        for offset in range(1, length)
        if mask[start + offset]
    ]
    assert targets.tolist() == expected
    assert (targets - sources == 1).all()


@pytest.mark.parametrize(("temperature", "entropy"), [(0.5, 0.090095), (1.0, 0.365334), (2.0, 0.582203)])
def test_entropy_is_of_the_sampling_distribution(temperature: float, entropy: float) -> None:
    inputs = model_inputs(batch([0, 0]), CPU)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            found = compute_outputs(FixedLogits(2, 0), inputs, ("entropy",), temperature)["entropy"]
        assert found.requires_grad == grad
        assert found.detach().tolist() == pytest.approx([0.0, entropy], abs=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sum_pi_squared_is_of_the_sampling_distribution(temperature: float) -> None:
    inputs = model_inputs(batch([0, 0, 0]), CPU)
    odds = math.exp(2 / temperature)
    expected = (odds**2 + 1) / (odds + 1) ** 2
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            found = compute_outputs(FixedLogits(2, 0), inputs, ("sum_pi_squared",), temperature)["sum_pi_squared"]
        assert found.requires_grad == grad and found.dtype == torch.float32
        assert found.detach().tolist() == pytest.approx([0.0, expected, expected], abs=1e-6)


def test_sums_of_many_rows_are_the_same_with_and_without_gradient() -> None:
    tokens = 2500
    inputs = model_inputs(batch([0] * tokens), CPU)
    model = SlopingLogits()
    expected: dict[str, torch.Tensor] = {}
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            found = compute_outputs(model, inputs, ("entropy", "sum_pi_squared"), 1.0)
        expected = expected or found
        for name, column in found.items():
            assert len(set(column[1:].tolist())) > tokens // 2
            torch.testing.assert_close(column.detach(), expected[name].detach(), rtol=1e-6, atol=0)


def test_outputs_are_wide_whatever_the_model_computes_in() -> None:
    inputs = model_inputs(batch([0, 0]), CPU)
    for dtype, wide in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        found = compute_outputs(FixedLogits(2, 0).to(dtype), inputs, ("logprobs", "entropy", "sum_pi_squared"), 1.0)
        assert {column.dtype for column in found.values()} == {wide}


def test_temperature_divides_logits() -> None:
    found = compute_outputs(FixedLogits(2, 1, 0), model_inputs(batch([1, 0]), CPU), ("logprobs",), 0.5)
    assert found["logprobs"].tolist() == pytest.approx([0.0, -0.142932], abs=1e-6)
