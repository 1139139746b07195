"""Preference losses against independent numpy formulas; bug bank C15; gradients; splits; refusals."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from verl_algos import loss_options, preference_losses

Array = np.ndarray[Any, np.dtype[np.float64]]

CHOSEN = np.array([-5.0, -12.0, -3.0])
REJECTED = np.array([-9.0, -8.0, -7.5])
REF_CHOSEN = np.array([-6.0, -11.0, -4.5])
REF_REJECTED = np.array([-8.0, -9.0, -7.0])
CHOSEN_LENGTHS = np.array([5, 8, 2])
REJECTED_LENGTHS = np.array([6, 4, 10])
NAMES = tuple(loss_options.PREFERENCE_LOSS_OPTIONS)


def inputs(name: str, dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "chosen_logprobs": torch.tensor(CHOSEN, dtype=dtype),
        "rejected_logprobs": torch.tensor(REJECTED, dtype=dtype),
    }
    everything = {
        "ref_chosen_logprobs": torch.tensor(REF_CHOSEN, dtype=dtype),
        "ref_rejected_logprobs": torch.tensor(REF_REJECTED, dtype=dtype),
        "chosen_lengths": torch.tensor(CHOSEN_LENGTHS),
        "rejected_lengths": torch.tensor(REJECTED_LENGTHS),
    }
    return columns | {key: everything[key] for key in loss_options.PREFERENCE_LOSS_INPUTS[name]}


def loss_of(name: str, **options: Any) -> list[float]:
    values: list[float] = preference_losses.compute(name, **{**inputs(name), **options})[0].tolist()
    return values


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


class TestValues:
    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    def test_dpo(self, smoothing: float) -> None:
        margin = 0.3 * ((CHOSEN - REF_CHOSEN) - (REJECTED - REF_REJECTED))
        expected = -(1 - smoothing) * np.log(sigmoid(margin)) - smoothing * np.log(sigmoid(-margin))
        assert loss_of("dpo", beta=0.3, label_smoothing=smoothing) == pytest.approx(expected)

    def test_c15_neighbour(self) -> None:
        """Bug bank C15: beta 0.1, chosen margin +2, rejected margin -1 gives 0.554355."""
        loss, _ = preference_losses.compute(
            "dpo",
            chosen_logprobs=torch.tensor([-1.0]),
            rejected_logprobs=torch.tensor([-4.0]),
            ref_chosen_logprobs=torch.tensor([-3.0]),
            ref_rejected_logprobs=torch.tensor([-3.0]),
        )
        assert float(loss) == pytest.approx(0.554355, abs=1e-6)

    def test_ipo_of_sums_and_of_means(self) -> None:
        sums = (CHOSEN - REF_CHOSEN) - (REJECTED - REF_REJECTED)
        assert loss_of("ipo", beta=0.2) == pytest.approx((sums - 2.5) ** 2)
        means = (CHOSEN - REF_CHOSEN) / CHOSEN_LENGTHS - (REJECTED - REF_REJECTED) / REJECTED_LENGTHS
        lengths: Any = {
            "chosen_lengths": torch.tensor(CHOSEN_LENGTHS),
            "rejected_lengths": torch.tensor(REJECTED_LENGTHS),
        }
        assert loss_of("ipo", beta=0.2, **lengths) == pytest.approx((means - 2.5) ** 2)

    def test_simpo(self) -> None:
        margin = 2.5 * (CHOSEN / CHOSEN_LENGTHS - REJECTED / REJECTED_LENGTHS) - 0.7
        assert loss_of("simpo", beta=2.5, gamma=0.7) == pytest.approx(-np.log(sigmoid(margin)))

    def test_kto(self) -> None:
        c, r = CHOSEN - REF_CHOSEN, REJECTED - REF_REJECTED
        for chosen_kl, rejected_kl in ((None, None), (0.4, 0.9)):
            z_c = max(c.mean(), 0.0) if chosen_kl is None else chosen_kl
            z_r = max(r.mean(), 0.0) if rejected_kl is None else rejected_kl
            gain = 1.5 * (1 - sigmoid(0.3 * (c - z_r)))
            loss = 0.5 * (1 - sigmoid(0.3 * (z_c - r)))
            options: Any = {"beta": 0.3, "desirable_weight": 1.5, "undesirable_weight": 0.5}
            ours = loss_of("kto", **options, chosen_kl=chosen_kl, rejected_kl=rejected_kl)
            assert ours == pytest.approx((gain + loss) / 2)
        assert loss_of("kto", chosen_kl=-1.0, rejected_kl=0.0) == loss_of("kto", chosen_kl=0.0, rejected_kl=0.0)

    def test_orpo(self) -> None:
        c, r = np.exp(CHOSEN / CHOSEN_LENGTHS), np.exp(REJECTED / REJECTED_LENGTHS)
        ratio = np.log(c / (1 - c)) - np.log(r / (1 - r))
        assert loss_of("orpo", beta=0.2) == pytest.approx(-CHOSEN / CHOSEN_LENGTHS - 0.2 * np.log(sigmoid(ratio)))

    def test_bradley_terry(self) -> None:
        chosen, rejected, margin = np.array([1.0, -0.5]), np.array([0.2, 0.4]), np.array([0.3, 0.0])
        loss, metrics = preference_losses.bradley_terry(
            chosen_rewards=torch.tensor(chosen),
            rejected_rewards=torch.tensor(rejected),
            margin=torch.tensor(margin),
            center_coef=0.01,
        )
        expected = -np.log(sigmoid(chosen - rejected - margin)) + 0.01 * (chosen + rejected) ** 2
        assert loss.tolist() == pytest.approx(expected)
        assert [float(x) for x in metrics["rewards/accuracies"]] == [1, 2]
        assert float(metrics["rewards/margins"][0]) == pytest.approx(-0.1)
        plain, _ = preference_losses.bradley_terry(
            chosen_rewards=torch.tensor(chosen), rejected_rewards=torch.tensor(rejected)
        )
        assert plain.tolist() == pytest.approx(-np.log(sigmoid(chosen - rejected)))

    def test_metrics(self) -> None:
        _, metrics = preference_losses.compute("dpo", **inputs("dpo"), beta=0.5)
        c, r = 0.5 * (CHOSEN - REF_CHOSEN), 0.5 * (REJECTED - REF_REJECTED)
        means = {name: float(s) / float(n) for name, (s, n) in metrics.items()}
        assert means == pytest.approx(
            {
                "rewards/chosen": c.mean(),
                "rewards/rejected": r.mean(),
                "rewards/margins": (c - r).mean(),
                "rewards/accuracies": (c > r).mean(),
                "logps/chosen": CHOSEN.mean(),
                "logps/rejected": REJECTED.mean(),
            }
        )


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=20)
@given(
    rows=st.lists(st.tuples(*[st.floats(-20, -0.5)] * 4, *[st.integers(1, 9)] * 2), min_size=1, max_size=6),
)
def test_gradient_equals_finite_differences_in_float64(name: str, rows: list[tuple[float, ...]]) -> None:
    columns = [torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True)]
    others = dict(
        zip(
            ("ref_chosen_logprobs", "ref_rejected_logprobs", "chosen_lengths", "rejected_lengths"),
            columns[2:],
            strict=True,
        )
    )
    options: Any = {key: others[key] for key in loss_options.PREFERENCE_LOSS_INPUTS[name]}
    if name == "kto":
        options |= {"chosen_kl": 0.3, "rejected_kl": 0.1}

    def total(chosen: Tensor, rejected: Tensor) -> Tensor:
        return preference_losses.compute(name, chosen_logprobs=chosen, rejected_logprobs=rejected, **options)[0].sum()

    assert torch.autograd.gradcheck(total, [column.requires_grad_() for column in columns[:2]], atol=1e-5)


class TestMaskedRows:
    def test_c15_sums_of_a_fully_masked_row(self) -> None:
        """Bug bank C15: labels all -100 with log-probs containing -inf sum to 0.0, with gradient 0."""
        logprobs = torch.tensor([[-math.inf, math.nan, -math.inf], [-1.0, -2.0, math.nan]], requires_grad=True)
        mask = torch.tensor([[0, 0, 0], [1, 1, 0]], dtype=torch.bool)
        sums, lengths = preference_losses.sequence_logprobs(logprobs, mask)
        assert sums.tolist() == [0.0, -3.0] and lengths.tolist() == [0, 2]
        (grad,) = torch.autograd.grad(sums.sum(), logprobs)
        assert grad.tolist() == [[0, 0, 0], [1, 1, 0]]
        packed, packed_lengths = preference_losses.sequence_logprobs(
            logprobs.detach().flatten(), mask.flatten(), torch.tensor([0, 3, 6])
        )
        assert packed.tolist() == sums.tolist() and packed_lengths.tolist() == lengths.tolist()

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
    def test_pairs_that_are_not_valid_do_not_count(self, name: str, poison: float) -> None:
        clean = {key: column[:2] for key, column in inputs(name).items()}
        expected, expected_metrics = preference_losses.compute(name, **clean)
        bad = {
            key: column if column.dtype == torch.int64 else column.clone().index_fill(0, torch.tensor(2), poison)
            for key, column in inputs(name).items()
        }
        chosen = bad.pop("chosen_logprobs").requires_grad_()
        valid = torch.tensor([True, True, False])
        loss, metrics = preference_losses.compute(name, chosen_logprobs=chosen, **bad, valid=valid)
        assert loss.tolist() == [*expected.tolist(), 0.0]
        (grad,) = torch.autograd.grad(loss.sum(), chosen)
        assert grad.isfinite().all() and float(grad[2]) == 0
        assert all(torch.equal(torch.stack(metrics[key]), torch.stack(expected_metrics[key])) for key in metrics)
        lengths: Any = {"chosen_lengths": torch.tensor([5, 8, 0]), "rejected_lengths": torch.tensor([6, 4, 3])}
        by_length, _ = preference_losses.compute(name, **{**bad, **lengths}, chosen_logprobs=chosen)
        assert float(by_length[2].detach()) == 0 and by_length.isfinite().all()

    def test_batch_without_pairs(self) -> None:
        for name in NAMES:
            none = {key: column[:0] for key, column in inputs(name).items()}
            loss, metrics = preference_losses.compute(name, **none)
            assert loss.shape == (0,) and all(float(s) == 0 for s, _ in metrics.values())


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**31), parts=st.sampled_from([1, 2, 4, 8]))
def test_no_split_and_no_order_changes_the_loss(name: str, seed: int, parts: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    pairs = 9
    columns: dict[str, Tensor] = {
        key: -5 * torch.rand(pairs, generator=generator, dtype=torch.float64)
        for key in inputs(name)
        if "lengths" not in key
    } | {key: torch.randint(0, 6, (pairs,), generator=generator) for key in ("chosen_lengths", "rejected_lengths")}
    valid = torch.rand(pairs, generator=generator) < 0.8
    counted = valid & (columns["chosen_lengths"] > 0) & (columns["rejected_lengths"] > 0)
    chunks = torch.randperm(pairs, generator=generator).tensor_split(parts)
    points: dict[str, float] = {}
    if name == "kto":
        for side in ("chosen", "rejected"):
            totals = [
                preference_losses.kl_total(
                    columns[f"{side}_logprobs"][chunk], columns[f"ref_{side}_logprobs"][chunk], counted[chunk]
                )
                for chunk in chunks
            ]
            points[f"{side}_kl"] = sum(s for s, _ in totals) / max(sum(c for _, c in totals), 1.0)

    def run(index: Tensor, **more: Any) -> tuple[float, dict[str, float]]:
        part = {key: column[index] for key, column in columns.items()}
        loss, metrics = preference_losses.compute(name, **part, valid=valid[index], **more)  # type: ignore[arg-type]
        return float(loss.sum()), {key: float(s) for key, (s, _) in metrics.items()} | {
            "pairs": float(metrics["rewards/margins"][1])
        }

    whole, whole_metrics = run(torch.arange(pairs))
    shares = [run(chunk, **points) for chunk in chunks]
    assert sum(share for share, _ in shares) == pytest.approx(whole, abs=1e-10)
    assert {key: sum(m[key] for _, m in shares) for key in whole_metrics} == pytest.approx(whole_metrics, abs=1e-10)
    assert whole_metrics["pairs"] == float(counted.sum())


@pytest.mark.parametrize("name", NAMES)
def test_extreme_log_probs_stay_finite(name: str) -> None:
    """IPO's square is the one that grows; probabilities of 1 (mean log-prob 0) have finite odds."""
    columns = inputs(name, torch.float32)
    columns["chosen_logprobs"] = torch.tensor([0.0, -1e4, 0.0], requires_grad=True)
    columns["rejected_logprobs"] = torch.tensor([-1e4, 0.0, 0.0])
    loss, _ = preference_losses.compute(name, **columns)
    (grad,) = torch.autograd.grad(loss.sum(), columns["chosen_logprobs"])
    assert loss.isfinite().all() and grad.isfinite().all()


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "change", "message"),
        [
            ("rpo", {}, "Unknown preference loss 'rpo'. Known: dpo, ipo, kto, orpo, simpo"),
            ("dpo", {"ref_chosen_logprobs": None}, "'dpo' needs ref_chosen_logprobs"),
            ("simpo", {"ref_chosen_logprobs": torch.zeros(3)}, "'simpo' has no reference model"),
            ("orpo", {"chosen_lengths": None}, "belong together"),
            ("simpo", {"chosen_lengths": None, "rejected_lengths": None}, "needs chosen_lengths and rejected_lengths"),
            ("dpo", {"chosen_kl": 0.1}, "belong to the preference loss kto"),
            ("dpo", {"gamma": 0.1}, "'dpo' takes no option 'gamma'.* gamma belongs to: simpo"),
            ("dpo", {"label_smoothing": 0.6}, r"label_smoothing=0.6 must be within \[0, 0.5\]"),
            ("dpo", {"beta": 0.0}, "beta=0.0 must be above 0"),
            ("dpo", {"rejected_logprobs": torch.zeros(2)}, r"rejected has shape \(2,\)"),
            ("dpo", {"valid": torch.ones(1, 3)}, r"valid has shape \(1, 3\)"),
            ("dpo", {"chosen_logprobs": torch.zeros(3, 1)}, r"one number per pair.*with sequence_logprobs first"),
            (None, {}, "Unknown preference loss None"),
            ("dop", {}, r"Did you mean dpo\?"),
        ],
    )
    def test_compute(self, name: str, change: Any, message: str) -> None:
        columns = inputs(name if name in NAMES else "dpo")
        with pytest.raises(ValueError, match=message):
            preference_losses.compute(name, **{**columns, **change})

    def test_bradley_terry(self) -> None:
        two = torch.zeros(2)
        with pytest.raises(ValueError, match="center_coef=-1"):
            preference_losses.bradley_terry(chosen_rewards=two, rejected_rewards=two, center_coef=-1)
        with pytest.raises(ValueError, match=r"margin has shape \(3,\)"):
            preference_losses.bradley_terry(chosen_rewards=two, rejected_rewards=two, margin=torch.zeros(3))
