"""KL: verl-facts K1; bug bank C23, C24, C29, F15."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from verl_algos import kl

LOGPROBS = torch.tensor([-1, -2, -0.1, -30], dtype=torch.float64)
REF = torch.tensor([-1.5, -1, -0.1, -1], dtype=torch.float64)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("k1", "kl"), [0.5, -1, 0, -29]),
        (("abs",), [0.5, 1, 0, 29]),
        (("k2", "mse"), [0.125, 0.5, 0, 420.5]),
        (("k3", "low_var_kl"), [0.106530660, 0.718281828, 0, 10]),
    ],
)
def test_k1_estimators(names: tuple[str, ...], expected: list[float]) -> None:
    for name in names:
        result = kl.penalty(name, LOGPROBS, REF)
        torch.testing.assert_close(result, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-8)


def gradient(name: str, logprobs: Tensor, ref: Tensor) -> Tensor:
    variable = logprobs.clone().requires_grad_()
    return torch.autograd.grad(kl.penalty(name, variable, ref).sum(), variable)[0]


@pytest.mark.parametrize("name", kl.STRAIGHT_THROUGH)
def test_k2_straight_through_has_the_value_of_its_name_and_the_gradient_of_k2(name: str) -> None:
    assert torch.equal(kl.penalty(name, LOGPROBS, REF), kl.penalty(name[:-1], LOGPROBS, REF))
    torch.testing.assert_close(gradient(name, LOGPROBS, REF), LOGPROBS - REF, rtol=0, atol=1e-12)


def test_k2_gradients() -> None:
    expected = torch.tensor([0.393469340, -1.718281828, 0, 0], dtype=torch.float64)
    torch.testing.assert_close(gradient("k3", LOGPROBS, REF), expected, rtol=0, atol=1e-8)


def test_expected_gradients_over_the_vocabulary() -> None:
    """Of k2 and k3+ that of KL(policy || reference), of k1 zero, of k3 that of KL(reference || policy)."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, dtype=torch.float64, generator=generator).requires_grad_()
    ref = torch.randn(7, dtype=torch.float64, generator=generator).log_softmax(0)

    def expected(name: str) -> Tensor:
        logprobs = logits.log_softmax(0)
        weighted = logprobs.detach().exp() * kl.penalty(name, logprobs, ref)
        return torch.autograd.grad(weighted.sum(), logits)[0]

    policy = logits.log_softmax(0)
    forward = torch.autograd.grad((policy.exp() * (policy - ref)).sum(), logits, retain_graph=True)[0]
    reverse = torch.autograd.grad((ref.exp() * (ref - policy)).sum(), logits)[0]
    for name in ("k2", "k1+", "k3+", "abs+"):
        torch.testing.assert_close(expected(name), forward, rtol=0, atol=1e-12)
    torch.testing.assert_close(expected("k1"), torch.zeros_like(forward), rtol=0, atol=1e-12)
    torch.testing.assert_close(expected("k3"), reverse, rtol=0, atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(difference=st.floats(-2.2, 10).filter(lambda d: abs(d) > 1e-6))
def test_gradients_equal_the_textbook_formula(difference: float) -> None:
    d = torch.tensor([difference], dtype=torch.float64)
    expected = {"k1": 1.0, "abs": math.copysign(1.0, difference), "k2": difference, "k3": 1 - math.exp(-difference)}
    for name, value in expected.items():
        assert float(gradient(name, d, torch.zeros_like(d))) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("difference", [88.0, 89.0, 100.0])
def test_c23_k3_neither_overflows_nor_has_nan_gradients(difference: float) -> None:
    """Bug bank C23: the log-ratio is clamped before exp, not the result behind it."""
    logprobs, ref = torch.tensor([-difference]), torch.tensor([0.0])
    assert float(kl.penalty("k3", logprobs, ref)) == 10.0
    assert float(gradient("k3", logprobs, ref)) == 0.0


def test_c23_one_optimiser_step_leaves_the_parameters_finite() -> None:
    """Bug bank C23: a log-prob of -100 against 0 in one token of four. With the log-ratio clamped to 20 but without the
    cap of 10 its value would be 485165174.41."""
    assert math.exp(20) - 20 - 1 == pytest.approx(485165174.41, rel=1e-9)
    weight = torch.tensor([1.0], requires_grad=True)
    optimiser = torch.optim.SGD([weight], lr=0.1)
    loss, _ = kl.loss("k3", logprobs=weight * torch.tensor([[-100.0, -1, -1, -1]]), ref_logprobs=torch.zeros(1, 4))
    loss.sum().backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    assert weight.isfinite().all() and float(loss.detach()[0, 0]) == 10.0


LARGEST = torch.finfo(torch.float32).max


@pytest.mark.parametrize("name", [*kl.PENALTIES, *kl.STRAIGHT_THROUGH])
@settings(deadline=None, max_examples=50)
@given(
    a=st.floats(-LARGEST, LARGEST, width=32),
    b=st.floats(-LARGEST, LARGEST, width=32),
)
def test_c23_finite_for_every_finite_input(name: str, a: float, b: float) -> None:
    logprobs, ref = torch.tensor([a]), torch.tensor([b])
    assert kl.penalty(name, logprobs, ref).isfinite().all()
    assert gradient(name, logprobs, ref).isfinite().all()


@pytest.mark.parametrize("name", [*kl.PENALTIES, *kl.STRAIGHT_THROUGH])
def test_c23_extremes(name: str) -> None:
    a = torch.tensor([LARGEST, -LARGEST, LARGEST, 0.0])
    b = torch.tensor([-LARGEST, LARGEST, LARGEST, -LARGEST])
    assert kl.penalty(name, a, b).isfinite().all()
    assert gradient(name, a, b).isfinite().all()


def test_c24_direction_and_sign() -> None:
    """Bug bank C24: policy minus reference; k1 may be negative, k3 is not."""
    policy, reference = torch.tensor([-1.0]), torch.tensor([-1.5])
    for name, expected in (("k1", 0.5), ("k2", 0.125), ("k3", 0.106531)):
        assert float(kl.penalty(name, policy, reference)) == pytest.approx(expected, abs=1e-6)
    assert float(kl.penalty("k3", reference, policy)) == pytest.approx(0.148721, abs=1e-6)
    assert float(kl.penalty("k1", reference, policy)) == -0.5


def test_k3_is_accurate_near_zero_in_float32() -> None:
    assert float(kl.penalty("k3", torch.tensor([1e-3]), torch.tensor([0.0]))) == pytest.approx(4.99833e-7, rel=1e-3)


def test_unknown_penalty_and_shapes() -> None:
    with pytest.raises(ValueError, match=r"Unknown KL penalty 'k4'\. Known: kl, k1, abs"):
        kl.penalty("k4", LOGPROBS, REF)
    with pytest.raises(ValueError, match=r"ref_logprobs has shape \(3,\)"):
        kl.penalty("k1", LOGPROBS, REF[:3])
    for name in ("full", "full+"):
        with pytest.raises(ValueError, match=r"call kl\.full"):
            kl.penalty(name, LOGPROBS, REF)
    with pytest.raises(ValueError, match=r"Unknown KL penalty 'k3\+\+'"):
        kl.penalty("k3++", LOGPROBS, REF)
    nothing: Any = None
    with pytest.raises(ValueError, match=r"Unknown KL penalty None\. Known: kl"):
        kl.penalty(nothing, LOGPROBS, REF)


# --- as a loss


@pytest.mark.parametrize("name", ["k1", "k3", "k3+"])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_c14_masked_tokens_have_neither_loss_nor_gradient(name: str, poison: float) -> None:
    """Bug bank C14, F15: NaN at a masked token; the loss is 0.5 per token at k1, which aggregation weighs by 0.1."""
    logprobs = torch.tensor([[-1.0, poison, -1.0]], requires_grad=True)
    mask = torch.tensor([[1, 0, 1]])
    per_token, metrics = kl.loss(name, logprobs=logprobs, ref_logprobs=torch.tensor([[-1.5, poison, -1.5]]), mask=mask)
    value = 0.5 if name == "k1" else 0.106530660
    torch.testing.assert_close(per_token, torch.tensor([[value, 0.0, value]]))
    total, tokens = metrics["kl"]
    assert not total.requires_grad and float(total / tokens) == pytest.approx(value)
    (grad,) = torch.autograd.grad(per_token.sum(), logprobs)
    slope = {"k1": 1.0, "k3": 0.393469340, "k3+": 0.5}[name]
    torch.testing.assert_close(grad, torch.tensor([[slope, 0.0, slope]]))


def test_loss_is_the_same_packed() -> None:
    padded, _ = kl.loss("k3", logprobs=LOGPROBS.view(2, 2), ref_logprobs=REF.view(2, 2))
    packed, _ = kl.loss("k3", logprobs=LOGPROBS, ref_logprobs=REF, cu_seqlens=torch.tensor([0, 2, 4]))
    assert torch.equal(padded.flatten(), packed)


# --- in the reward


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_f15_kl_in_the_reward(layout: str) -> None:
    shape: tuple[int, ...] = (1, 2) if layout == "padded" else (2,)
    arguments: dict[str, Any] = {
        "token_rewards": torch.tensor([0.0, 1.0]).view(shape),
        "logprobs": torch.tensor([-1.0, -1.0]).view(shape),
        "ref_logprobs": torch.tensor([-1.5, -1.5]).view(shape),
        "cu_seqlens": None if layout == "padded" else torch.tensor([0, 2]),
    }
    rewards, metrics = kl.apply_kl_to_rewards(**arguments, coef=0.1, penalty="k1")
    torch.testing.assert_close(rewards.flatten(), torch.tensor([-0.05, 0.95]))
    assert [float(x) for x in metrics["reward_kl_penalty"]] == [0.5, 1]
    off, _ = kl.apply_kl_to_rewards(**arguments, coef=0.0)
    assert off.flatten().tolist() == [0, 1]


def test_masked_tokens_get_no_penalty_and_no_reward() -> None:
    rewards, metrics = kl.apply_kl_to_rewards(
        token_rewards=torch.tensor([[0.0, 5.0, 1.0]]),
        logprobs=torch.tensor([[-1.0, math.nan, -1.0]]),
        ref_logprobs=torch.tensor([[-2.0, math.inf, -1.0]]),
        mask=torch.tensor([[1, 0, 1]]),
        coef=0.5,
    )
    assert rewards.tolist() == [[-0.5, 0.0, 1.0]]
    assert [float(x) for x in metrics["reward_kl_penalty"]] == [0.5, 1]


def test_c29_aborted_rows_do_not_dilute_the_kl() -> None:
    """Bug bank C29: rows without tokens do not count as KL 0, and the controller stays where it is."""
    mask = torch.tensor([[1, 1]] * 6 + [[0, 0]] * 2, dtype=torch.bool)
    zeros = torch.zeros(8, 2, dtype=torch.float64)
    _, metrics = kl.apply_kl_to_rewards(
        token_rewards=zeros, logprobs=zeros, ref_logprobs=zeros - 0.4, mask=mask, coef=0.2
    )
    total, sequences = (float(x) for x in metrics["reward_kl_penalty"])
    assert sequences == 6
    assert total / sequences == pytest.approx(0.4)
    controller = kl.AdaptiveController(coef=0.2, target=0.4, horizon=10000)
    for _ in range(200):
        controller.update(total / sequences, 8)
    assert controller.coef == pytest.approx(0.2, abs=1e-9)
