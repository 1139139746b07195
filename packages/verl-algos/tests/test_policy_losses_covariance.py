"""Clip-Cov and KL-Cov: the formulas, the choice of tokens, and that no split, order or padding changes it."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from verl_algos import policy_losses

OLD = torch.tensor([[0.5, 0.25, 0.1], [0.4, 0.2, 0.3]], dtype=torch.float64).log()
NEW = torch.tensor([[0.55, 0.15, 0.35], [0.22, 0.23, 0.15]], dtype=torch.float64).log()
ADVANTAGES = torch.tensor([[1.0, 1, 1], [-1, -1, -1]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]], dtype=torch.bool)


def batch(sequences: int, width: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(sequences, width, generator=generator) < 0.8
    logprobs = -3 * torch.rand(sequences, width, generator=generator, dtype=torch.float64)
    advantages = torch.randn(sequences, 1, generator=generator, dtype=torch.float64).expand(-1, width)
    return logprobs, advantages, mask


def covariances(logprobs: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    a, lp = advantages[mask], logprobs[mask]
    return torch.zeros_like(logprobs).masked_scatter(mask, (a - a.mean()) * (lp - lp.mean()))


def test_kl_cov_by_hand() -> None:
    """The largest covariance is the fourth token's: A below its mean 0.2, log-prob 0.22 below the others' mean."""
    loss, metrics = policy_losses.compute(
        "kl_cov",
        logprobs=NEW,
        old_logprobs=OLD,
        advantages=ADVANTAGES,
        mask=MASK,
        kl_cov_ratio=0.2,
        ppo_kl_coef=0.5,
    )
    largest = covariances(NEW, ADVANTAGES, MASK).masked_fill(~MASK, -math.inf).argmax()
    expected = torch.where(MASK, -ADVANTAGES * (NEW - OLD).exp(), 0).flatten()
    expected[largest] += 0.5 * abs(float((NEW - OLD).flatten()[largest]))
    torch.testing.assert_close(loss.flatten(), expected)
    assert [float(x) for x in metrics["pg_kl_penalized"]] == [1, 5]
    assert float(metrics["ppo_kl_abs"][0]) == pytest.approx(float((NEW - OLD).abs()[MASK].sum()))


def test_clip_cov_drops_only_tokens_within_the_bounds_that_the_clip_left_alone() -> None:
    logprobs, advantages, mask = batch(40, 25, seed=3)
    old = logprobs + 0.3 * torch.randn(logprobs.shape, generator=torch.Generator().manual_seed(1)).double()
    common: Any = {"logprobs": logprobs, "old_logprobs": old, "advantages": advantages, "mask": mask}
    bounds: Any = {"clip_cov_ratio": 0.02, "clip_cov_lb": 0.1, "clip_cov_ub": 0.9}
    plain, _ = policy_losses.compute("clip_cov", **common, seed=0, clip_cov_lb=1e6, clip_cov_ub=2e6)
    loss, metrics = policy_losses.compute("clip_cov", **common, **bounds, seed=7)
    dropped = (loss == 0) & (plain != 0)
    quota = int(0.02 * int(mask.sum()))
    assert [float(x) for x in metrics["pg_clipfrac"]] == [quota, float(mask.sum())]
    assert int(dropped.sum()) == quota
    covariance = covariances(logprobs, advantages, mask)[dropped]
    assert (covariance > 0.1).all() and (covariance < 0.9).all()
    ratio = (logprobs - old).exp()[dropped]
    cut = -advantages[dropped] * ratio.clamp(0.8, 1.2) > -advantages[dropped] * ratio
    assert not cut.any()
    torch.testing.assert_close(loss[~dropped], plain[~dropped])


def test_clip_cov_without_dual_clip() -> None:
    loss, _ = policy_losses.compute(
        "clip_cov",
        logprobs=torch.tensor([[10.0]]).log(),
        old_logprobs=torch.zeros(1, 1),
        advantages=-torch.ones(1, 1),
        seed=0,
    )
    assert float(loss) == pytest.approx(10.0)


def test_draws_depend_on_the_seed_and_are_even() -> None:
    """Of 200 equal candidates 20 are drawn; over 400 seeds each 40 times, give or take 5.5 sigma."""
    logprobs = torch.tensor([-1.0, -3.0]).repeat(100).view(10, 20).double()
    advantages = torch.tensor([1.0, -1.0]).repeat(100).view(10, 20).double()  # all covariances are 1
    counts = torch.zeros(10, 20)
    for seed in range(400):
        counts += policy_losses.select_by_covariance(
            "clip_cov",
            logprobs=logprobs,
            advantages=advantages,
            seed=seed,
            clip_cov_ratio=0.1,
            clip_cov_lb=0.5,
            clip_cov_ub=2,
        )
    assert int(counts.sum()) == 400 * 20
    assert float((counts - 40).abs().max()) < 5.5 * math.sqrt(400 * 0.1 * 0.9)


def test_the_choice_touches_no_global_generator() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    policy_losses.compute("clip_cov", logprobs=NEW, old_logprobs=OLD, advantages=ADVANTAGES, mask=MASK, seed=3)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
@settings(deadline=None, max_examples=30)
@given(seed=st.integers(-(2**62), 2**62), shape=st.tuples(st.integers(1, 9), st.integers(1, 9)), equal=st.booleans())
def test_order_padding_and_packing_do_not_change_the_choice(
    name: str, seed: int, shape: tuple[int, int], equal: bool
) -> None:
    logprobs, advantages, mask = batch(*shape, seed=abs(seed) % 1000)
    if equal:  # equal covariances: only the hash decides
        logprobs, advantages = torch.zeros_like(logprobs), torch.zeros_like(advantages)
    keys = torch.arange(shape[0]) * 17 + 5
    ratio: Any = {f"{name}_ratio": 0.3}
    if name == "clip_cov":
        ratio |= {"clip_cov_lb": -0.5, "clip_cov_ub": 0.5}

    def choose(order: Tensor, left: int) -> Tensor:
        pad = torch.nn.functional.pad
        chosen = policy_losses.select_by_covariance(
            name,
            logprobs=pad(logprobs[order], (left, 2), value=math.nan),
            advantages=pad(advantages[order], (left, 2), value=math.nan),
            mask=pad(mask[order], (left, 2)),
            seed=seed,
            sequence_keys=keys[order],
            **ratio,
        )
        return chosen[:, left:-2][order.argsort()]

    whole = choose(torch.arange(shape[0]), 0)
    assert not (whole & ~mask).any()
    assert torch.equal(whole, choose(torch.randperm(shape[0], generator=torch.Generator().manual_seed(1)), 3))
    packed = policy_losses.select_by_covariance(
        name,
        logprobs=logprobs[mask],
        advantages=advantages[mask],
        cu_seqlens=torch.nn.functional.pad(mask.sum(1).cumsum(0), (1, 0)),
        seed=seed,
        sequence_keys=keys,
        **ratio,
    )
    assert torch.equal(packed, whole[mask])
    if name == "kl_cov" and mask.any():
        assert int(whole.sum()) == max(1, int(0.3 * int(mask.sum())))


def test_selected_tokens_are_a_column_of_the_batch() -> None:
    """A trainer chooses before it splits the mini-batch; old log-probs stand for those of the policy."""
    logprobs, advantages, mask = batch(16, 12, seed=5)
    chosen = policy_losses.select_by_covariance(
        "kl_cov", logprobs=logprobs, advantages=advantages, mask=mask, kl_cov_ratio=0.1
    )
    current = logprobs + 0.1

    def share(rows: slice) -> float:
        loss, _ = policy_losses.compute(
            "kl_cov",
            logprobs=current[rows],
            old_logprobs=logprobs[rows],
            advantages=advantages[rows],
            mask=mask[rows],
            covariance_selected=chosen[rows],
        )
        return float(loss.sum())

    assert sum(share(slice(i, i + 2)) for i in range(0, 16, 2)) == pytest.approx(share(slice(0, 16)), abs=1e-12)


def test_refusals() -> None:
    common: Any = {"logprobs": NEW, "old_logprobs": OLD, "advantages": ADVANTAGES, "mask": MASK}
    with pytest.raises(ValueError, match="'clip_cov' draws tokens: give covariance_selected"):
        policy_losses.compute("clip_cov", **common)
    with pytest.raises(ValueError, match="seed belongs to the losses clip_cov and kl_cov"):
        policy_losses.compute("vanilla", **common, seed=1)
    with pytest.raises(ValueError, match=r"clip_cov_lb=5\.0 is not below clip_cov_ub=5"):
        policy_losses.compute("clip_cov", **common, seed=1, clip_cov_lb=5.0, clip_cov_ub=5.0)
    with pytest.raises(ValueError, match=r"covariance_selected has shape \(1, 3\)"):
        policy_losses.compute("kl_cov", **common, covariance_selected=MASK[:1])
    select: Any = {"logprobs": NEW, "advantages": ADVANTAGES, "mask": MASK}
    with pytest.raises(ValueError, match="'vanilla' chooses no tokens"):
        policy_losses.select_by_covariance("vanilla", **select)
    with pytest.raises(ValueError, match="takes no option 'kl_cov_ratio'"):
        policy_losses.select_by_covariance("clip_cov", **select, kl_cov_ratio=0.1)
    with pytest.raises(ValueError, match=r"sequence_keys has shape \(3,\)"):
        policy_losses.select_by_covariance("clip_cov", **select, sequence_keys=torch.arange(3))
    with pytest.raises(ValueError, match=r"exclude has shape \(1, 3\)"):
        policy_losses.select_by_covariance("clip_cov", **select, exclude=MASK[:1])


def test_ratio_zero_chooses_nothing() -> None:
    chosen = policy_losses.select_by_covariance("kl_cov", logprobs=NEW, advantages=ADVANTAGES, kl_cov_ratio=0.0)
    assert not chosen.any()
