"""Rollout correction: verl-facts R1 and R2, bug bank C22, rejection, normalisation, one mask, metrics."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from verl_algos import aggregation, policy_losses, rollout_correction
from verl_algos.errors import NonFiniteError
from verl_algos.rollout_correction_options import PRESETS, REJECTIONS, parse_rejections, parse_weight_bounds

OLD = torch.tensor([[-0.8, -1, -0.6], [-2, -1.2, 5]], dtype=torch.float64)
ROLLOUT = torch.tensor([[-1.0, -2, -0.5], [-3, -1, -1]], dtype=torch.float64)
MASK = torch.tensor([[1, 1, 1], [1, 1, 0]], dtype=torch.bool)


def correct(**options: Any) -> rollout_correction.Correction:
    return rollout_correction.correct(old_logprobs=OLD, rollout_logprobs=ROLLOUT, mask=MASK, **options)


def weights_of(**options: Any) -> Tensor:
    weights = correct(**options).weights
    assert weights is not None
    return weights


def metric(result: rollout_correction.Correction, name: str) -> float:
    return result.metrics[f"rollout_corr/{name}"]


class TestWeights:
    @pytest.mark.parametrize("threshold", [2, 2.0, "2.0"])
    def test_r1_token_truncation(self, threshold: str | float) -> None:
        expected = [[1.221402758, 2, 0.904837418], [2, 0.818730753, 0]]
        np.testing.assert_allclose(weights_of(rollout_is="token", rollout_is_threshold=threshold), expected, atol=1e-8)

    def test_r1_icepop(self) -> None:
        """Tokens that IcePop zeroes stay in the mask, as published: they count in the denominators."""
        result = correct(rollout_is="token", rollout_is_threshold="0.5_2.0")
        expected = [[1.221402758, 0, 0.904837418], [0, 0.818730753, 0]]
        np.testing.assert_allclose(result.weights, expected, atol=1e-8)  # type: ignore[arg-type]
        assert torch.equal(result.mask, MASK)
        assert metric(result, "rollout_is_oob_ratio") == pytest.approx(0.4)

    def test_r2_sequence(self) -> None:
        raw = weights_of(rollout_is="sequence", rollout_is_threshold=100)
        np.testing.assert_allclose(raw, [[3.004166024] * 3, [2.225540928] * 2 + [0]], atol=1e-8)
        result = correct(rollout_is="sequence", rollout_is_threshold=2, rollout_is_batch_normalize=True)
        np.testing.assert_allclose(result.weights, [[1, 1, 1], [1, 1, 0]], atol=1e-12)  # type: ignore[arg-type]
        assert metric(result, "rollout_is_batch_norm_factor") == pytest.approx(2)
        assert weights_of(rollout_is="sequence")[MASK].tolist() == [2.0] * 5

    @pytest.mark.parametrize(
        ("level", "expected"), [("token", 0.951229), ("geometric", 0.951229), ("sequence", 0.367879)]
    )
    def test_c22_the_level_is_an_explicit_option(self, level: Any, expected: float) -> None:
        """Bug bank C22: sequence weight as a product of token ratios; the raw and the applied weight are both told."""
        result = rollout_correction.correct(
            old_logprobs=torch.full((1, 20), -1.05), rollout_logprobs=torch.full((1, 20), -1.0), rollout_is=level
        )
        assert result.weights is not None
        assert result.weights.flatten().tolist() == pytest.approx([expected] * 20, abs=1e-6)
        for name in ("rollout_is_mean", "rollout_is_applied_mean"):
            assert metric(result, name) == pytest.approx(expected, abs=1e-6)

    def test_raw_and_applied_weights_differ_where_truncation_acts(self) -> None:
        result = correct(rollout_is="token")
        raw = [math.exp(0.2), math.e, math.exp(-0.1), math.e, math.exp(-0.2)]
        assert metric(result, "rollout_is_mean") == pytest.approx(sum(raw) / 5)
        assert metric(result, "rollout_is_applied_mean") == pytest.approx(sum(min(w, 2) for w in raw) / 5)
        assert metric(result, "rollout_is_max") == pytest.approx(math.e)
        assert metric(result, "rollout_is_min") == pytest.approx(math.exp(-0.2))
        assert metric(result, "rollout_is_ratio_fraction_high") == pytest.approx(0.4)
        assert metric(result, "rollout_is_ratio_fraction_low") == 0
        clamped = np.clip(raw, 0.5, 2)
        assert metric(result, "rollout_is_std") == pytest.approx(clamped.std())
        assert metric(result, "rollout_is_eff_sample_size") == pytest.approx(clamped.mean() ** 2 / (clamped**2).mean())
        means = np.array([np.mean(raw[:3]), np.mean(raw[3:])])
        assert metric(result, "rollout_is_seq_mean") == pytest.approx(means.mean())
        assert metric(result, "rollout_is_seq_std") == pytest.approx(means.std(ddof=1))
        assert metric(result, "rollout_is_seq_max_deviation") == pytest.approx(abs(means - 1).max())

    def test_normalisation_over_parts_equals_that_of_the_whole(self) -> None:
        generator = torch.Generator().manual_seed(0)
        old, rollout = (-torch.rand(8, 5, generator=generator).double() for _ in range(2))
        mask = torch.rand(8, 5, generator=generator) < 0.8
        for level in ("token", "sequence", "geometric"):
            options: Any = {"rollout_is": level, "rollout_rs": "token_k1", "rollout_rs_threshold": 1.5}

            def part(rows: slice, options: Any = options, **more: Any) -> rollout_correction.Correction:
                return rollout_correction.correct(
                    old_logprobs=old[rows], rollout_logprobs=rollout[rows], mask=mask[rows], **options, **more
                )

            whole = part(slice(0, 8), rollout_is_batch_normalize=True)
            slices = [slice(0, 3), slice(3, 8)]
            totals = [
                rollout_correction.weight_total(c.weights, level=options["rollout_is"], mask=c.mask)
                for c in map(part, slices)
                if c.weights is not None
            ]
            mean = sum(s for s, _ in totals) / sum(c for _, c in totals)
            parts = [part(rows, rollout_is_batch_normalize=True, weight_mean=mean).weights for rows in slices]
            torch.testing.assert_close(torch.cat(parts), whole.weights)  # type: ignore[arg-type]
            if level == "token":
                assert float(whole.weights[whole.mask].mean()) == pytest.approx(1)  # type: ignore[index]

    def test_weights_are_finite_for_any_finite_log_probs(self) -> None:
        for level in ("token", "sequence", "geometric"):
            result = rollout_correction.correct(
                old_logprobs=torch.tensor([[-1e30, 0.0]]),
                rollout_logprobs=torch.tensor([[0.0, -1e30]]),
                rollout_is=level,
                rollout_rs="token_k3,seq_mean_k1,seq_max_k2",
                rollout_rs_threshold=2,
            )
            assert result.weights is not None and result.weights.dtype == torch.float32
            assert result.weights.isfinite().all()


def statistic(name: str, d: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    per_token = {"k1": -d, "k2": d**2 / 2, "k3": np.exp(d) - 1 - d}[name[-2:]]
    reducers: dict[str, Callable[..., Any]] = {"seq_sum": np.sum, "seq_mean": np.mean, "seq_max": np.max}
    reduce = reducers.get(name[:-3], np.asarray)
    return np.broadcast_to(reduce(per_token), d.shape)


class TestRejection:
    @pytest.mark.parametrize("name", REJECTIONS)
    def test_each_criterion_against_numpy(self, name: str) -> None:
        rng = np.random.default_rng(0)
        old, rollout = -rng.random((6, 7)), -rng.random((6, 7))
        mask = rng.random((6, 7)) < 0.8
        mask[2] = False
        values = [statistic(name, (old - rollout)[row, mask[row]]) for row in range(6) if mask[row].any()]
        measured = np.unique(np.concatenate(values))
        bounds = np.quantile(measured, [0.25, 0.7])
        if name.endswith("k1"):
            bounds, threshold = np.exp(bounds), "_".join(map(str, np.exp(bounds)))
        else:
            threshold = str(bounds[1])
        result = rollout_correction.correct(
            old_logprobs=torch.tensor(old),
            rollout_logprobs=torch.tensor(rollout),
            mask=torch.tensor(mask),
            rollout_rs=name,
            rollout_rs_threshold=threshold,
        )
        expected = np.zeros_like(mask)
        for row in range(6):
            if mask[row].any():
                measured = statistic(name, (old - rollout)[row, mask[row]])
                ratio_or_divergence = np.exp(measured) if name.endswith("k1") else measured
                expected[row, mask[row]] = ratio_or_divergence <= bounds[1]
                if name.endswith("k1"):
                    expected[row, mask[row]] &= ratio_or_divergence >= bounds[0]
        assert 0 < expected.sum() < mask.sum()
        assert np.array_equal(result.mask.numpy(), expected)
        assert metric(result, f"rollout_rs_{name}_mean") == pytest.approx(np.concatenate(values).mean())
        assert metric(result, f"rollout_rs_{name}_max") == pytest.approx(np.concatenate(values).max())
        assert metric(result, f"rollout_rs_{name}_seq_mean") == pytest.approx(np.mean([v.mean() for v in values]))
        lost = 1 - expected.sum() / mask.sum()
        assert metric(result, f"rollout_rs_{name}_masked_fraction") == pytest.approx(lost)
        assert metric(result, "rollout_rs_masked_fraction") == pytest.approx(lost)

    def test_k1_bounds_rollout_over_policy(self) -> None:
        """verl-facts 7.5: the published bounds are of the inverse of the importance ratio; it shows where they are not
        symmetric. The second token has policy / rollout = e, so rollout / policy = 0.37."""
        kept = correct(rollout_rs="token_k1", rollout_rs_threshold="0.3_1.3").mask
        assert torch.equal(kept, MASK)
        kept = correct(rollout_rs="token_k1", rollout_rs_threshold="0.9_3").mask
        assert kept.tolist() == [[False, False, True], [False, True, False]]

    def test_one_number_for_k1_means_it_and_its_inverse(self) -> None:
        (rejection,) = parse_rejections("seq_mean_k1", 1.25)
        assert (rejection.lower, rejection.upper) == pytest.approx((math.log(0.8), math.log(1.25)))

    def test_criteria_are_combined_with_and(self) -> None:
        one = correct(rollout_rs="token_k1", rollout_rs_threshold=1.2).mask
        two = correct(rollout_rs="seq_max_k2", rollout_rs_threshold=0.1).mask
        both = correct(rollout_rs="token_k1, seq_max_k2", rollout_rs_threshold="1.2, 0.1")
        assert torch.equal(both.mask, one & two)
        shared = parse_rejections("token_k2,seq_mean_k3", "0.5")
        assert [r.upper for r in shared] == [0.5, 0.5]

    def test_one_mask_drives_numerator_and_denominator(self) -> None:
        """verl-facts 6.14: the original counts rejected tokens in the denominator, and the loss shrinks."""
        result = correct(rollout_is="token", rollout_rs="token_k1", rollout_rs_threshold=1.5)
        assert int(result.mask.sum()) == 3 and result.weights is not None
        assert not result.weights[~result.mask].any()
        ones = torch.ones_like(OLD)
        loss, _ = policy_losses.compute("vanilla", logprobs=OLD, old_logprobs=OLD, advantages=ones, mask=result.mask)
        total = aggregation.aggregate(
            loss, mode="token-mean", denominators=aggregation.count(result.mask), mask=result.mask
        )
        assert float(total) == -1.0


class TestMetrics:
    def test_mismatch_against_numpy(self) -> None:
        metrics = {name.removeprefix("rollout_corr/"): value for name, value in correct().metrics.items()}
        old, rollout = ([np.array(row[:n]) for row, n in zip(c.tolist(), (3, 2), strict=True)] for c in (OLD, ROLLOUT))
        d = np.concatenate(old) - np.concatenate(rollout)
        training, sampled = (np.array([-row.mean() for row in rows]) for rows in (old, rollout))
        products = np.array([(o - r).sum() for o, r in zip(old, rollout, strict=True)])
        assert metrics == pytest.approx(
            {
                "training_ppl": np.exp(training).mean(),
                "training_log_ppl": training.mean(),
                "rollout_ppl": np.exp(sampled).mean(),
                "rollout_log_ppl": sampled.mean(),
                "kl": -d.mean(),
                "k3_kl": (np.exp(d) - 1 - d).mean(),
                "log_ppl_diff": (training - sampled).mean(),
                "log_ppl_diff_max": (training - sampled).max(),
                "log_ppl_diff_min": (training - sampled).min(),
                "log_ppl_abs_diff": abs(training - sampled).mean(),
                "ppl_ratio": np.exp(training - sampled).mean(),
                "chi2_token": np.exp(2 * d).mean() - 1,
                "chi2_seq": np.exp(2 * products).mean() - 1,
            }
        )

    def test_no_mismatch_is_all_zeros_and_ones(self) -> None:
        result = rollout_correction.correct(old_logprobs=OLD, rollout_logprobs=OLD, mask=MASK, rollout_is="sequence")
        for name in ("kl", "k3_kl", "chi2_token", "chi2_seq", "rollout_is_std"):
            assert metric(result, name) == pytest.approx(0, abs=1e-12)
        for name in ("ppl_ratio", "rollout_is_mean", "rollout_is_eff_sample_size"):
            assert metric(result, name) == pytest.approx(1)

    def test_probabilities_agree(self) -> None:
        metrics = rollout_correction.probability_metrics(OLD, ROLLOUT, MASK)
        p, q = (np.exp(column[MASK].numpy()) for column in (OLD, ROLLOUT))
        assert metrics == pytest.approx(
            {
                "training/rollout_probs_diff_valid": 1,
                "training/rollout_probs_diff_max": abs(p - q).max(),
                "training/rollout_probs_diff_mean": abs(p - q).mean(),
                "training/rollout_probs_diff_std": abs(p - q).std(ddof=1),
                "training/rollout_actor_probs_pearson_corr": np.corrcoef(p, q)[0, 1],
            }
        )

    @pytest.mark.parametrize("shape", [(2, 3), (0, 3), (2, 0)])
    def test_a_batch_without_tokens_has_finite_metrics(self, shape: tuple[int, int]) -> None:
        """Bug bank C15: fully masked row or micro-batch."""
        columns = torch.full(shape, math.nan)
        mask = torch.zeros(shape, dtype=torch.bool)
        result = rollout_correction.correct(
            old_logprobs=columns,
            rollout_logprobs=columns,
            mask=mask,
            rollout_is="sequence",
            rollout_is_batch_normalize=True,
            rollout_rs="token_k1,seq_max_k2,seq_mean_k3",
            rollout_rs_threshold=2,
        )
        assert all(math.isfinite(value) for value in result.metrics.values())
        assert result.weights is not None and not result.weights.any()
        probabilities = rollout_correction.probability_metrics(columns, columns, mask)
        assert probabilities["training/rollout_probs_diff_valid"] == 0
        assert all(math.isfinite(value) for value in probabilities.values())


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_c14_poison_at_masked_positions(poison: float) -> None:
    """Bug bank C14, for weights, mask and metrics."""
    options: Any = {"rollout_is": "sequence", "rollout_rs": "seq_max_k3,token_k1", "rollout_rs_threshold": 4}
    bad = rollout_correction.correct(
        old_logprobs=OLD.masked_fill(~MASK, poison),
        rollout_logprobs=ROLLOUT.masked_fill(~MASK, poison),
        mask=MASK,
        **options,
    )
    clean = correct(**options)
    assert bad.metrics == clean.metrics
    assert torch.equal(bad.mask, clean.mask)
    assert torch.equal(bad.weights, clean.weights)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=40)
@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=6),
    seed=st.integers(0, 2**31),
    level=st.sampled_from(["token", "sequence", "geometric"]),
    normalize=st.booleans(),
    rejections=st.lists(st.sampled_from(REJECTIONS), min_size=1, max_size=3, unique=True),
)
def test_order_padding_and_packing_do_not_matter(
    lengths: list[int], seed: int, level: Any, normalize: bool, rejections: list[str]
) -> None:
    generator = torch.Generator().manual_seed(seed)
    inside = torch.arange(max(lengths) + 2) < torch.tensor(lengths).unsqueeze(1)
    old, rollout = (-torch.rand(inside.shape, generator=generator, dtype=torch.float64) for _ in range(2))
    mask = inside & (torch.rand(inside.shape, generator=generator) < 0.8)
    options: Any = {
        "rollout_is": level,
        "rollout_is_batch_normalize": normalize,
        "rollout_rs": ",".join(rejections),
        "rollout_rs_threshold": 1.3,
    }
    order = torch.randperm(len(lengths), generator=generator)
    whole = rollout_correction.correct(old_logprobs=old, rollout_logprobs=rollout, mask=mask, **options)
    turned = rollout_correction.correct(
        old_logprobs=old[order], rollout_logprobs=rollout[order], mask=mask[order], **options
    )
    packed = rollout_correction.correct(
        old_logprobs=old[inside],
        rollout_logprobs=rollout[inside],
        mask=mask[inside],
        cu_seqlens=torch.nn.functional.pad(torch.tensor(lengths).cumsum(0), (1, 0)),
        **options,
    )
    assert torch.equal(turned.mask, whole.mask[order]) and torch.equal(packed.mask, whole.mask[inside])
    torch.testing.assert_close(turned.weights, whole.weights[order])  # type: ignore[index]
    torch.testing.assert_close(packed.weights, whole.weights[inside])  # type: ignore[index]
    assert turned.metrics == pytest.approx(whole.metrics)
    assert packed.metrics == pytest.approx(whole.metrics)


class TestOptions:
    def test_every_preset_is_one_call(self) -> None:
        assert len(PRESETS) == 19
        for name, preset in PRESETS.items():
            bypass = name.startswith("bypass")
            assert preset.get("bypass_mode", False) is bypass and ("loss_type" in preset) is bypass
            keys = {key: value for key, value in preset.items() if key not in ("bypass_mode", "loss_type")}
            correct(**keys)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"rollout_is": "batch"}, "Unknown rollout_is='batch'. Known: token, sequence, geometric"),
            ({"rollout_is": "token", "rollout_is_threshold": 0}, "'0' is neither a number above 0"),
            ({"rollout_is": "token", "rollout_is_threshold": "x"}, "'x' is neither"),
            ({"rollout_is": "token", "rollout_is_threshold": "1_2_3"}, "'1_2_3' is neither"),
            ({"rollout_is": "token", "rollout_is_threshold": "inf"}, "'inf' is neither"),
            ({"rollout_is": "token", "rollout_is_threshold": "2_0.5"}, "lower bound above its upper bound"),
            ({"rollout_is_batch_normalize": True}, "rollout_is is None"),
            ({"rollout_is": "token", "weight_mean": 1.0}, "weight_mean was given"),
            ({"rollout_rs_threshold": 2}, "has no effect without rollout_rs"),
            ({"rollout_rs": "token_k1"}, "needs rollout_rs_threshold"),
            ({"rollout_rs": "seq_max_k1", "rollout_rs_threshold": 2}, "names 'seq_max_k1'"),
            ({"rollout_rs": "token_k1,token_k1", "rollout_rs_threshold": 2}, "names a criterion twice"),
            ({"rollout_rs": "token_k1", "rollout_rs_threshold": 0.5}, "would reject everything"),
            ({"rollout_rs": "token_k2", "rollout_rs_threshold": "0.5_2"}, "take one upper bound"),
            ({"rollout_rs": "token_k1,token_k2", "rollout_rs_threshold": "2,2,2"}, "has 3 bounds"),
            ({"rollout_rs": ["token_k1", "seq_max_k2"], "rollout_rs_threshold": 2}, "write 'token_k1,seq_max_k2'"),
            ({"rollout_rs": "token_k2,token_k3", "rollout_rs_threshold": [2, 0.1]}, "is a list: write '2,0.1'"),
        ],
    )
    def test_refusals(self, options: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            correct(**options)

    def test_icepop_and_truncation_are_told_apart_by_the_threshold(self) -> None:
        assert parse_weight_bounds("0.5_5.0").zero_outside
        assert not parse_weight_bounds("5.0").zero_outside
        assert parse_weight_bounds(4).lower == 0.25

    def test_log_probs_that_are_not_finite_are_named(self) -> None:
        with pytest.raises(NonFiniteError, match="rollout_logprobs holds 1 valid tokens") as caught:
            rollout_correction.correct(
                old_logprobs=OLD, rollout_logprobs=ROLLOUT.index_fill(1, torch.tensor(2), math.nan), mask=MASK
            )
        assert caught.value.column == "rollout_logprobs"
        with pytest.raises(ValueError, match="rollout_logprobs has shape"):
            rollout_correction.correct(old_logprobs=OLD, rollout_logprobs=ROLLOUT[:1])


def test_bypass_with_reinforce_is_gpg_with_weights_of_the_current_policy() -> None:
    """verl-facts 1.2, bypass_mode: -w A log-prob with w = truncated policy / rollout, without gradient."""
    logprobs = OLD.clone().requires_grad_()
    weights = rollout_correction.correct(
        old_logprobs=logprobs, rollout_logprobs=ROLLOUT, mask=MASK, rollout_is="token"
    ).weights
    assert weights is not None and not weights.requires_grad
    ones = torch.ones_like(OLD)
    loss, _ = policy_losses.compute(
        "gpg", logprobs=logprobs, old_logprobs=ROLLOUT, advantages=ones, mask=MASK, rollout_weights=weights
    )
    (grad,) = torch.autograd.grad(loss.sum(), logprobs)
    torch.testing.assert_close(grad, -torch.where(MASK, (OLD - ROLLOUT).exp().clamp(max=2), 0))
