"""Value loss: verl-facts V1, gradients; explained variance: verl-facts 1.16."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_algos import value_losses

VALUES = torch.tensor([[0.1, 0.9, 0.5], [1, 0, 0.3]], dtype=torch.float64)
RETURNS = torch.tensor([[1.0, 1, 0], [0.5, 0.5, 0.5]], dtype=torch.float64)
OLD = torch.tensor([[0.5, 0.5, 0.5], [0.2, 0.2, 0.2]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]], dtype=torch.bool)


@pytest.mark.parametrize(("clip", "loss", "fraction"), [(0.5, 0.157, 0.0), (0.2, 0.165, 0.2)])
def test_v1_value_loss(clip: float, loss: float, fraction: float) -> None:
    per_token, metrics = value_losses.compute(
        values=VALUES, old_values=OLD, returns=RETURNS, mask=MASK, cliprange_value=clip
    )
    assert float(per_token.sum()) / 5 == pytest.approx(loss, abs=1e-9)
    clipped, tokens = metrics["vf_clipfrac"]
    assert float(clipped) / float(tokens) == pytest.approx(fraction)
    total, tokens = metrics["vpred_mean"]
    assert float(total) / float(tokens) == pytest.approx(0.5)


def test_c14_poison_at_masked_positions() -> None:
    values = VALUES.masked_fill(~MASK, math.inf).requires_grad_()
    per_token, _ = value_losses.compute(
        values=values,
        old_values=OLD.masked_fill(~MASK, math.nan),
        returns=RETURNS.masked_fill(~MASK, math.nan),
        mask=MASK,
    )
    (grad,) = torch.autograd.grad(per_token.sum(), values)
    assert float(per_token.detach().sum()) / 5 == pytest.approx(0.157)
    assert float(grad[1, 2]) == 0 and grad.isfinite().all()


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="cliprange_value"):
        value_losses.compute(values=VALUES, old_values=OLD, returns=RETURNS, cliprange_value=-1)
    with pytest.raises(ValueError, match="returns has shape"):
        value_losses.compute(values=VALUES, old_values=OLD, returns=RETURNS[:1])


@settings(deadline=None, max_examples=60)
@given(
    tokens=st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=20),
    clip=st.floats(0.01, 1.0),
)
def test_value_and_gradient_equal_the_textbook_formula(tokens: list[tuple[float, float, float]], clip: float) -> None:
    value, old, target = torch.tensor(tokens, dtype=torch.float64).unbind(1)
    variable = value.clone().requires_grad_()
    per_token, _ = value_losses.compute(
        values=variable, old_values=old, returns=target, cu_seqlens=torch.tensor([0, len(tokens)]), cliprange_value=clip
    )
    (grad,) = torch.autograd.grad(per_token.sum(), variable)
    for i, (v, o, r) in enumerate(tokens):
        bounded = min(max(v, o - clip), o + clip)
        plain, clipped = (v - r) ** 2, (bounded - r) ** 2
        assert float(per_token[i].detach()) == pytest.approx(0.5 * max(plain, clipped), abs=1e-12)
        if abs(plain - clipped) > 1e-9:
            assert float(grad[i]) == pytest.approx(v - r if plain > clipped else 0.0, abs=1e-12)


def test_plain_loss_needs_no_old_values() -> None:
    variable = VALUES.masked_fill(~MASK, math.nan).requires_grad_()
    per_token, metrics = value_losses.compute(values=variable, returns=RETURNS, mask=MASK, cliprange_value=None)
    torch.testing.assert_close(per_token.detach(), torch.where(MASK, 0.5 * (VALUES - RETURNS).square(), 0))
    assert set(metrics) == {"vpred_mean"}
    (grad,) = torch.autograd.grad(per_token.sum(), variable)
    torch.testing.assert_close(grad, torch.where(MASK, VALUES - RETURNS, 0))
    wide, _ = value_losses.compute(values=VALUES, old_values=OLD, returns=RETURNS, mask=MASK, cliprange_value=math.inf)
    torch.testing.assert_close(wide, per_token.detach())
    with pytest.raises(ValueError, match="needs old_values, which was not given"):
        value_losses.compute(values=VALUES, returns=RETURNS)


def test_explained_variance() -> None:
    returns = torch.tensor([[1.0, 2, 3, 9]], dtype=torch.float64)
    values = torch.tensor([[1.0, 2, 2, math.nan]], dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 0]], dtype=torch.bool)
    # var(R) = 1, R - V = [0, 0, 1] with unbiased variance 1/3
    assert float(value_losses.explained_variance(values, returns, mask)) == pytest.approx(1 - (1 / 3) / (1 + 1e-5))
    packed = value_losses.explained_variance(values[0], returns[0], mask[0], torch.tensor([0, 1, 4]))
    assert float(packed) == pytest.approx(1 - (1 / 3) / (1 + 1e-5))
    assert float(value_losses.explained_variance(returns, returns)) == 1
    assert float(value_losses.explained_variance(torch.zeros_like(returns), returns)) == pytest.approx(0, abs=1e-5)
