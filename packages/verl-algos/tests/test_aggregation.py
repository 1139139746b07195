"""Aggregation: verl-facts P4, P15; bug bank C14-C17, C19, C20; invariance under any split."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from verl_algos import policy_losses
from verl_algos.aggregation import MODES, Denominators, Mode, aggregate, count

ALL_MODES: list[Any] = list(MODES)


def scale_of(mode: Mode) -> float | None:
    return 10.0 if mode == "seq-mean-token-sum-norm" else None


def p_losses() -> tuple[Tensor, Tensor]:
    old = torch.tensor([[0.5, 0.25, 0.1], [0.4, 0.2, 0.3]], dtype=torch.float64).log()
    new = torch.tensor([[0.55, 0.15, 0.35], [0.22, 0.23, 0.15]], dtype=torch.float64).log()
    advantages = torch.tensor([[1.0, 1, 1], [-1, -1, -1]], dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]], dtype=torch.bool)
    return policy_losses.compute("vanilla", logprobs=new, old_logprobs=old, advantages=advantages, mask=mask)[0], mask


@pytest.mark.parametrize(
    ("mode", "scale", "expected"),
    [
        ("token-mean", None, -0.19),
        ("token-sum", None, -0.95),
        ("seq-mean-token-sum", None, -0.475),
        ("seq-mean-token-mean", None, 0.004166666),
        ("seq-mean-token-sum-norm", 3, -0.158333333),
        ("seq-mean-token-sum-norm", 10, -0.0475),
    ],
)
def test_p4_modes(mode: Mode, scale: float | None, expected: float) -> None:
    loss, mask = p_losses()
    result = aggregate(loss, mode=mode, denominators=count(mask), mask=mask, scale=scale)
    assert result.dim() == 0
    assert float(result) == pytest.approx(expected, abs=1e-8)


def test_p15_token_sum_of_ranks_that_average() -> None:
    loss = torch.tensor([[1.0, 2, 30], [4, 50, 6]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 1]], dtype=torch.bool)
    assert float(4 * aggregate(loss, mode="token-sum", denominators=count(mask), mask=mask)) == 52


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_c14_poison_at_masked_positions(mode: Mode, poison: float) -> None:
    """Bug bank C14: NaN or inf at a masked position reaches neither the sum nor the gradient, in any mode."""
    loss = torch.tensor([[1, poison, 3]], requires_grad=True)
    mask = torch.tensor([[1, 0, 1]], dtype=torch.bool)
    result = aggregate(loss, mode=mode, denominators=count(mask), mask=mask, scale=scale_of(mode))
    expected = {
        "token-mean": 2.0,
        "token-sum": 4.0,
        "seq-mean-token-sum": 4.0,
        "seq-mean-token-mean": 2.0,
        "seq-mean-token-sum-norm": 0.4,
    }
    assert float(result.detach()) == pytest.approx(expected[mode])
    (grad,) = torch.autograd.grad(result, loss)
    assert float(grad[0, 1]) == 0 and grad.isfinite().all()


def test_c15_empty_rows_do_not_count() -> None:
    """Bug bank C15, policy: a sequence without a trained token is not in the denominator (else this were 0.5)."""
    loss = torch.tensor([[1.0, 1], [5, 5]])
    mask = torch.tensor([[1, 1], [0, 0]], dtype=torch.bool)
    assert count(mask) == Denominators(tokens=2, sequences=1)
    modes: list[Mode] = ["token-mean", "seq-mean-token-mean"]
    for mode in modes:
        assert float(aggregate(loss, mode=mode, denominators=count(mask), mask=mask)) == 1.0


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("denominators", [Denominators(4, 2), Denominators(0, 0)])
def test_c15_fully_masked_micro_batch_is_zero_with_zero_gradient(mode: Mode, denominators: Denominators) -> None:
    """Bug bank C15: a micro-batch whose mask is all 0."""
    loss = torch.tensor([[1.0, math.nan]], requires_grad=True)
    mask = torch.zeros(1, 2, dtype=torch.bool)
    result = aggregate(loss, mode=mode, denominators=denominators, mask=mask, scale=scale_of(mode))
    (grad,) = torch.autograd.grad(result, loss)
    assert float(result.detach()) == 0
    assert grad.tolist() == [[0, 0]]


def test_c16_token_mean_of_unequal_micro_batches() -> None:
    """Bug bank C16: the mean of micro-batch means, 0.5 here, is not the token mean; value and gradient of a linear
    model are those of the whole mini-batch."""
    parts = [torch.tensor([[1.0]]), torch.tensor([[0.0, 0, 0]])]
    total = Denominators(tokens=4, sequences=2)
    assert sum(float(aggregate(part, mode="token-mean", denominators=total)) for part in parts) == 0.25
    whole, offsets = torch.cat(parts, dim=1).flatten(), torch.tensor([0, 1, 4])
    assert float(aggregate(whole, mode="token-mean", denominators=total, cu_seqlens=offsets)) == 0.25
    features = torch.tensor([[0.5, -1.0], [2.0, 0.25], [-1.5, 1.0], [0.0, 3.0]])

    def gradient(pieces: list[tuple[Tensor, Tensor]]) -> Tensor:
        weight = torch.tensor([0.3, -0.7], requires_grad=True)
        shares = [
            aggregate((own @ weight - target).square(), mode="token-mean", denominators=total, cu_seqlens=cuts)
            for own, target, cuts in ((own, target, torch.tensor([0, len(own)])) for own, target in pieces)
        ]
        return torch.autograd.grad(torch.stack(shares).sum(), weight)[0]

    expected = 2 * (features @ torch.tensor([0.3, -0.7]) - whole) @ features / 4
    for sizes in ([4], [1, 3], [2, 2], [1, 1, 1, 1]):
        pieces = list(zip(torch.split(features, sizes), torch.split(whole, sizes), strict=True))
        torch.testing.assert_close(gradient(pieces), expected, rtol=0, atol=1e-6)


def test_c17_ranks_that_average_multiply_by_their_number() -> None:
    """Bug bank C17: ranks that average gradients multiply by their number (0.125 without), and local means (0.5) cannot
    come about: there is no default for the global counts."""
    ranks = [torch.tensor([[1.0]]), torch.tensor([[0.0, 0, 0]])]
    total = Denominators(tokens=4, sequences=2)
    shares = [float(aggregate(rank, mode="token-mean", denominators=total)) for rank in ranks]
    assert sum(shares) == 0.25
    assert sum(share * len(ranks) for share in shares) / len(ranks) == 0.25
    assert sum(shares) / len(ranks) == 0.125
    without: Any = {"mode": "token-mean"}
    with pytest.raises(TypeError, match="denominators"):
        aggregate(ranks[0], **without)


@pytest.mark.parametrize("width", [3, 7])
@pytest.mark.parametrize("rows", [1, 2])
def test_c19_dr_grpo_divisor_is_constant(width: int, rows: int) -> None:
    """Bug bank C19: the constant divisor depends neither on padding nor on micro-batches."""
    mask = torch.arange(width) < torch.tensor([[2], [3]])
    loss = torch.ones(2, width)
    result = sum(
        float(aggregate(part, mode="seq-mean-token-sum-norm", denominators=count(mask), mask=part_mask, scale=4))
        for part, part_mask in zip(loss.tensor_split(2 // rows), mask.tensor_split(2 // rows), strict=True)
    )
    assert result == pytest.approx(0.625)


def test_c20_sequence_loss_is_not_broadcast_over_tokens() -> None:
    """Bug bank C20: a (B, 1) loss is refused, one written to the tokens counts once per sequence."""
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]], dtype=torch.bool)
    with pytest.raises(ValueError, match=r"mask has shape \(2, 3\) but loss has \(2, 1\)"):
        aggregate(torch.tensor([[-1.0], [1.0]]), mode="token-mean", denominators=count(mask), mask=mask)
    spread = torch.tensor([[-1.0, 0, 0], [1, 1, 1]])
    assert float(aggregate(spread, mode="seq-mean-token-mean", denominators=count(mask), mask=mask)) == 0


def test_bad_arguments() -> None:
    loss, total = torch.ones(1, 2), Denominators(2, 1)
    unknown: Any = "mean"
    with pytest.raises(ValueError, match=r"Unknown loss aggregation mode 'mean'\. Known: token-mean, token-sum"):
        aggregate(loss, mode=unknown, denominators=total)
    for scale in (None, 0, -1, math.nan):
        with pytest.raises(ValueError, match="needs scale"):
            aggregate(loss, mode="seq-mean-token-sum-norm", denominators=total, scale=scale)
    with pytest.raises(ValueError, match="does not use it"):
        aggregate(loss, mode="token-mean", denominators=total, scale=3)
    with pytest.raises(ValueError, match="counts of the whole mini-batch"):
        aggregate(loss, mode="token-mean", denominators=Denominators(-1, 1))
    with pytest.raises(ValueError, match="counts of the whole mini-batch"):
        aggregate(loss, mode="token-mean", denominators=Denominators(math.nan, 1))
    wrong: Any
    for wrong in ((2, 1), 2, {"tokens": 2, "sequences": 1}, None, Denominators(*torch.tensor([2.0, 1.0]))):
        with pytest.raises(ValueError, match=r"as plain numbers in aggregation\.Denominators\(tokens, sequences\)"):
            aggregate(loss, mode="token-mean", denominators=wrong)
    misspelt: Any = "token_mean"
    with pytest.raises(ValueError, match=r"Did you mean token-mean\?"):
        aggregate(loss, mode=misspelt, denominators=total)


def test_half_precision_losses_are_summed_in_float32() -> None:
    loss = torch.full((1, 1000), 0.1, dtype=torch.bfloat16)
    assert aggregate(loss, mode="token-sum", denominators=Denominators(1000, 1)).dtype == torch.float32


@settings(deadline=None, max_examples=60)
@given(data=st.data(), mode=st.sampled_from(ALL_MODES), parts=st.sampled_from([1, 2, 4, 8]))
def test_any_split_any_layout_any_order_gives_the_same_loss_and_gradient(
    data: st.DataObject, mode: Mode, parts: int
) -> None:
    """Micro-batches of one rank and ranks are the same thing here: parts whose shares add up."""
    lengths = torch.tensor(data.draw(st.lists(st.integers(0, 6), min_size=8, max_size=12)))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    width = int(lengths.max()) + 2
    inside = torch.arange(width) < lengths.unsqueeze(1)
    mask = inside & (torch.rand(inside.shape, generator=generator) < 0.8)
    inputs = torch.randn(*inside.shape, 3, dtype=torch.float64, generator=generator)
    total, scale = count(mask), scale_of(mode)

    def gradient(pieces: list[tuple[Tensor, Tensor, Tensor | None]]) -> tuple[float, Tensor]:
        weight = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64, requires_grad=True)
        value, total_grad = 0.0, torch.zeros(3, dtype=torch.float64)
        for piece, piece_mask, offsets in pieces:
            share = aggregate(
                (piece @ weight).tanh(),
                mode=mode,
                denominators=total,
                mask=piece_mask,
                cu_seqlens=offsets,
                scale=scale,
            )
            total_grad += torch.autograd.grad(share, weight)[0]
            value += float(share.detach())
        return value, total_grad

    whole = gradient([(inputs, mask, None)])
    order = torch.randperm(len(lengths), generator=generator)
    chunks = order.tensor_split(parts)
    split = gradient([(inputs[chunk], mask[chunk], None) for chunk in chunks])
    packed = gradient(
        [
            (
                inputs[chunk][inside[chunk]],
                mask[chunk][inside[chunk]],
                torch.nn.functional.pad(lengths[chunk].cumsum(0), (1, 0)),
            )
            for chunk in chunks
        ]
    )
    for value, grad in (split, packed):
        assert value == pytest.approx(whole[0], abs=1e-12)
        torch.testing.assert_close(grad, whole[1], rtol=0, atol=1e-12)
    packed_counts = count(mask[inside], torch.nn.functional.pad(lengths.cumsum(0), (1, 0)))
    assert packed_counts == total
