"""Every policy loss with every aggregation it allows: no split, rank count, order, padding or packing changes it."""

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from verl_algos import aggregation, loss_options, policy_losses
from verl_algos.aggregation import Mode

CASES = [(name, mode) for name, modes in loss_options.AGGREGATION_MODES.items() for mode in modes]
Columns = dict[str, Tensor]
Totals = dict[str, tuple[float, float]]  # sum and count of each metric


def test_every_loss_has_its_modes() -> None:
    assert set(loss_options.AGGREGATION_MODES) == set(loss_options.POLICY_LOSS_OPTIONS)
    assert len(CASES) == 9 * 5 + 2


@pytest.mark.parametrize(("name", "mode"), CASES)
@settings(deadline=None, max_examples=2)
@given(lengths=st.lists(st.integers(0, 6), min_size=8, max_size=11), seed=st.integers(0, 2**31), weighted=st.booleans())
def test_loss_and_gradient_do_not_depend_on_the_split(
    name: str, mode: Mode, lengths: list[int], seed: int, weighted: bool
) -> None:
    """Every number of ranks with every number of micro-batches, padded or packed, in another order each time.

    Ranks are parts whose gradients are averaged after each multiplied its own by their number.
    """
    generator = torch.Generator().manual_seed(seed)
    inside = torch.arange(max(lengths) + 1) < torch.tensor(lengths).unsqueeze(1)

    def draw() -> Tensor:
        return torch.randn(inside.shape, generator=generator, dtype=torch.float64)

    columns: Columns = {
        "features": torch.randn(*inside.shape, 3, generator=generator, dtype=torch.float64),
        "old_logprobs": -1 - 0.3 * draw().abs(),
        "advantages": draw(),
        "mask": inside & (torch.rand(inside.shape, generator=generator) < 0.8),
    }
    if "covariance_selected" in loss_options.MINI_BATCH_INPUTS.get(name, ()):
        columns["covariance_selected"] = torch.rand(inside.shape, generator=generator) < 0.3
    if weighted:
        columns["rollout_weights"] = draw().abs()
    options: Any = {"dro_beta": 0.5} if name == "dro" else {}
    denominators = aggregation.count(columns["mask"])
    scale = 7.0 if mode == "seq-mean-token-sum-norm" else None

    def run(parts: list[tuple[Columns, Tensor | None]], factor: float) -> tuple[float, Tensor, Totals]:
        weight = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64, requires_grad=True)
        value, gradient = 0.0, torch.zeros(3, dtype=torch.float64)
        totals: Totals = {}
        for part, cu_seqlens in parts:
            inputs: Any = dict(part)
            logprobs = -1 + 0.5 * (inputs.pop("features") @ weight).tanh()
            loss, metrics = policy_losses.compute(name, logprobs=logprobs, cu_seqlens=cu_seqlens, **inputs, **options)
            share = factor * aggregation.aggregate(
                loss, mode=mode, denominators=denominators, mask=part["mask"], cu_seqlens=cu_seqlens, scale=scale
            )
            value += float(share.detach())
            gradient += torch.autograd.grad(share, weight)[0]
            for key, (s, c) in metrics.items():
                before = totals.get(key, (0.0, 0.0))
                totals[key] = (before[0] + float(s), before[1] + float(c))
        return value, gradient, totals

    def padded(index: Tensor) -> tuple[Columns, None]:
        return {key: column[index] for key, column in columns.items()}, None

    def packed(index: Tensor) -> tuple[Columns, Tensor]:
        flat = {key: column[index][inside[index]] for key, column in columns.items()}
        return flat, torch.nn.functional.pad(torch.tensor(lengths)[index].cumsum(0), (1, 0))

    whole = run([(columns, None)], 1.0)
    for number, (ranks, micro_batches) in enumerate(itertools.product((1, 2, 4), (1, 2, 4, 8))):
        make = padded if (number + seed) % 2 else packed
        order = torch.randperm(len(lengths), generator=generator)
        shards = [rank.tensor_split(micro_batches) for rank in order.tensor_split(ranks)]
        per_rank = [run([make(index) for index in shard], float(ranks)) for shard in shards]
        assert sum(value for value, _, _ in per_rank) / ranks == pytest.approx(whole[0], abs=1e-12)
        mean = torch.stack([gradient for _, gradient, _ in per_rank]).mean(0)
        torch.testing.assert_close(mean, whole[1], rtol=0, atol=1e-12)
        for key, pair in whole[2].items():
            assert [sum(totals[key][i] for _, _, totals in per_rank) for i in (0, 1)] == pytest.approx(pair, abs=1e-10)
