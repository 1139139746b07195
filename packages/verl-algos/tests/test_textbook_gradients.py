"""Value and gradient of every loss against float64 autograd of its formula as the papers write it.

The formulas here are of whole batches of lists and plain exp and log, without any of the bounds that keep the library's
finite; inputs stay where those do not act, except for the dual clip and DPPO's truncation, which belong to the formula.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from verl_algos import aggregation, kl, loss_options, policy_losses, preference_losses, value_losses

EPSILON_LOW, EPSILON_HIGH = 0.2, 0.28
CLIP: dict[str, float] = {"clip_ratio_low": EPSILON_LOW, "clip_ratio_high": EPSILON_HIGH}

#: log-probs, old log-probs and advantages of the tokens of one sequence -> their losses, or that of the sequence.
Formula = Callable[[Tensor, Tensor, Tensor], Tensor]


def clipped(new: Tensor, old: Tensor, a: Tensor) -> Tensor:
    """The negative of min(r A, clip(r) A)."""
    ratio = torch.exp(new) / torch.exp(old)
    return -torch.min(ratio * a, torch.clip(ratio, 1 - EPSILON_LOW, 1 + EPSILON_HIGH) * a)


def vanilla(new: Tensor, old: Tensor, a: Tensor) -> Tensor:
    """Ye et al. 2020: max(min(r A, clip(r) A), c A) where A is negative."""
    objective = -clipped(new, old, a)
    return -torch.where(a < 0, torch.max(objective, 3.0 * a), objective)


def gspo(new: Tensor, old: Tensor, a: Tensor) -> Tensor:
    """Of sequences with one advantage: the likelihood ratio to the power of 1 / length."""
    ratio = (torch.exp(new.sum()) / torch.exp(old.sum())) ** (1 / len(new))
    return -torch.min(ratio * a[0], torch.clip(ratio, 1 - EPSILON_LOW, 1 + EPSILON_HIGH) * a[0])


def geo_mean(new: Tensor, old: Tensor, a: Tensor) -> Tensor:
    ratio = torch.exp(new) / torch.exp(old)
    bounded = torch.clip(ratio, math.exp(-EPSILON_LOW), math.exp(EPSILON_HIGH))
    sign = torch.sign(a[0])
    kept = sign * torch.min(sign * ratio, sign * bounded)
    return -a[0] * torch.prod(kept) ** (1 / len(new))


def sapo(new: Tensor, old: Tensor, a: Tensor) -> Tensor:
    ratio = torch.exp(new) / torch.exp(old)
    tau = torch.where(a > 0, torch.full_like(a, 1.0), torch.full_like(a, 1.05))
    return -a * 4 / (tau * (1 + torch.exp(-tau * (ratio - 1))))


def cispo(new: Tensor, old: Tensor, a: Tensor) -> Tensor:
    ratio = torch.exp(new) / torch.exp(old)
    return -torch.clip(ratio, 1 - EPSILON_LOW, 1 + EPSILON_HIGH).detach() * a * new


def gpg(new: Tensor, old: Tensor, a: Tensor) -> Tensor:
    return -a * new


def dro(new: Tensor, old: Tensor, a: Tensor) -> Tensor:
    return -(a * new - 0.5 * 0.7 * (new - old) ** 2)


def dppo(new: Tensor, old: Tensor, a: Tensor, *, divergence: str) -> Tensor:
    p, q = torch.exp(new).detach(), torch.exp(old)
    if divergence == "tv":
        inside = torch.where(a > 0, p - q <= EPSILON_HIGH, q - p <= EPSILON_LOW)
    else:
        kl_of_two = q * torch.log(q / p) + (1 - q) * torch.log((1 - q) / (1 - p))
        inside = torch.where(a > 0, (kl_of_two <= EPSILON_HIGH) | (p <= q), (kl_of_two <= EPSILON_LOW) | (p >= q))
    return torch.where(inside, -a * torch.clip(p / q, max=2.5) * new, 0.0)


FORMULAS: dict[str, tuple[Formula, dict[str, float]]] = {
    "vanilla": (vanilla, CLIP),
    "gspo": (gspo, CLIP),
    "sapo": (sapo, {}),
    "cispo": (cispo, CLIP),
    "gpg": (gpg, {}),
    "geo_mean": (geo_mean, CLIP),
    "dro": (dro, {"dro_beta": 0.7}),
    "dppo_tv": (lambda new, old, a: dppo(new, old, a, divergence="tv"), {**CLIP, "clip_ratio_c": 2.5}),
    "dppo_kl": (lambda new, old, a: dppo(new, old, a, divergence="kl"), {**CLIP, "clip_ratio_c": 2.5}),
}
OF_SEQUENCES = ("gspo", "geo_mean")


class Batch:
    """Packed sequences, some of their tokens masked, with one advantage each or one per token."""

    def __init__(self, lengths: list[int], seed: int, *, per_token: bool) -> None:
        generator = torch.Generator().manual_seed(seed)

        def uniform(low: float, high: float, n: int = sum(lengths)) -> Tensor:
            return low + (high - low) * torch.rand(n, generator=generator, dtype=torch.float64)

        self.old = uniform(-3, -0.05)
        self.new = torch.minimum(self.old + uniform(-1.6, 1.6), torch.tensor(-0.01)).requires_grad_()
        per_sequence = uniform(-2, 2, len(lengths)).repeat_interleave(torch.tensor(lengths))
        self.advantages = uniform(-2, 2) if per_token else per_sequence
        sequence_weights = uniform(0.1, 2, len(lengths)).repeat_interleave(torch.tensor(lengths))
        self.weights = uniform(0.1, 2) if per_token else sequence_weights
        self.mask = uniform(0, 1) < 0.8
        self.offsets = torch.tensor([0, *lengths]).cumsum(0)

    def sequences(self) -> list[Tensor]:
        """Indices of the valid tokens of every sequence that has any."""
        ends = self.offsets.tolist()
        rows = [torch.arange(first, last)[self.mask[first:last]] for first, last in itertools.pairwise(ends)]
        return [row for row in rows if len(row)]

    def loss(self, name: str, options: dict[str, Any], *, weighted: bool = False) -> Tensor:
        return policy_losses.compute(
            name,
            logprobs=self.new,
            old_logprobs=self.old,
            advantages=self.advantages,
            mask=self.mask,
            cu_seqlens=self.offsets,
            rollout_weights=self.weights if weighted else None,
            **options,
        )[0]

    def aggregated(self, loss: Tensor, mode: aggregation.Mode) -> Tensor:
        denominators = aggregation.count(self.mask, self.offsets)
        scale = 5.0 if mode == "seq-mean-token-sum-norm" else None
        return aggregation.aggregate(
            loss, mode=mode, denominators=denominators, mask=self.mask, cu_seqlens=self.offsets, scale=scale
        )


def textbook_total(losses: list[Tensor], mode: aggregation.Mode) -> Tensor:
    """Of the losses of each sequence's tokens."""
    if not losses:
        return torch.zeros((), dtype=torch.float64)
    everything = torch.cat(losses)
    if mode == "token-mean":
        return everything.mean()
    if mode == "token-sum":
        return everything.sum()
    if mode == "seq-mean-token-mean":
        return torch.stack([own.mean() for own in losses]).mean()
    mean_of_sums = torch.stack([own.sum() for own in losses]).mean()
    return mean_of_sums if mode == "seq-mean-token-sum" else mean_of_sums / 5.0


def same(ours: Tensor, expected: Tensor, *inputs: Tensor) -> None:
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-10)
    if expected.requires_grad:
        for mine, other in zip(
            torch.autograd.grad(ours, inputs, retain_graph=True), torch.autograd.grad(expected, inputs), strict=True
        ):
            torch.testing.assert_close(mine, other, rtol=1e-7, atol=1e-10)
    else:
        assert not any(bool(own.any()) for own in torch.autograd.grad(ours, inputs))


LENGTHS = st.lists(st.integers(0, 7), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("name", "mode"), [(name, mode) for name in FORMULAS for mode in loss_options.AGGREGATION_MODES[name]]
)
@settings(deadline=None, max_examples=8)
@given(lengths=LENGTHS, seed=st.integers(0, 2**31), weighted=st.booleans())
def test_policy_losses(name: str, mode: aggregation.Mode, lengths: list[int], seed: int, weighted: bool) -> None:
    batch = Batch(lengths, seed, per_token=name not in OF_SEQUENCES)
    formula, options = FORMULAS[name]
    losses = []
    for rows in batch.sequences():
        own = formula(batch.new[rows], batch.old[rows], batch.advantages[rows]).expand(len(rows))
        weights = batch.weights[rows] if weighted else torch.ones_like(batch.weights[rows])
        losses.append(own * (weights.log().mean().exp() if name == "geo_mean" else weights))
    same(batch.aggregated(batch.loss(name, options, weighted=weighted), mode), textbook_total(losses, mode), batch.new)


@pytest.mark.parametrize("mode", aggregation.MODES)
@pytest.mark.parametrize("name", ["clip_cov", "kl_cov"])
@settings(deadline=None, max_examples=8)
@given(lengths=LENGTHS, seed=st.integers(0, 2**31))
def test_losses_by_covariance(name: str, mode: aggregation.Mode, lengths: list[int], seed: int) -> None:
    """The choice is tested elsewhere; for the tokens chosen: no loss at all, or a penalty on the log-ratio."""
    batch = Batch(lengths, seed, per_token=True)
    chosen = torch.rand(batch.old.shape, generator=torch.Generator().manual_seed(seed)) < 0.3
    losses = []
    for rows in batch.sequences():
        new, old, a = batch.new[rows], batch.old[rows], batch.advantages[rows]
        if name == "clip_cov":
            losses.append(torch.where(chosen[rows], 0.0, clipped(new, old, a)))
        else:
            losses.append(-torch.exp(new - old) * a + chosen[rows].double() * 0.4 * (new - old).abs())
    options = {**CLIP} if name == "clip_cov" else {"ppo_kl_coef": 0.4}
    ours = batch.loss(name, {**options, "covariance_selected": chosen})
    same(batch.aggregated(ours, mode), textbook_total(losses, mode), batch.new)


@settings(deadline=None, max_examples=30)
@given(lengths=LENGTHS, seed=st.integers(0, 2**31))
def test_gspo_with_advantages_that_differ_between_tokens(lengths: list[int], seed: int) -> None:
    """GSPO-token (arXiv:2507.18071, eq. 13): s_it = sg(s_i) pi / sg(pi); rollout weights of tokens act in it, too."""
    batch = Batch(lengths, seed, per_token=True)
    losses = []
    for rows in batch.sequences():
        new, a = batch.new[rows], batch.advantages[rows]
        ratio = (new - batch.old[rows]).mean().exp().detach() * torch.exp(new - new.detach())
        objective = torch.min(ratio * a, torch.clip(ratio, 1 - EPSILON_LOW, 1 + EPSILON_HIGH) * a)
        losses.append(-objective * batch.weights[rows])
    ours = batch.aggregated(batch.loss("gspo", CLIP, weighted=True), "seq-mean-token-mean")
    same(ours, textbook_total(losses, "seq-mean-token-mean"), batch.new)


KL_FORMULAS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "k1": lambda new, ref: torch.log(torch.exp(new) / torch.exp(ref)),
    "abs": lambda new, ref: (new - ref).abs(),
    "k2": lambda new, ref: (new - ref) ** 2 / 2,
    "k3": lambda new, ref: torch.exp(ref) / torch.exp(new) - 1 - torch.log(torch.exp(ref) / torch.exp(new)),
}
KL_ALIASES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}


@pytest.mark.parametrize("mode", aggregation.MODES)
@pytest.mark.parametrize("name", [*kl.PENALTIES, *kl.STRAIGHT_THROUGH])
@settings(deadline=None, max_examples=5)
@given(lengths=LENGTHS, seed=st.integers(0, 2**31))
def test_kl_losses(name: str, mode: aggregation.Mode, lengths: list[int], seed: int) -> None:
    batch = Batch(lengths, seed, per_token=True)
    formula = KL_FORMULAS[KL_ALIASES.get(name.removesuffix("+"), name.removesuffix("+"))]
    losses = []
    for rows in batch.sequences():
        new, ref = batch.new[rows], batch.old[rows]
        value = formula(new, ref)
        k2 = KL_FORMULAS["k2"](new, ref)
        losses.append(value.detach() + k2 - k2.detach() if name.endswith("+") else value)
    ours, _ = kl.loss(name, logprobs=batch.new, ref_logprobs=batch.old, mask=batch.mask, cu_seqlens=batch.offsets)
    same(batch.aggregated(ours, mode), textbook_total(losses, mode), batch.new)


@pytest.mark.parametrize("mode", aggregation.MODES)
@pytest.mark.parametrize("clip", [0.3, None])
@settings(deadline=None, max_examples=8)
@given(lengths=LENGTHS, seed=st.integers(0, 2**31))
def test_value_losses(clip: float | None, mode: aggregation.Mode, lengths: list[int], seed: int) -> None:
    batch = Batch(lengths, seed, per_token=True)
    losses = []
    for rows in batch.sequences():
        value, old, target = batch.new[rows], batch.old[rows], batch.advantages[rows]
        plain = (value - target) ** 2
        near = old + torch.clip(value - old, -(clip or 0), clip or 0)
        losses.append(0.5 * (plain if clip is None else torch.max(plain, (near - target) ** 2)))
    ours, _ = value_losses.compute(
        values=batch.new,
        returns=batch.advantages,
        old_values=None if clip is None else batch.old,
        mask=batch.mask,
        cu_seqlens=batch.offsets,
        cliprange_value=clip,
    )
    same(batch.aggregated(ours, mode), textbook_total(losses, mode), batch.new)


def preference(name: str, columns: list[Tensor], lengths: list[Tensor]) -> Tensor:
    """The probability that the papers maximise, as they write it."""
    chosen, rejected, ref_chosen, ref_rejected = columns
    c, r = chosen - ref_chosen, rejected - ref_rejected
    mean_c, mean_r = chosen / lengths[0], rejected / lengths[1]
    if name == "dpo":
        preferred = 1 / (1 + torch.exp(-0.3 * (c - r)))
        return -(0.9 * torch.log(preferred) + 0.1 * torch.log(1 - preferred))
    if name == "ipo":
        return (c - r - 1 / (2 * 0.3)) ** 2
    if name == "simpo":
        return -torch.log(1 / (1 + torch.exp(-(1.5 * mean_c - 1.5 * mean_r - 0.4))))
    if name == "kto":
        return 0.5 * (
            1.2 * (1 - 1 / (1 + torch.exp(-0.3 * (c - 0.5)))) + 0.8 * (1 - 1 / (1 + torch.exp(-0.3 * (0.2 - r))))
        )
    odds_c, odds_r = (torch.exp(m) / (1 - torch.exp(m)) for m in (mean_c, mean_r))
    return -mean_c - 0.25 * torch.log(1 / (1 + odds_r / odds_c))


PREFERENCE_SETTINGS: dict[str, dict[str, Any]] = {
    "dpo": {"beta": 0.3, "label_smoothing": 0.1},
    "ipo": {"beta": 0.3},
    "simpo": {"beta": 1.5, "gamma": 0.4},
    "kto": {"beta": 0.3, "desirable_weight": 1.2, "undesirable_weight": 0.8, "chosen_kl": 0.2, "rejected_kl": 0.5},
    "orpo": {"beta": 0.25},
}


@pytest.mark.parametrize("name", loss_options.PREFERENCE_LOSS_OPTIONS)
@settings(deadline=None, max_examples=20)
@given(
    rows=st.lists(st.tuples(*[st.floats(-12, -0.3)] * 4, st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=6)
)
def test_preference_losses(name: str, rows: list[tuple[float, ...]]) -> None:
    columns = [torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True)]
    trained = [column.requires_grad_() for column in columns[:2]]
    inputs = dict(
        zip(
            ("ref_chosen_logprobs", "ref_rejected_logprobs", "chosen_lengths", "rejected_lengths"),
            columns[2:],
            strict=True,
        )
    )
    given_inputs: Any = {key: inputs[key] for key in loss_options.PREFERENCE_LOSS_INPUTS[name]}
    ours, _ = preference_losses.compute(
        name,
        chosen_logprobs=trained[0],
        rejected_logprobs=trained[1],
        **given_inputs,
        **PREFERENCE_SETTINGS[name],
    )
    same(ours.sum(), preference(name, columns[:4], columns[4:]).sum(), *trained)


@settings(deadline=None, max_examples=20)
@given(
    rows=st.lists(st.tuples(st.floats(-4, 4), st.floats(-4, 4), st.floats(0, 2)), min_size=1, max_size=6),
    centre=st.sampled_from([0.0, 0.05]),
)
def test_bradley_terry(rows: list[tuple[float, float, float]], centre: float) -> None:
    chosen, rejected, margin = (torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True))
    trained = [chosen.requires_grad_(), rejected.requires_grad_()]
    ours, _ = preference_losses.bradley_terry(
        chosen_rewards=chosen, rejected_rewards=rejected, margin=margin, center_coef=centre
    )
    better = torch.exp(chosen - margin) / (torch.exp(chosen - margin) + torch.exp(rejected))
    same(ours.sum(), (-torch.log(better) + centre * (chosen + rejected) ** 2).sum(), *trained)
