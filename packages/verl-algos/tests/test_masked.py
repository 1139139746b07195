"""Masked statistics: verl-facts A15; bug bank C13, C14."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_algos.masked import masked_mean, masked_sum, masked_var, masked_whiten


def test_a15_whiten() -> None:
    x = torch.tensor([[1.0, 2, 3], [4, math.nan, math.inf]], dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]], dtype=torch.bool)
    expected = [[-1.161894997, -0.387298329, 0.387298339], [1.161895007, 0, 0]]
    torch.testing.assert_close(masked_whiten(x, mask), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=2e-8)


def test_c13_whiten_uses_valid_elements_only() -> None:
    """Bug bank C13: padding enters neither mean nor std; one valid element, and none, give 0."""
    result = masked_whiten(torch.tensor([1.0, 2, 3, 100]), torch.tensor([1, 1, 1, 0]))
    torch.testing.assert_close(result, torch.tensor([-1.0, 0, 1, 0]))
    assert masked_whiten(torch.tensor([5.0, 9]), torch.tensor([1, 0])).tolist() == [0, 0]
    assert masked_whiten(torch.tensor([5.0, 9]), torch.tensor([0, 0])).tolist() == [0, 0]


def test_empty_masks() -> None:
    x, mask = torch.tensor([math.nan, 1.0]), torch.zeros(2, dtype=torch.bool)
    assert [float(f(x, mask)) for f in (masked_sum, masked_mean, masked_var)] == [0, 0, 0]


def test_c14_no_gradient_leaks_from_masked_elements() -> None:
    for f in (masked_sum, masked_mean, masked_var, masked_whiten):
        x = torch.tensor([1.0, 2.0, 4.0, math.inf], requires_grad=True)
        (grad,) = torch.autograd.grad(f(x, torch.tensor([True, True, True, False])).square().sum(), x)
        assert float(grad[3]) == 0 and grad.isfinite().all()


def test_shapes_must_be_equal() -> None:
    with pytest.raises(ValueError, match="they must be equal"):
        masked_mean(torch.ones(2, 3), torch.ones(2, 1))
    no_tensor: Any = [1.0, 2.0]
    with pytest.raises(ValueError, match=r"x is a list, not a torch\.Tensor"):
        masked_mean(no_tensor, torch.ones(2))


@settings(deadline=None, max_examples=40)
@given(pairs=st.lists(st.tuples(st.floats(-100, 100), st.booleans()), min_size=1, max_size=30))
def test_equals_statistics_of_the_selected_elements(pairs: list[tuple[float, bool]]) -> None:
    x = torch.tensor([p[0] for p in pairs], dtype=torch.float64)
    mask = torch.tensor([p[1] for p in pairs])
    chosen = x[mask]
    if len(chosen):
        torch.testing.assert_close(masked_mean(x, mask), chosen.mean())
        torch.testing.assert_close(masked_var(x, mask, unbiased=False), chosen.var(unbiased=False))
    if len(chosen) > 1:
        torch.testing.assert_close(masked_var(x, mask), chosen.var())
