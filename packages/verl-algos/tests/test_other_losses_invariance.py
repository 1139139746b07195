"""Value losses, KL and preference losses: no split, rank count, order, padding or packing changes value or gradient."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from verl_algos import aggregation, kl, loss_options, preference_losses, value_losses
from verl_algos.aggregation import Mode

SPLITS = ((1, 2), (1, 8), (2, 1), (2, 4), (4, 2), (4, 8))  # ranks, micro-batches on each
MODES: list[Mode] = list(aggregation.MODES)

#: The loss per token of what a model predicts and two fixed columns.
PerToken = Callable[[Tensor, Tensor, Tensor, dict[str, Any]], Tensor]


def value_loss(clip: float | None) -> PerToken:
    def per_token(predicted: Tensor, first: Tensor, second: Tensor, where: dict[str, Any]) -> Tensor:
        old = {"old_values": second} if clip is not None else {}
        return value_losses.compute(values=predicted, returns=first, cliprange_value=clip, **old, **where)[0]

    return per_token


def kl_loss(name: str) -> PerToken:
    def per_token(predicted: Tensor, first: Tensor, second: Tensor, where: dict[str, Any]) -> Tensor:
        return kl.loss(name, logprobs=-1 + predicted, ref_logprobs=-1 - first.abs(), **where)[0]

    return per_token


TOKEN_LOSSES: dict[str, PerToken] = {
    "value, clipped": value_loss(0.1),
    "value, plain": value_loss(None),
    **{f"kl {name}": kl_loss(name) for name in ("k1", "abs", "k2", "k3", "k3+")},
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", TOKEN_LOSSES)
@settings(deadline=None, max_examples=2)
@given(lengths=st.lists(st.integers(0, 6), min_size=8, max_size=11), seed=st.integers(0, 2**31))
def test_losses_of_tokens(name: str, mode: Mode, lengths: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    inside = torch.arange(max(lengths) + 1) < torch.tensor(lengths).unsqueeze(1)
    features = torch.randn(*inside.shape, 3, generator=generator, dtype=torch.float64)
    first, second = (torch.randn(inside.shape, generator=generator, dtype=torch.float64) for _ in range(2))
    mask = inside & (torch.rand(inside.shape, generator=generator) < 0.8)
    total, scale = aggregation.count(mask), 7.0 if mode == "seq-mean-token-sum-norm" else None

    def share(rows: Tensor, is_packed: bool) -> tuple[float, Tensor]:
        weight = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64, requires_grad=True)
        columns = [column[rows] for column in (features, first, second, mask)]
        offsets = None
        if is_packed:
            columns = [column[inside[rows]] for column in columns]
            offsets = torch.nn.functional.pad(torch.tensor(lengths)[rows].cumsum(0), (1, 0))
        predicted = 0.5 * (columns[0] @ weight).tanh()
        where = {"mask": columns[3], "cu_seqlens": offsets}
        per_token = TOKEN_LOSSES[name](predicted, columns[1], columns[2], where)
        loss = aggregation.aggregate(
            per_token, mode=mode, denominators=total, mask=columns[3], cu_seqlens=offsets, scale=scale
        )
        return float(loss.detach()), torch.autograd.grad(loss, weight)[0]

    value, gradient = share(torch.arange(len(lengths)), False)
    for number, (ranks, micro_batches) in enumerate(SPLITS):
        order = torch.randperm(len(lengths), generator=generator)
        parts = [part for rank in order.tensor_split(ranks) for part in rank.tensor_split(micro_batches)]
        shares = [share(part, bool((number + seed) % 2)) for part in parts]
        assert sum(own for own, _ in shares) == pytest.approx(value, abs=1e-12)
        torch.testing.assert_close(sum(own for _, own in shares), gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [*loss_options.PREFERENCE_LOSS_OPTIONS, "bradley_terry"])
@settings(deadline=None, max_examples=3)
@given(seed=st.integers(0, 2**31))
def test_losses_of_pairs(name: str, seed: int) -> None:
    """Divided by the valid pairs of the whole batch; the KL points of kto are those of the whole batch, too."""
    generator = torch.Generator().manual_seed(seed)
    pairs = 11
    features = torch.randn(2, pairs, 3, generator=generator, dtype=torch.float64)
    references = -5 * torch.rand(2, pairs, generator=generator, dtype=torch.float64)
    lengths = torch.randint(0, 6, (2, pairs), generator=generator)
    valid = torch.rand(pairs, generator=generator) < 0.8
    counted = valid & (lengths > 0).all(0) if name != "bradley_terry" else valid
    sides = ("chosen", "rejected")

    def logprobs(weight: Tensor, rows: Tensor) -> list[Tensor]:
        return [-3 + (features[side][rows] @ weight).tanh() for side in range(2)]

    def points(chunks: tuple[Tensor, ...]) -> dict[str, float]:
        fixed = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
        result = {}
        for side in range(2):
            totals = [
                preference_losses.kl_total(logprobs(fixed, rows)[side], references[side][rows], counted[rows])
                for rows in chunks
            ]
            result[f"{sides[side]}_kl"] = sum(s for s, _ in totals) / max(sum(c for _, c in totals), 1.0)
        return result

    def share(rows: Tensor, options: dict[str, Any]) -> tuple[float, Tensor]:
        weight = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64, requires_grad=True)
        chosen, rejected = logprobs(weight, rows)
        if name == "bradley_terry":
            loss, _ = preference_losses.bradley_terry(
                chosen_rewards=chosen, rejected_rewards=rejected, valid=valid[rows], center_coef=0.1
            )
        else:
            columns: dict[str, Any] = {f"{sides[side]}_lengths": lengths[side][rows] for side in range(2)}
            if "ref_chosen_logprobs" in loss_options.PREFERENCE_LOSS_INPUTS[name]:
                columns |= {f"ref_{sides[side]}_logprobs": references[side][rows] for side in range(2)}
            loss, _ = preference_losses.compute(
                name, chosen_logprobs=chosen, rejected_logprobs=rejected, valid=valid[rows], **columns, **options
            )
        mean = loss.sum() / max(float(counted.sum()), 1.0)
        return float(mean.detach()), torch.autograd.grad(mean, weight)[0]

    value, gradient = share(torch.arange(pairs), {})
    for ranks, micro_batches in SPLITS:
        order = torch.randperm(pairs, generator=generator)
        parts = tuple(part for rank in order.tensor_split(ranks) for part in rank.tensor_split(micro_batches))
        options = points(parts) if name == "kto" else {}
        shares = [share(part, options) for part in parts]
        assert sum(own for own, _ in shares) == pytest.approx(value, abs=1e-12)
        torch.testing.assert_close(sum(own for _, own in shares), gradient, rtol=0, atol=1e-12)
