"""Every policy loss beside vanilla: verl-facts P6 to P13, textbook formulas with their gradients, poison, options."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from verl_algos import aggregation, loss_options, policy_losses

OLD = torch.tensor([[0.5, 0.25, 0.1], [0.4, 0.2, 0.3]], dtype=torch.float64).log()
NEW = torch.tensor([[0.55, 0.15, 0.35], [0.22, 0.23, 0.15]], dtype=torch.float64).log()
ADVANTAGES = torch.tensor([[1.0, 1, 1], [-1, -1, -1]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]], dtype=torch.bool)

#: Options and inputs that a loss cannot do without.
NEEDED: dict[str, dict[str, Any]] = {"dro": {"dro_beta": 0.5}, "clip_cov": {"seed": 0}}
NAMES = tuple(loss_options.POLICY_LOSS_OPTIONS)


def published(name: str, **options: Any) -> tuple[float, dict[str, float]]:
    """The aggregated loss in the published mode, and the means of the metrics, of the case of verl-facts 5.2."""
    loss, metrics = policy_losses.compute(
        name, logprobs=NEW, old_logprobs=OLD, advantages=ADVANTAGES, mask=MASK, **{**NEEDED.get(name, {}), **options}
    )
    assert float(loss[1, 2]) == 0
    mode = loss_options.AGGREGATION_MODES[name][0]
    total = aggregation.aggregate(loss, mode=mode, denominators=aggregation.count(MASK), mask=MASK)
    return float(total), {key: float(s) / float(c) for key, (s, c) in metrics.items()}


@pytest.mark.parametrize(
    ("low", "high", "expected", "clipfrac"), [(0.0003, 0.0004, -0.000350001, 1.0), (0.2, 0.2, -0.2, None)]
)
def test_p6_gspo(low: float, high: float, expected: float, clipfrac: float | None) -> None:
    loss, metrics = published("gspo", clip_ratio_low=low, clip_ratio_high=high)
    assert loss == pytest.approx(expected, abs=2e-9)
    assert clipfrac is None or metrics["pg_clipfrac"] == clipfrac


def test_p6_gspo_sequence_ratios() -> None:
    loss, _ = policy_losses.compute(
        "gspo",
        logprobs=NEW,
        old_logprobs=OLD,
        advantages=-ADVANTAGES.abs(),
        mask=MASK,
        clip_ratio_low=1.0,
        clip_ratio_high=9.0,
    )
    assert loss[:, 0].tolist() == pytest.approx([1.321916408, 0.795298686], abs=1e-8)


def test_p7_cispo() -> None:
    loss, metrics = published("cispo")
    assert loss == pytest.approx(0.106734737, abs=1e-8)
    assert metrics["pg_clipfrac"] == pytest.approx(0.6)


def test_cispo_without_a_lower_bound_takes_the_published_10() -> None:
    bounded, _ = published("cispo", clip_ratio_low=0.2)
    without, metrics = published("cispo", clip_ratio_low=10.0)
    assert without == published("cispo", clip_ratio_low=1.0)[0] != bounded
    assert metrics["pg_clipfrac"] < 0.6


def test_p9_geo_mean() -> None:
    """The published clip fractions count tokens outside the band whether or not the clip acted (against bug bank C26);
    pg_cutfrac says where it acted: on the ratios 3.5 and 0.55 alone, not on 0.6 with a positive advantage."""
    loss, metrics = published("geo_mean")
    assert loss == pytest.approx(0.019824411, abs=1e-8)
    assert metrics["pg_clipfrac"] == pytest.approx(0.4)
    assert metrics["pg_clipfrac_lower"] == pytest.approx(0.2)
    assert metrics["pg_cutfrac"] == pytest.approx(0.4)
    per_token, _ = policy_losses.compute("geo_mean", logprobs=NEW, old_logprobs=OLD, advantages=ADVANTAGES, mask=MASK)
    assert per_token[:, 0].tolist() == pytest.approx([-0.930681206, 0.970330030], abs=1e-8)


def test_p10_dro() -> None:
    assert published("dro", dro_beta=0.5)[0] == pytest.approx(0.223014301, abs=1e-8)


def test_p13_gpg() -> None:
    assert published("gpg")[0] == pytest.approx(0.112195081, abs=1e-8)


def test_sapo_by_hand() -> None:
    ratios, taus = [1.1, 0.6, 3.5, 0.55, 1.15], [1.0, 1.0, 1.0, 1.05, 1.05]
    gates = [4 / tau / (1 + math.exp(-tau * (ratio - 1))) for ratio, tau in zip(ratios, taus, strict=True)]
    expected = (-sum(gates[:3]) / 3 + sum(gates[3:]) / 2) / 2
    assert published("sapo")[0] == pytest.approx(expected, abs=1e-9)


def test_dppo_tv_by_hand() -> None:
    """Differences of probabilities 0.05, -0.1, 0.25 and -0.18, 0.03: with 0.1 the third and fourth are outside."""
    loss, metrics = published("dppo_tv", clip_ratio_low=0.1, clip_ratio_high=0.1)
    kept = [-1.1 * math.log(0.55), -0.6 * math.log(0.15), 1.15 * math.log(0.23)]
    assert loss == pytest.approx(sum(kept) / 5, abs=1e-9)
    assert metrics["pg_clipfrac"] == pytest.approx(0.4)


def test_dppo_truncates_at_20_unless_told_otherwise() -> None:
    """verl-facts 7.6: the original intends 20 and always gets 3 from its configuration."""
    common: Any = {
        "logprobs": torch.tensor([[0.01]], dtype=torch.float64).log(),
        "old_logprobs": torch.tensor([[0.0001]], dtype=torch.float64).log(),
        "advantages": torch.ones(1, 1, dtype=torch.float64),
    }
    loss, metrics = policy_losses.compute("dppo_tv", **common)
    assert float(loss) == pytest.approx(-20 * math.log(0.01))
    assert [float(x) for x in metrics["pg_clipfrac_lower"]] == [1, 1]
    assert float(policy_losses.compute("dppo_kl", **common, clip_ratio_c=3)[0]) == pytest.approx(-3 * math.log(0.01))


def test_dppo_kl_keeps_tokens_that_move_back() -> None:
    """KL of (0.5, 0.5) from (0.9, 0.1) is 0.368: outside 0.05 unless the gradient leads back to the old policy."""
    for advantage, kept in ((1.0, True), (-1.0, False)):
        loss, _ = policy_losses.compute(
            "dppo_kl",
            logprobs=torch.tensor([[0.5]]).log(),
            old_logprobs=torch.tensor([[0.9]]).log(),
            advantages=torch.tensor([[advantage]]),
            clip_ratio_low=0.05,
            clip_ratio_high=0.05,
        )
        assert (float(loss) != 0) is kept
    divergence = 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5)
    for limit, kept in ((divergence + 1e-4, True), (divergence - 1e-4, False)):
        loss, _ = policy_losses.compute(
            "dppo_kl",
            logprobs=torch.tensor([[0.5]]).log(),
            old_logprobs=torch.tensor([[0.9]]).log(),
            advantages=torch.tensor([[-1.0]]),
            clip_ratio_low=limit,
        )
        assert (float(loss) != 0) is kept


def textbook(name: str, log_ratio: Tensor, old: Tensor, advantage: Tensor) -> Tensor:
    """The loss of one sequence as its paper states it, its mean over tokens (or sequence), for autograd."""
    logprob, ratio = log_ratio + old, log_ratio.exp()
    if name == "gspo":
        s = log_ratio.mean().exp()
        return torch.maximum(-advantage[0] * s, -advantage[0] * s.clamp(0.8, 1.2))
    if name == "geo_mean":
        sign = advantage[0].sign()
        kept = sign * torch.minimum(sign * log_ratio, sign * log_ratio.clamp(-0.2, 0.2))
        return -advantage[0] * torch.prod(kept.exp()) ** (1 / len(kept))
    if name == "sapo":
        tau = torch.where(advantage > 0, torch.tensor(1.0).double(), torch.tensor(1.05, dtype=torch.float64))
        return (-advantage * 4 / tau / (1 + (-tau * (ratio - 1)).exp())).mean()
    if name == "cispo":
        return (-ratio.clamp(0.8, 1.2).detach() * advantage * logprob).mean()
    if name == "gpg":
        return (-advantage * logprob).mean()
    if name == "dro":
        return -(advantage * logprob - 0.25 * log_ratio**2).mean()
    p, q = logprob.detach().exp(), old.exp()
    if name == "dppo_tv":
        inside = torch.where(advantage > 0, p - q <= 0.2, p - q >= -0.2)
    else:
        kl = q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log()
        inside = torch.where(advantage > 0, (kl <= 0.2) | (p <= q), (kl <= 0.2) | (p >= q))
    return (-advantage * ratio.detach().clamp(max=20) * logprob * inside).mean()


@pytest.mark.parametrize("name", ["gspo", "geo_mean", "sapo", "cispo", "gpg", "dro", "dppo_tv", "dppo_kl"])
@settings(deadline=None, max_examples=25)
@given(
    tokens=st.lists(st.tuples(st.floats(-0.7, 0.7), st.floats(-3, -0.75)), min_size=1, max_size=12),
    advantage=st.sampled_from([-1.7, -0.3, 0.4, 2.0]),
)
def test_gradient_equals_that_of_the_textbook_formula(
    name: str, tokens: list[tuple[float, float]], advantage: float
) -> None:
    log_ratio, old = torch.tensor(tokens, dtype=torch.float64).unbind(1)
    advantages = torch.full_like(old, advantage)
    logprobs = (log_ratio + old).requires_grad_()
    offsets = torch.tensor([0, len(tokens)])
    loss, _ = policy_losses.compute(
        name,
        logprobs=logprobs,
        old_logprobs=old,
        advantages=advantages,
        cu_seqlens=offsets,
        **NEEDED.get(name, {}),
    )
    one = aggregation.Denominators(len(tokens), 1)
    ours = aggregation.aggregate(loss, mode="seq-mean-token-mean", denominators=one, cu_seqlens=offsets)
    expected = textbook(name, log_ratio.requires_grad_(), old, advantages)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        torch.autograd.grad(ours, logprobs)[0], torch.autograd.grad(expected, log_ratio)[0], rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("name", ["gspo", "geo_mean", "vanilla", "kl_cov", "clip_cov"])
def test_first_update_is_the_policy_gradient(name: str) -> None:
    """With equal policies every surrogate has the gradient -A, divided over the sequence's tokens by aggregation."""
    logprobs = OLD.clone().requires_grad_()
    loss, _ = policy_losses.compute(
        name, logprobs=logprobs, old_logprobs=OLD, advantages=ADVANTAGES, mask=MASK, **NEEDED.get(name, {})
    )
    (grad,) = torch.autograd.grad(loss.sum(), logprobs)
    torch.testing.assert_close(grad, torch.where(MASK, -ADVANTAGES, 0))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_poison_at_masked_positions(name: str, poison: float) -> None:
    """Bug bank C14, for every loss: whatever stands there reaches neither value, gradient nor metric."""
    inputs: Any = {"logprobs": NEW, "old_logprobs": OLD, "advantages": ADVANTAGES, "rollout_weights": ADVANTAGES.abs()}
    clean, clean_metrics = policy_losses.compute(name, **inputs, mask=MASK, **NEEDED.get(name, {}))
    bad = {key: column.masked_fill(~MASK, poison) for key, column in inputs.items()}
    logprobs = bad.pop("logprobs").requires_grad_()
    loss, metrics = policy_losses.compute(name, logprobs=logprobs, **bad, mask=MASK, **NEEDED.get(name, {}))
    (grad,) = torch.autograd.grad(loss.sum(), logprobs)
    assert torch.equal(loss.detach(), clean)
    assert grad.isfinite().all() and float(grad[1, 2]) == 0
    assert {k: (float(s), float(c)) for k, (s, c) in metrics.items()} == {
        k: (float(s), float(c)) for k, (s, c) in clean_metrics.items()
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("empty", [torch.zeros(2, 0), torch.zeros(0, 3), torch.zeros(2, 3)])
def test_fully_masked_and_empty_parts_are_zero(name: str, empty: Tensor) -> None:
    """Bug bank C15, for every loss: a micro-batch without a trained token has loss and gradient 0, no NaN."""
    logprobs = empty.clone().requires_grad_()
    mask = torch.zeros(empty.shape, dtype=torch.bool)
    loss, metrics = policy_losses.compute(
        name, logprobs=logprobs, old_logprobs=empty, advantages=empty, mask=mask, **NEEDED.get(name, {})
    )
    (grad,) = torch.autograd.grad(loss.sum(), logprobs)
    assert not loss.any() and not grad.any()
    assert all(float(s) == 0 and float(c) == 0 for s, c in metrics.values())


def test_c20_gspo_sequences_count_once() -> None:
    """Bug bank C20: ratios 1 and 1, advantages 1 and -1, lengths 1 and 3 are 0 together, not 0.5."""
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]], dtype=torch.bool)
    zeros = torch.zeros(2, 3)
    loss, _ = policy_losses.compute(
        "gspo", logprobs=zeros, old_logprobs=zeros, advantages=torch.tensor([[1.0] * 3, [-1.0] * 3]), mask=mask
    )
    total = aggregation.aggregate(loss, mode="seq-mean-token-mean", denominators=aggregation.count(mask), mask=mask)
    assert float(total) == 0
    with pytest.raises(ValueError, match=r"loss of whole sequences.*Use seq-mean-token-mean\."):
        loss_options.check_aggregation_mode("gspo", "token-mean")
    loss_options.check_aggregation_mode("vanilla", "token-sum")
    loss_options.check_aggregation_mode("my_module:my_loss", "token-sum")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "geo_mean"])
def test_rollout_weights_multiply_each_token(name: str) -> None:
    weights = torch.tensor([[1, 0.5, 2], [1.5, 1, math.nan]], dtype=torch.float64)
    common: Any = {"logprobs": NEW, "old_logprobs": OLD, "advantages": ADVANTAGES, "mask": MASK}
    plain, _ = policy_losses.compute(name, **common, **NEEDED.get(name, {}))
    weighted, _ = policy_losses.compute(name, **common, **NEEDED.get(name, {}), rollout_weights=weights)
    torch.testing.assert_close(weighted, torch.where(MASK, plain * weights, 0))


def test_geo_mean_takes_the_geometric_mean_of_rollout_weights() -> None:
    weights = torch.tensor([[1, 0.5, 2], [4, 1, math.nan]], dtype=torch.float64)
    common: Any = {"logprobs": NEW, "old_logprobs": OLD, "advantages": ADVANTAGES, "mask": MASK}
    plain, _ = policy_losses.compute("geo_mean", **common)
    weighted, _ = policy_losses.compute("geo_mean", **common, rollout_weights=weights)
    torch.testing.assert_close(weighted, plain * torch.tensor([[1.0], [2.0]], dtype=torch.float64))


def test_sums_of_long_half_precision_sequences_are_exact() -> None:
    """4,096 tokens of log-ratio 2^-10 have the sequence ratio exp(2^-10) in bfloat16 columns, too."""
    length = 4096
    old = torch.full((1, length), -0.25, dtype=torch.bfloat16)
    loss, _ = policy_losses.compute(
        "gspo", logprobs=old + 2**-10, old_logprobs=old, advantages=-torch.ones(1, length, dtype=torch.bfloat16)
    )
    assert loss.dtype == torch.float32
    assert float(loss[0, 0]) == pytest.approx(math.exp(2**-10), rel=1e-6)
