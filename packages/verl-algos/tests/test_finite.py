"""Finite values and finite gradients for every finite input, of every public function and in every floating type."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from verl_algos import (
    advantages,
    aggregation,
    kl,
    logprobs,
    loss_options,
    masked,
    policy_losses,
    preference_losses,
    rollout_correction,
    value_losses,
)
from verl_algos.estimators import ESTIMATORS

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
NEEDED: dict[str, dict[str, Any]] = {
    "dro": {"dro_beta": 0.5},
    "clip_cov": {"seed": 0, "clip_cov_ratio": 0.5, "clip_cov_lb": -1e9, "clip_cov_ub": 1e9},
    "kl_cov": {"kl_cov_ratio": 0.5},
}
SHAPE = (3, 4)
Metrics = dict[str, tuple[Tensor, Tensor]]


class Draw:
    """Columns of one type that mix ordinary numbers with the smallest and the largest that it holds."""

    def __init__(self, dtype: torch.dtype, seed: int) -> None:
        largest = torch.finfo(dtype).max
        chosen = [0.0, -1e-30, 1e-30, 0.5, 1.0, -1.0, -20.0, -1e4, 1e4, -1e30, 1e30, -largest, largest]
        self.numbers = torch.tensor([min(max(x, -largest), largest) for x in chosen], dtype=torch.float64).to(dtype)
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> Tensor:
        return self.numbers[torch.randint(len(self.numbers), shape or SHAPE, generator=self.generator)]

    def trained(self, *shape: int) -> Tensor:
        return self(*shape).requires_grad_()

    def mask(self) -> Tensor:
        return torch.rand(SHAPE, generator=self.generator) < 0.8

    def whole(self, below: int, *shape: int) -> Tensor:
        return torch.randint(below, shape, generator=self.generator)


def finite(*numbers: Tensor | float) -> None:
    for number in numbers:
        if isinstance(number, Tensor):
            assert number.isfinite().all(), number
        else:
            assert math.isfinite(number), number


def finite_pairs(metrics: Metrics) -> None:
    for name, pair in metrics.items():
        assert all(bool(number.isfinite()) for number in pair), (name, pair)


def finite_gradients(value: Tensor, *inputs: Tensor) -> None:
    finite(value, *torch.autograd.grad(value.sum(), inputs, retain_graph=True))


every_type = pytest.mark.parametrize("dtype", DTYPES)
SEEDS = st.integers(0, 2**31)
few = settings(deadline=None, max_examples=8)


@every_type
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", loss_options.POLICY_LOSS_OPTIONS)
@few
@given(seed=SEEDS)
def test_policy_losses(name: str, weighted: bool, dtype: torch.dtype, seed: int) -> None:
    draw = Draw(dtype, seed)
    current, mask = draw.trained(), draw.mask()
    loss, metrics = policy_losses.compute(
        name,
        logprobs=current,
        old_logprobs=draw(),
        advantages=draw(),
        mask=mask,
        rollout_weights=draw().abs() if weighted else None,
        **NEEDED.get(name, {}),
    )
    finite_gradients(loss, current)
    finite_pairs(metrics)
    mode = loss_options.AGGREGATION_MODES[name][0]
    total = aggregation.aggregate(loss, mode=mode, denominators=aggregation.count(mask), mask=mask)
    finite_gradients(total, current)


def test_what_does_not_overflow_is_exact() -> None:
    """The formula holds as far as its value can be written: -A log-prob of 1e30 is 1e30."""
    current = torch.tensor([[-1e30, -1e4, -1e-30]], requires_grad=True)
    loss, _ = policy_losses.compute(
        "gpg", logprobs=current, old_logprobs=torch.zeros(1, 3), advantages=torch.tensor([[1.0, 2.0, -3.0]])
    )
    torch.testing.assert_close(loss.detach(), torch.tensor([[1e30, 2e4, -3e-30]]))
    assert torch.autograd.grad(loss.sum(), current)[0].tolist() == [[-1, -2, 3]]


@every_type
@pytest.mark.parametrize("mode", aggregation.MODES)
@few
@given(seed=SEEDS)
def test_aggregation(mode: aggregation.Mode, dtype: torch.dtype, seed: int) -> None:
    draw = Draw(dtype, seed)
    loss, mask = draw.trained(), draw.mask()
    scale = 3.0 if mode == "seq-mean-token-sum-norm" else None
    value = aggregation.aggregate(loss, mode=mode, denominators=aggregation.count(mask), mask=mask, scale=scale)
    finite_gradients(value, loss)


def test_a_loss_that_is_not_finite_is_not_hidden() -> None:
    """Only overflow is bounded: a loss that is infinite or NaN at a trained token stays visible."""
    one = aggregation.Denominators(2, 1)
    for bad in (math.inf, -math.inf, math.nan):
        value = aggregation.aggregate(torch.tensor([[1.0, bad]]), mode="token-mean", denominators=one)
        assert not value.isfinite()
        values = torch.tensor([[1.0, bad]])
        assert not value_losses.compute(values=values, returns=values * 0, cliprange_value=None)[0].isfinite().all()
        assert (
            not kl.apply_kl_to_rewards(
                token_rewards=values, logprobs=torch.zeros(1, 2), ref_logprobs=torch.zeros(1, 2), coef=0.1
            )[0]
            .isfinite()
            .all()
        )
    mean = aggregation.aggregate(torch.full((1, 2), 3e38), mode="token-mean", denominators=one)
    assert float(mean) == pytest.approx(3e38)  # though the sum is none of float32's


@every_type
@pytest.mark.parametrize("name", [*kl.PENALTIES, *kl.STRAIGHT_THROUGH])
@few
@given(seed=SEEDS)
def test_kl_as_a_loss_and_in_the_reward(name: str, dtype: torch.dtype, seed: int) -> None:
    """Bug bank C23, for every estimator and type: neither the value nor the gradient overflows."""
    draw = Draw(dtype, seed)
    current, ref, mask = draw.trained(), draw(), draw.mask()
    loss, metrics = kl.loss(name, logprobs=current, ref_logprobs=ref, mask=mask)
    finite_gradients(loss, current)
    finite_pairs(metrics)
    rewards, metrics = kl.apply_kl_to_rewards(
        token_rewards=draw(), logprobs=current, ref_logprobs=ref, coef=0.3, penalty=name, mask=mask
    )
    finite(rewards)
    finite_pairs(metrics)


@every_type
@pytest.mark.parametrize("temperature", [1.0, 0.01, 3.0])
@few
@given(seed=SEEDS)
def test_functions_of_logits(temperature: float, dtype: torch.dtype, seed: int) -> None:
    draw = Draw(dtype, seed)
    logits = draw.trained(2, 3, 5)
    ids = draw.whole(5, 2, 3)
    for value in (
        logprobs.logprobs_from_logits(logits, ids, temperature),
        logprobs.entropy_from_logits(logits, temperature),
        kl.full(logits, draw(2, 3, 5), temperature),
    ):
        finite_gradients(value, logits)
    finite(advantages.sum_pi_squared(logits, temperature))


def test_a_low_temperature_gives_the_limit_of_greedy_sampling() -> None:
    logits = torch.tensor([[1e30, 2e30, -1e30]])
    ids = torch.tensor([1])
    assert float(logprobs.logprobs_from_logits(logits, ids, 1e-10)) == 0.0
    assert float(logprobs.entropy_from_logits(logits, 1e-10)) == 0.0


@every_type
@pytest.mark.parametrize("clip", [0.5, None])
@few
@given(seed=SEEDS)
def test_value_losses(clip: float | None, dtype: torch.dtype, seed: int) -> None:
    draw = Draw(dtype, seed)
    values, returns, mask = draw.trained(), draw(), draw.mask()
    loss, metrics = value_losses.compute(
        values=values, returns=returns, old_values=draw(), mask=mask, cliprange_value=clip
    )
    finite_gradients(loss, values)
    finite_pairs(metrics)
    finite(value_losses.explained_variance(values.detach(), returns, mask))


@every_type
@few
@given(seed=SEEDS)
def test_masked_statistics(dtype: torch.dtype, seed: int) -> None:
    draw = Draw(dtype, seed)
    x, mask = draw.trained(), draw.mask()
    finite_gradients(masked.masked_mean(x, mask), x)
    finite_gradients(masked.masked_sum(x, mask), x)
    finite_gradients(masked.masked_var(x, mask), x)
    finite_gradients(masked.masked_whiten(x, mask), x)


@every_type
@pytest.mark.parametrize("name", loss_options.PREFERENCE_LOSS_OPTIONS)
@few
@given(seed=SEEDS)
def test_preference_losses(name: str, dtype: torch.dtype, seed: int) -> None:
    draw = Draw(dtype, seed)
    chosen, rejected = draw.trained(5), draw.trained(5)
    columns: dict[str, Any] = {
        key: draw(5) for key in loss_options.PREFERENCE_LOSS_INPUTS[name] if key.startswith("ref_")
    }
    for lengths in (True, False) if name in ("dpo", "ipo", "kto") else (True,):
        if lengths:
            columns |= {key: draw.whole(4, 5) for key in ("chosen_lengths", "rejected_lengths")}
        else:
            columns = {key: value for key, value in columns.items() if "lengths" not in key}
        loss, metrics = preference_losses.compute(name, chosen_logprobs=chosen, rejected_logprobs=rejected, **columns)
        finite_gradients(loss, chosen, rejected)
        finite_pairs(metrics)
    if name == "kto":
        finite(*preference_losses.kl_total(chosen, draw(5)))


@every_type
@few
@given(seed=SEEDS, centre=st.sampled_from([0.0, 0.01, 5.0]))
def test_bradley_terry_and_sequence_sums(dtype: torch.dtype, seed: int, centre: float) -> None:
    draw = Draw(dtype, seed)
    chosen, rejected, tokens = draw.trained(5), draw.trained(5), draw.trained()
    loss, metrics = preference_losses.bradley_terry(
        chosen_rewards=chosen, rejected_rewards=rejected, margin=draw(5), center_coef=centre
    )
    finite_gradients(loss, chosen, rejected)
    finite_pairs(metrics)
    finite_gradients(preference_losses.sequence_logprobs(tokens, draw.mask())[0], tokens)


@every_type
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@few
@given(seed=SEEDS)
def test_rollout_correction(level: Any, dtype: torch.dtype, seed: int) -> None:
    draw = Draw(dtype, seed)
    old, rollout, mask = draw(), draw(), draw.mask()
    result = rollout_correction.correct(
        old_logprobs=old,
        rollout_logprobs=rollout,
        mask=mask,
        rollout_is=level,
        rollout_is_batch_normalize=True,
        rollout_rs="token_k1,token_k3,seq_sum_k2,seq_mean_k1,seq_max_k2",
        rollout_rs_threshold=1.5,
    )
    assert result.weights is not None
    finite(result.weights, *result.metrics.values())
    finite(*rollout_correction.probability_metrics(old, rollout, mask).values())


@every_type
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@few
@given(seed=SEEDS, gamma=st.sampled_from([1.0, 0.9]))
def test_advantages(name: str, normalised: bool, dtype: torch.dtype, seed: int, gamma: float) -> None:
    draw = Draw(dtype, seed)
    result, returns = advantages.compute(
        name,
        token_rewards=draw(),
        mask=draw.mask(),
        group=torch.tensor([0, 0, 1]),
        values=draw(),
        baseline=draw(3),
        reward_components={"a": draw(3), "b": draw(3)},
        old_logprobs=-draw().abs(),
        sum_pi_squared=torch.rand(SHAPE, generator=draw.generator).to(dtype),
        rollout_weights=draw().abs(),
        gamma=gamma,
        lam=0.95,
        whiten=normalised,
        norm_by_std=normalised,
    )
    finite(result, returns)


def test_gae_of_numbers_whose_sums_leave_float32() -> None:
    """The sums on the way are float64's, and what a float32 can hold is exact."""
    rewards, values = torch.tensor([[3e38, 3e38, -3e38]]), torch.tensor([[-3e38, 0.0, 0.0]])
    result, returns = advantages.compute("gae", token_rewards=rewards, values=values, whiten=False)
    largest = torch.finfo(torch.float32).max
    torch.testing.assert_close(returns, torch.tensor([[3e38, 0.0, -3e38]]))
    torch.testing.assert_close(result, torch.tensor([[largest, 0.0, -3e38]]))


def test_half_precision_rollout_weights_are_squared_in_float64() -> None:
    """65,504 squared is none of float16's: the baseline is that of the second sequence alone, whose weight it is."""
    half: dict[str, Any] = {"dtype": torch.float16}
    result, _ = advantages.compute(
        "optimal_token_baseline",
        token_rewards=torch.tensor([[1.0], [3.0]], **half),
        group=torch.tensor([0, 0]),
        old_logprobs=torch.tensor([[-1.0], [-1.0]], **half),
        sum_pi_squared=torch.tensor([[0.5], [0.5]], **half),
        rollout_weights=torch.tensor([[1.0], [65504.0]], **half),
    )
    torch.testing.assert_close(result, torch.tensor([[-2.0], [0.0]]), rtol=0, atol=1e-6)
