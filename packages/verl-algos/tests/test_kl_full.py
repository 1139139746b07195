"""KL over the whole vocabulary: value and gradient of the textbook formula, extremes, memory."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from verl_algos import kl


def textbook(logits: Tensor, ref: Tensor, temperature: float) -> Tensor:
    policy, reference = (logits / temperature).log_softmax(-1), (ref / temperature).log_softmax(-1)
    return (policy.exp() * (policy - reference)).sum(-1)


@settings(deadline=None, max_examples=30)
@given(
    rows=st.integers(0, 5),
    vocabulary=st.integers(1, 9),
    seed=st.integers(0, 1000),
    temperature=st.sampled_from([1.0, 0.5, 3.0]),
)
def test_value_and_gradient_equal_the_textbook_formula(
    rows: int, vocabulary: int, seed: int, temperature: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, rows, vocabulary, dtype=torch.float64, generator=generator).requires_grad_()
    ref = torch.randn(2, rows, vocabulary, dtype=torch.float64, generator=generator)
    weights = torch.randn(2, rows, dtype=torch.float64, generator=generator)
    value, expected = kl.full(logits, ref, temperature), textbook(logits, ref, temperature)
    assert value.shape == (2, rows)
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)
    (grad,) = torch.autograd.grad((weights * value).sum(), logits)
    (expected_grad,) = torch.autograd.grad((weights * expected).sum(), logits)
    torch.testing.assert_close(grad, expected_grad, rtol=0, atol=1e-12)


def test_a_small_case_by_hand() -> None:
    logits, ref = torch.tensor([0.0, math.log(3.0)]), torch.tensor([0.0, 0.0])  # (1/4, 3/4) against (1/2, 1/2)
    assert float(kl.full(logits, ref)) == pytest.approx(0.25 * math.log(0.5) + 0.75 * math.log(1.5), abs=1e-7)
    assert float(kl.full(ref, ref)) == 0.0


LARGEST = torch.finfo(torch.float32).max


@settings(deadline=None, max_examples=60)
@given(
    pairs=st.lists(
        st.tuples(st.floats(-LARGEST, LARGEST, width=32), st.floats(-LARGEST, LARGEST, width=32)),
        min_size=1,
        max_size=5,
    )
)
def test_c23_finite_for_every_finite_input(pairs: list[tuple[float, float]]) -> None:
    """Bug bank C23: neither the value nor the gradient of a finite input overflows."""
    logits, ref = torch.tensor(pairs).unbind(1)
    logits = logits.clone().requires_grad_()
    value = kl.full(logits, ref)
    assert value.isfinite()
    assert torch.autograd.grad(value, logits)[0].isfinite().all()


def test_excluded_tokens_add_nothing() -> None:
    logits = torch.tensor([[1.0, 2.0, -math.inf]], dtype=torch.float64, requires_grad=True)
    for other in (-math.inf, -800.0):  # excluded by both, or all but
        ref = torch.tensor([[2.0, 1.0, other]], dtype=torch.float64)
        value = kl.full(logits, ref)
        expected = textbook(logits[:, :2], ref[:, :2], 1.0)
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-12)
        (grad,) = torch.autograd.grad(value.sum(), logits)
        (expected_grad,) = torch.autograd.grad(expected.sum(), logits)
        torch.testing.assert_close(grad, expected_grad, rtol=0, atol=1e-12)


def test_half_precision_logits() -> None:
    logits = torch.tensor([[1.0, 2.0, 0.5]], dtype=torch.bfloat16, requires_grad=True)
    ref = torch.tensor([[0.0, 1.0, 0.25]], dtype=torch.bfloat16)
    value = kl.full(logits, ref)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, textbook(logits.float(), ref.float(), 1.0))
    assert torch.autograd.grad(value.sum(), logits)[0].dtype == torch.bfloat16


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most numbers in a tensor that an operation returned."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not func.is_view and func.name() not in ("aten::empty_like", "aten::detach"):
            self.numbers = max(self.numbers, result.numel())
        return result


def test_no_second_copy_of_the_logits_is_held() -> None:
    logits = torch.zeros(3000, 5000).requires_grad_()
    ref = torch.zeros(3000, 5000)
    with Largest() as largest:  # type: ignore[no-untyped-call]
        value = kl.full(logits, ref)
        assert largest.numbers < logits.numel() / 3
        (grad,) = torch.autograd.grad(value.sum(), logits)
        assert largest.numbers < logits.numel() / 3  # beside the gradient, which empty_like made
    assert grad.shape == logits.shape and not grad.any()


def test_refusals() -> None:
    ref = torch.zeros(1, 2)
    with pytest.raises(ValueError, match=r"ref_logits has shape \(1, 2\) but logits has \(1, 3\)"):
        kl.full(torch.zeros(1, 3), ref)
    with pytest.raises(ValueError, match="temperature"):
        kl.full(ref, ref, 0.0)
    with pytest.raises(ValueError, match="detach it"):
        kl.full(ref, torch.zeros(1, 2, requires_grad=True))
