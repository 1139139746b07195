"""Log-probs and entropy: verl-facts E1; bug bank C27, E04."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_algos import logprobs

LOGITS = torch.tensor([[1.0, 2, 3, 4]], dtype=torch.float64)


def test_e1_logprobs_and_entropy() -> None:
    ids = torch.tensor([2])
    assert float(logprobs.logprobs_from_logits(LOGITS, ids)) == pytest.approx(-1.440189699, abs=1e-9)
    assert float(logprobs.logprobs_from_logits(LOGITS, ids, 2.0)) == pytest.approx(-1.287338672, abs=1e-9)
    assert float(logprobs.entropy_from_logits(LOGITS)) == pytest.approx(0.947536964, abs=1e-9)


@pytest.mark.parametrize(("temperature", "expected"), [(0.5, 0.090095), (1.0, 0.365334), (2.0, 0.582203)])
def test_c27_entropy_of_the_sampling_distribution(temperature: float, expected: float) -> None:
    """Bug bank C27: the entropy is that of logits / temperature, as the log-probs are."""
    assert float(logprobs.entropy_from_logits(torch.tensor([2.0, 0.0]), temperature)) == pytest.approx(
        expected, abs=1e-6
    )


def test_e04_temperature_scales_logits_not_logprobs() -> None:
    result = logprobs.logprobs_from_logits(torch.tensor([[2.0, 1, 0]]), torch.tensor([0]), 0.5)
    assert float(result) == pytest.approx(-0.142932, abs=1e-6)


def test_large_offsets_and_half_precision() -> None:
    shifted = torch.tensor([[1e6, 1e6 + 1]])
    assert float(logprobs.logprobs_from_logits(shifted, torch.tensor([1]))) == pytest.approx(
        -math.log1p(math.exp(-1)), abs=1e-6
    )
    half = logprobs.logprobs_from_logits(LOGITS.bfloat16(), torch.tensor([2]))
    assert half.dtype == torch.float32
    assert float(half) == pytest.approx(-1.440189699, abs=1e-6)
    assert logprobs.entropy_from_logits(LOGITS.half()).dtype == torch.float32


def test_excluded_tokens_add_nothing_to_the_entropy_or_its_gradient() -> None:
    logits = torch.tensor([[0.0, 0.0, -math.inf]], dtype=torch.float64, requires_grad=True)
    entropy = logprobs.entropy_from_logits(logits)
    (grad,) = torch.autograd.grad(entropy.sum(), logits)
    assert float(entropy.detach()) == pytest.approx(math.log(2))
    assert grad.isfinite().all()
    assert float(logprobs.logprobs_from_logits(logits.detach(), torch.tensor([2]))) == -math.inf


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 2**31), temperature=st.floats(0.3, 3.0))
def test_gradients_equal_the_textbook_formula(seed: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 3, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    ids = torch.randint(0, 5, (2, 3), generator=generator)
    p = torch.softmax(logits.detach() / temperature, -1)
    (grad,) = torch.autograd.grad(logprobs.logprobs_from_logits(logits, ids, temperature).sum(), logits)
    torch.testing.assert_close(grad, (torch.nn.functional.one_hot(ids, 5) - p) / temperature)
    entropy = logprobs.entropy_from_logits(logits, temperature)
    torch.testing.assert_close(entropy.detach(), -(p * p.log()).sum(-1))
    (grad,) = torch.autograd.grad(entropy.sum(), logits)
    torch.testing.assert_close(grad, -p * (p.log() + entropy.detach().unsqueeze(-1)) / temperature)


def test_bad_arguments() -> None:
    for temperature in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="must be above 0"):
            logprobs.entropy_from_logits(LOGITS, temperature)
    with pytest.raises(ValueError, match=r"logits have shape \(1, 4\) but token_ids \(2,\)"):
        logprobs.logprobs_from_logits(LOGITS, torch.tensor([1, 2]))
    wrong: Any = [1]
    with pytest.raises(ValueError, match=r"token_ids is a list, not a torch\.Tensor"):
        logprobs.logprobs_from_logits(LOGITS, wrong)
    for call in (logprobs.entropy_from_logits, lambda logits: logprobs.logprobs_from_logits(logits, torch.tensor([1]))):
        with pytest.raises(ValueError, match=r"logits is a list, not a torch\.Tensor"):
            call(wrong)
    with pytest.raises(ValueError, match=r"logits have shape \(\) but token_ids \(\)"):
        logprobs.logprobs_from_logits(torch.tensor(1.0), torch.tensor(0))
    for outside in (-100, 4):
        with pytest.raises(ValueError, match=rf"token_ids go from {outside} to {outside}, but .* vocabulary of 4\."):
            logprobs.logprobs_from_logits(LOGITS, torch.tensor([outside]))
    with pytest.raises(ValueError, match=r"token_ids have dtype torch\.float32"):
        logprobs.logprobs_from_logits(LOGITS, torch.zeros(1))
