"""Every estimator: equal to its formula written out in plain Python, in every layout, order and padding."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from verl_algos import advantages
from verl_algos.estimators import ESTIMATORS

NAN, INF = math.nan, math.inf
NAMES = sorted(ESTIMATORS)
GROUP_CONSTANT = ("grpo", "grpo_passk", "rloo", "opo", "gpg", "reinforce_plus_plus_baseline", "gdpo")
TOKENS = ("token_rewards", "values", "old_logprobs", "sum_pi_squared", "rollout_weights")

Numbers = list[list[float]]


# --- the formulas, sequence by sequence: lists of valid tokens only, no sequence is empty or unscored


def mean(xs: list[float]) -> float:
    return math.fsum(xs) / len(xs)


def std(xs: list[float]) -> float:
    return math.sqrt(math.fsum((x - mean(xs)) ** 2 for x in xs) / (len(xs) - 1))


def suffix(xs: list[float], discount: float) -> list[float]:
    result: list[float] = []
    for x in reversed(xs):
        result.insert(0, x + (discount * result[0] if result else 0.0))
    return result


def whitened(rows: Numbers, voting: list[bool]) -> Numbers:
    flat = [x for row, votes in zip(rows, voting, strict=True) if votes for x in row]
    if len(flat) < 2:
        return [[0.0] * len(row) for row in rows]
    scale = math.sqrt(std(flat) ** 2 + 1e-8)
    return [[(x - mean(flat)) / scale if votes else 0.0 for x in row] for row, votes in zip(rows, voting, strict=True)]


def textbook(name: str, columns: dict[str, Numbers], group: list[int], baseline: list[float]) -> Numbers:
    """gamma .9, lam .8; the positions are those of the lists."""
    rewards = columns["token_rewards"]
    if name == "gae":
        deltas = [
            [r + 0.9 * (v[t + 1] if t + 1 < len(v) else 0.0) - v[t] for t, r in enumerate(row)]
            for row, v in zip(rewards, columns["values"], strict=True)
        ]
        return whitened([suffix(row, 0.9 * 0.8) for row in deltas], [True] * len(rewards))
    if name == "reinforce_plus_plus":
        return whitened([suffix(row, 0.9) for row in rewards], [True] * len(rewards))
    if name == "remax":
        return [[g - b for g in suffix(row, 1.0)] for row, b in zip(rewards, baseline, strict=True)]
    scores = [math.fsum(row) for row in rewards]
    members = {g: [i for i, other in enumerate(group) if other == g] for g in group}
    compared = [len(members[g]) > 1 for g in group]
    if name.endswith("token_baseline"):
        return token_baseline(columns, members, len(group))
    result = [0.0] * len(group)
    for own in members.values():
        if len(own) > 1:
            for i, advantage in zip(
                own, within(name, [scores[i] for i in own], [len(rewards[i]) for i in own]), strict=True
            ):
                result[i] = advantage
    if name == "gpg":
        alpha = len(scores) / max(sum(score != 0 for score in scores), 1)
        result = [alpha * x for x in result]
    rows = [[x] * len(row) for x, row in zip(result, rewards, strict=True)]
    return whitened(rows, compared) if name in ("reinforce_plus_plus_baseline", "gdpo") else rows


def within(name: str, scores: list[float], lengths: list[int]) -> list[float]:
    """Advantages in one group."""
    if name in ("grpo", "gdpo"):
        return [(x - mean(scores)) / (std(scores) + 1e-6) for x in scores]
    if name == "rloo":
        return [x - mean(scores[:i] + scores[i + 1 :]) for i, x in enumerate(scores)]
    if name == "opo":
        weighted = math.fsum(n * x for n, x in zip(lengths, scores, strict=True))
        return [x - weighted / sum(lengths) for x in scores]
    if name == "grpo_passk":
        second, best = sorted(scores)[-2:]
        lead = (best - second) / (std(scores) + 1e-6)
        return [lead if i == scores.index(best) else 0.0 for i in range(len(scores))]
    return [x - mean(scores) for x in scores]


def token_baseline(columns: dict[str, Numbers], members: dict[int, list[int]], n: int) -> Numbers:
    result: Numbers = [[] for _ in range(n)]
    returns = [suffix(row, 1.0) for row in columns["token_rewards"]]
    energies = []
    for i in range(n):
        total, row = 0.0, []
        for logprob, squares, weight in zip(
            *(columns[c][i] for c in ("old_logprobs", "sum_pi_squared", "rollout_weights")), strict=True
        ):
            total += (1 - 2 * math.exp(logprob) + squares) * weight**2
            row.append(total)
        energies.append(row)
    for own in members.values():
        lengths = sorted(len(returns[i]) for i in own)
        for i in own:
            for t, g in enumerate(returns[i]):
                present = [j for j in own if t < len(returns[j])]
                numerator = math.fsum(returns[j][t] * energies[j][t] for j in present)
                baseline = numerator / (math.fsum(energies[j][t] for j in present) + 1e-8)
                if len(own) == 1:
                    result[i].append(0.0)
                else:
                    result[i].append(g - (baseline if t < lengths[-2] else 0.0))
    return result


# --- batches


class Batch:
    """Random columns with gaps, drawn from a seed; NaN and inf wherever the mask excludes a token."""

    def __init__(self, lengths: list[int], seed: int, *, gaps: bool, extra: int = 0, groups: int = 3) -> None:
        generator = torch.Generator().manual_seed(seed)
        n, width = len(lengths), max([*lengths, 0]) + extra
        self.inside = torch.arange(width) < torch.tensor(lengths).unsqueeze(1)
        self.mask = self.inside & (torch.rand(n, width, generator=generator) < 0.7) if gaps else self.inside

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, dtype=torch.float64, generator=generator)

        tokens = {name: normal(n, width) for name in TOKENS}
        tokens["old_logprobs"] = -tokens["old_logprobs"].abs()
        tokens["sum_pi_squared"] = (-tokens["sum_pi_squared"].abs()).exp()
        self.tokens = tokens
        self.group = torch.randint(0, groups, (n,), generator=generator)
        self.baseline = normal(n)
        self.lengths = torch.tensor(lengths)

    def components(self) -> dict[str, Tensor]:
        return {"reward": torch.where(self.mask, self.tokens["token_rewards"], 0).sum(1)}

    def padded(self, poison: tuple[float, ...] = (NAN, INF)) -> dict[str, Any]:
        poisoned = {
            name: column.masked_fill(~self.mask, poison[i % len(poison)])
            for i, (name, column) in enumerate(self.tokens.items())
        }
        return {
            **poisoned,
            "mask": self.mask,
            "group": self.group,
            "baseline": self.baseline,
            "reward_components": self.components(),
            "gamma": 0.9,
            "lam": 0.8,
        }

    def packed(self) -> dict[str, Any]:
        padded = self.padded()
        return {
            **padded,
            **{name: padded[name][self.inside] for name in (*TOKENS, "mask")},
            "cu_seqlens": torch.cat([torch.zeros(1, dtype=torch.int64), self.lengths.cumsum(0)]),
        }

    def lists(self) -> dict[str, Numbers]:
        return {
            name: [row[valid].tolist() for row, valid in zip(column, self.mask, strict=True)]
            for name, column in self.tokens.items()
        }


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=8)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=15)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8), seed=st.integers(0, 2**31), gaps=st.booleans())
def test_equal_to_the_formula(name: str, lengths: list[int], seed: int, gaps: bool) -> None:
    gaps = gaps and name != "optimal_token_baseline"  # its positions count the gaps
    batch = Batch(lengths, seed, gaps=gaps)
    batch.mask[:, 0] = True
    expected = textbook(name, batch.lists(), batch.group.tolist(), batch.baseline.tolist())
    result, _ = advantages.compute(name, **batch.padded())
    flat = torch.tensor([x for row in expected for x in row], dtype=torch.float64)
    torch.testing.assert_close(result[batch.mask], flat, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=15)
@given(lengths=LENGTHS, seed=st.integers(0, 2**31), extra=st.integers(0, 3), gaps=st.booleans())
def test_layouts_orders_padding_and_poison_agree(
    name: str, lengths: list[int], seed: int, extra: int, gaps: bool
) -> None:
    batch = Batch(lengths, seed, gaps=gaps, extra=extra)
    padded = advantages.compute(name, **batch.padded())
    packed = advantages.compute(name, **batch.packed())
    harmless = advantages.compute(name, **batch.padded(poison=(0.0,)))
    integers = advantages.compute(name, **{**batch.padded(), "mask": batch.mask.int()})
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed))
    inputs = batch.padded()
    moved: dict[str, Any] = {key: value[order] if isinstance(value, Tensor) else value for key, value in inputs.items()}
    moved["group"] = 1000 - moved["group"]
    moved["reward_components"] = {key: column[order] for key, column in batch.components().items()}
    permuted = advantages.compute(name, **moved)
    for a, b, c, d, e in zip(padded, packed, harmless, integers, permuted, strict=True):
        assert (a[~batch.mask] == 0).all() and a.isfinite().all()
        close(b, a[batch.inside])
        assert torch.equal(c, a) and torch.equal(d, a)
        close(e, a[order])
    if name in GROUP_CONSTANT:  # and so the order of tokens does not matter either
        for column in (*TOKENS, "mask"):
            inputs[column] = inputs[column].flip(1)
        close(advantages.compute(name, **inputs)[0], padded[0].flip(1))


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=15)
@given(lengths=LENGTHS, seed=st.integers(0, 2**31), before=st.integers(0, 4))
def test_padding_on_the_left_and_prompts_change_nothing(name: str, lengths: list[int], seed: int, before: int) -> None:
    batch = Batch(lengths, seed, gaps=False)
    plain, _ = advantages.compute(name, **batch.padded())
    inputs = batch.padded()
    for column in (*TOKENS, "mask"):
        filler = inputs[column].new_full((len(lengths), before), 0 if column == "mask" else NAN)
        inputs[column] = torch.cat([filler, inputs[column]], 1)
    shifted, _ = advantages.compute(name, **inputs)
    close(shifted[:, before:], plain)
    assert not shifted[:, :before].any()


@settings(deadline=None, max_examples=15)
@given(lengths=st.lists(st.integers(1, 5), min_size=2, max_size=10), seed=st.integers(0, 1000))
@pytest.mark.parametrize("name", ["grpo", "rloo", "gpg", "reinforce_plus_plus_baseline", "gdpo", "opo"])
def test_c07_centred_groups_sum_to_zero(name: str, lengths: list[int], seed: int) -> None:
    """Bug bank C07: statistics come from the whole group; opo's are weighted by length."""
    batch = Batch(lengths, seed, gaps=False)
    result, _ = advantages.compute(name, **{**batch.padded(), "whiten": False})
    per_sequence = result[:, 0] * (batch.lengths if name == "opo" else 1)
    for g in batch.group.tolist():
        assert abs(float(per_sequence[batch.group == g].sum())) < 1e-9


@settings(deadline=None, max_examples=15)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=2, max_size=10),
    seed=st.integers(0, 1000),
    shift=st.floats(-100, 100),
    scale=st.floats(0.1, 100),
)
@pytest.mark.parametrize("name", ["grpo", "grpo_passk", "rloo", "opo", "reinforce_plus_plus_baseline", "remax"])
def test_rewards_may_be_shifted_and_scaled(
    name: str, lengths: list[int], seed: int, shift: float, scale: float
) -> None:
    batch = Batch(lengths, seed, gaps=False)
    inputs = {**batch.padded(), "norm_by_std": False, "whiten": False}
    plain, _ = advantages.compute(name, **inputs)
    first = torch.zeros_like(batch.mask)
    first[torch.arange(len(lengths)), batch.lengths - 1] = True
    moved = (inputs["token_rewards"] + first.double() * shift) * scale
    result, _ = advantages.compute(
        name, **{**inputs, "token_rewards": moved, "baseline": (batch.baseline + shift) * scale}
    )
    torch.testing.assert_close(result, plain * scale, rtol=1e-9, atol=1e-9 * scale)


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo"])
@settings(deadline=None, max_examples=15)
@given(lengths=st.lists(st.integers(1, 9), min_size=3, max_size=8), seed=st.integers(0, 1000))
def test_whitened_tokens_have_mean_zero_and_variance_one(name: str, lengths: list[int], seed: int) -> None:
    batch = Batch(lengths, seed, gaps=False, groups=1)
    result, _ = advantages.compute(name, **batch.padded())
    raw, _ = advantages.compute(name, **{**batch.padded(), "whiten": False})
    variance = float(raw[batch.mask].var())
    valid = result[batch.mask]
    assert float(valid.mean()) == pytest.approx(0, abs=1e-9)
    assert float(valid.var()) == pytest.approx(variance / (variance + 1e-8), rel=1e-9)


@settings(deadline=None, max_examples=15)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_gae_without_discount_is_the_sum_of_later_rewards_less_the_value(lengths: list[int], seed: int) -> None:
    batch = Batch(lengths, seed, gaps=True)
    inputs = {**batch.padded(), "gamma": 1.0, "lam": 1.0, "whiten": False}
    result, returns = advantages.compute("gae", **inputs)
    to_go, _ = advantages.compute("remax", **{**inputs, "baseline": torch.zeros(len(lengths))})
    close(returns, to_go)
    close(result, torch.where(batch.mask, to_go - batch.tokens["values"], 0))


@pytest.mark.parametrize("name", NAMES)
def test_batches_of_many_blocks_agree_with_their_sequences_alone(name: str) -> None:
    """Longer than what is worked through at once: whole groups, each in a call of its own, give the same."""
    lengths = [10_000, 30_000, 3, 20_000, 1, 0, 40_000, 5_000]
    batch = Batch(lengths, 5, gaps=True)
    batch.group = torch.tensor([0, 1, 0, 1, 2, 2, 3, 3])
    options: dict[str, Any] = {"whiten": False} if name != "gpg" else {}  # whose alpha, like whitening, is the batch's
    whole, _ = advantages.compute(name, **{**batch.packed(), **options})
    together, _ = advantages.compute(name, **{**batch.padded(), **options})
    close(whole, together[batch.inside])
    for g in range(4 if name != "gpg" else 0):
        rows = batch.group == g
        inputs: dict[str, Any] = {
            key: value[rows] if isinstance(value, Tensor) else value for key, value in batch.padded().items()
        }
        inputs["reward_components"] = {key: column[rows] for key, column in batch.components().items()}
        alone, _ = advantages.compute(name, **{**inputs, **options})
        close(alone, together[rows], 1e-10)
