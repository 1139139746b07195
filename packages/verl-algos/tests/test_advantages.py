"""GAE and GRPO: published numeric cases (verl-facts A1-A5), reported bugs (bug bank C01-C10)."""

import math
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor
from verl_algos import advantages
from verl_algos.errors import NonFiniteError

NAN, INF = math.nan, math.inf


def f64(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def mask(*rows: list[int]) -> Tensor:
    return torch.tensor(rows, dtype=torch.bool)


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-8) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def outcome(rewards: list[float], group: list[int], valid: list[int] | None = None, **options: Any) -> Tensor:
    """GRPO advantages of one-token sequences."""
    flags = None if valid is None else mask(*[[v] for v in valid])
    result, returns = advantages.compute(
        "grpo", token_rewards=f64(*[[r] for r in rewards]), group=torch.tensor(group), mask=flags, **options
    )
    assert torch.equal(result, returns) and result is not returns
    return result[:, 0]


# --- gae


def test_a1_gae() -> None:
    inputs: dict[str, Any] = {"token_rewards": f64([0, 0, 1]), "values": f64([0.5, 0.4, 0.3]), "lam": 0.95}
    raw, returns = advantages.compute("gae", **inputs, whiten=False)
    close(raw, f64([0.43675, 0.565, 0.7]))
    close(returns, f64([0.93675, 0.965, 1]))
    white, white_returns = advantages.compute("gae", **inputs)
    # The published digits carry the 1e-8 that the original adds to the token count of the mean.
    close(white, f64([-0.991344070, -0.017092125, 1.008436238]), 1e-7)
    assert torch.equal(white_returns, returns)


def test_a2_gae_padding() -> None:
    inputs: dict[str, Any] = {
        "token_rewards": f64([0, 0, 0, 1], [0, 2, 0, 0]),
        "values": f64([0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 9, 9]),
        "mask": mask([1, 1, 1, 1], [1, 1, 0, 0]),
        "gamma": 0.9,
        "lam": 0.8,
    }
    raw, returns = advantages.compute("gae", **inputs, whiten=False)
    close(raw, f64([0.3854528, 0.42424, 0.492, 0.6], [1.048, 1.4, 0, 0]))
    close(returns, f64([0.4854528, 0.62424, 0.792, 1], [1.548, 2, 0, 0]))
    white, _ = advantages.compute("gae", **inputs)
    close(white, f64([-0.830454900, -0.735575961, -0.569825483, -0.305642313], [0.790228615, 1.651270059, 0, 0]))
    assert white[1, 2:].tolist() == [0, 0]  # the original leaves whitened garbage there


def test_a3_gae_skips_observation_tokens_without_discounting() -> None:
    inputs: dict[str, Any] = {
        "token_rewards": f64([0, 0, 0, 0, 1]),
        "values": f64([0.2, 0.3, 7, 7, 0.4]),
        "mask": mask([1, 1, 0, 0, 1]),
    }
    raw, returns = advantages.compute("gae", **inputs, whiten=False)
    close(raw, f64([0.8, 0.7, 0, 0, 0.6]))
    close(returns, f64([1, 1, 0, 0, 1]))
    white, _ = advantages.compute("gae", **inputs)
    close(white, f64([0.9999995, 0, 0, 0, -0.9999995]), 1e-7)
    close(
        advantages.compute("gae", **inputs, gamma=0.5, whiten=False)[1],
        f64([0.25, 0.5, 0, 0, 1]),
    )


@pytest.mark.parametrize("poison", [100.0, NAN, INF, -INF])
def test_c10_masked_values_and_rewards_reach_nothing(poison: float) -> None:
    """Bug bank C10: the critic's value at padding does not bootstrap real tokens."""
    result, returns = advantages.compute(
        "gae",
        token_rewards=f64([0, 1, poison]),
        values=f64([0, 0, poison]),
        mask=mask([1, 1, 0]),
        lam=0.95,
        whiten=False,
    )
    close(result, f64([0.95, 1, 0]))
    close(returns, f64([0.95, 1, 0]))


def test_c13_gae_whitens_one_token_and_no_token_to_zero() -> None:
    """Bug bank C13: the variance of one valid token is not divided by zero."""
    for flags in ([1, 0], [0, 0]):
        result, _ = advantages.compute("gae", token_rewards=f64([5, 9]), values=f64([0, 0]), mask=mask(flags))
        assert result.tolist() == [[0, 0]]


@pytest.mark.parametrize("lengths", [[5], [1, 7, 3], [64, 1, 33]])
@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.99, 0.95), (0.5, 0.0), (0.0, 0.7)])
def test_gae_equals_the_textbook_recursion(lengths: list[int], gamma: float, lam: float) -> None:
    generator = torch.Generator().manual_seed(3)
    rewards = torch.randn(sum(lengths), dtype=torch.float64, generator=generator)
    values = torch.randn(sum(lengths), dtype=torch.float64, generator=generator)
    expected: list[float] = []
    cuts = torch.tensor(lengths).cumsum(0)[:-1]
    for r, v in zip(rewards.tensor_split(cuts), values.tensor_split(cuts), strict=True):
        advantage, next_value, backwards = 0.0, 0.0, []
        for t in reversed(range(len(r))):
            advantage = float(r[t]) + gamma * next_value - float(v[t]) + gamma * lam * advantage
            next_value = float(v[t])
            backwards.append(advantage)
        expected += backwards[::-1]
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    result, returns = advantages.compute(
        "gae", token_rewards=rewards, values=values, cu_seqlens=offsets, gamma=gamma, lam=lam, whiten=False
    )
    close(result, torch.tensor(expected, dtype=torch.float64), 1e-12)
    close(returns, result + values, 1e-12)


def test_gae_refuses_bad_numbers_and_factors() -> None:
    with pytest.raises(
        NonFiniteError, match="token_rewards holds 1 valid entries that are not finite, the first is nan"
    ):
        advantages.compute("gae", token_rewards=f64([0, NAN]), values=f64([0, 0]))
    with pytest.raises(NonFiniteError, match="values holds 2") as error:
        advantages.compute("gae", token_rewards=f64([0, 0]), values=f64([INF, NAN]))
    copy = pickle.loads(pickle.dumps(error.value))
    assert (str(copy), copy.column) == (str(error.value), "values")
    with pytest.raises(ValueError, match=r"gamma=1\.5"):
        advantages.compute("gae", token_rewards=f64([0]), values=f64([0]), gamma=1.5)
    with pytest.raises(ValueError, match="lam=-1"):
        advantages.compute("gae", token_rewards=f64([0]), values=f64([0]), lam=-1)


# --- grpo

A4_REWARDS, A4_GROUPS = [1.0, 0, 0, 1, 0.5, 0.5, 2, 3], [0, 0, 0, 0, 1, 1, 2, 3]


def test_a4_grpo() -> None:
    # The last two are alone in their group: 0 here (nothing to compare with), their own reward in the original.
    expected = [0.866023904, -0.866023904, -0.866023904, 0.866023904, 0, 0, 0, 0]
    close(outcome(A4_REWARDS, A4_GROUPS), torch.tensor(expected, dtype=torch.float64))


def test_a5_grpo_without_std() -> None:
    expected = torch.tensor([0.5, -0.5, -0.5, 0.5, 0, 0, 0, 0], dtype=torch.float64)
    close(outcome(A4_REWARDS, A4_GROUPS, norm_by_std=False), expected)


def test_c01_low_variance_groups_are_not_damped() -> None:
    """Bug bank C01: epsilon is added to the std, not to the variance."""
    close(outcome([1.0, 1.00001], [0, 0]), torch.tensor([-0.6195, 0.6195], dtype=torch.float64), 1e-4)


def test_c02_singleton_group_gets_zero_and_is_counted() -> None:
    """Bug bank C02: a single sample gets 0, as recommended (the original's grpo and rloo keep its reward: `compat`)."""
    group = torch.tensor([7, 7, 9])
    assert outcome([1.0, 0.0, 0.7], group.tolist(), norm_by_std=False).tolist() == [0.5, -0.5, 0]
    assert advantages.singleton_groups(group) == 1
    assert advantages.singleton_groups(torch.tensor([4, 2, 9])) == 3
    assert advantages.singleton_groups(torch.tensor([], dtype=torch.int64)) == 0


def test_c03_fully_masked_members_do_not_vote() -> None:
    """Bug bank C03: a response that is masked as a whole stays out of mean and std."""
    valid = [1, 0, 1, 1]
    centred = outcome([1, 1, 0, 0], [0] * 4, valid, norm_by_std=False)
    close(centred, torch.tensor([2 / 3, 0, -1 / 3, -1 / 3], dtype=torch.float64))
    normalised = outcome([1, 1, 0, 0], [0] * 4, valid)
    close(normalised, torch.tensor([1.1547, 0, -0.57735, -0.57735], dtype=torch.float64), 1e-5)
    assert outcome([100, 1], [0, 0], [0, 1], norm_by_std=False).tolist() == [0, 0]
    assert outcome([NAN, 1, 0], [0, 0, 0], [0, 1, 1], norm_by_std=False).tolist() == [0, 0.5, -0.5]


def test_c05_unscored_sequence_is_excluded() -> None:
    """Bug bank C05: missing is not zero. Its 1.1545 has 1e-4 beside the std; with the published 1e-6 it is 1.1547."""
    result = outcome([1, NAN, 0, 0], [0] * 4)
    close(result, torch.tensor([1.1547, 0, -0.57735, -0.57735], dtype=torch.float64), 1e-5)
    rewards, group = f64([1.0], [NAN], [2.0]), torch.tensor([0, 0, 1])
    scored = advantages.scored_sequences(rewards)
    assert scored.tolist() == [True, False, True]
    assert advantages.singleton_groups(group, scored) == 2
    assert outcome([1, NAN, 2], group.tolist()).tolist() == [0, 0, 0]


def test_c06_groups_by_id_not_by_position() -> None:
    """Bug bank C06: rows tiled as p1, p2, p1, p2."""
    assert outcome([1, 0, 0, 0], [11, 22, 11, 22], norm_by_std=False).tolist() == [0.5, 0, -0.5, 0]


def test_c07_statistics_from_the_whole_group() -> None:
    """Bug bank C07: mean and std come from all responses of a prompt."""
    assert outcome([1, 0, 0, 0], [5] * 4, norm_by_std=False).tolist() == [0.75, -0.25, -0.25, -0.25]


def test_grpo_writes_to_valid_tokens_only() -> None:
    result, _ = advantages.compute(
        "grpo",
        token_rewards=f64([0.25, NAN, 0.75], [0, 0, INF]),
        mask=mask([1, 0, 1], [1, 1, 0]),
        group=torch.tensor([1, 1]),
        norm_by_std=False,
    )
    assert result.tolist() == [[0.5, 0, 0.5], [-0.5, -0.5, 0]]


def test_grpo_group_ids_may_be_huge() -> None:
    assert outcome([1, 0], [2**62, 2**62], norm_by_std=False).tolist() == [0.5, -0.5]


def test_grpo_refuses_infinite_rewards_and_wrong_group() -> None:
    with pytest.raises(NonFiniteError, match=r"not finite, the first is inf"):
        outcome([1, INF], [0, 0])
    with pytest.raises(ValueError, match=r"group has shape \(3,\) but there are 2 sequences"):
        outcome([1, 0], [0, 0, 0])


# --- inputs


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": f64([1, 2])}, r"values has shape \(1, 2\)"),
        ({"mask": mask([1, 1])}, r"mask has shape \(1, 2\)"),
        ({"cu_seqlens": torch.tensor([0, 3])}, "cu_seqlens was given but token_rewards is padded"),
        ({"token_rewards": torch.zeros(3), "values": torch.zeros(3)}, "cu_seqlens is missing"),
        ({"token_rewards": torch.zeros(1, 1, 1), "values": torch.zeros(1, 1, 1)}, r"padded \(B, T\) or packed \(T,\)"),
        *(
            ({"token_rewards": torch.zeros(3), "values": torch.zeros(3), "cu_seqlens": torch.tensor(offsets)}, message)
            for offsets, message in (
                ([0, 2], "goes from 0 to 2 for 3 packed tokens"),
                ([1, 3], "goes from 1 to 3"),
                ([0, 2, 1, 3], "never fall"),
                ([0.0, 3.0], "integer vector"),
                ([[0, 3]], "integer vector"),
            )
        ),
    ],
)
def test_inputs_that_do_not_fit(arguments: dict[str, Any], message: str) -> None:
    given_inputs = {"token_rewards": f64([1, 2, 3]), "values": f64([1, 2, 3])} | arguments
    with pytest.raises(ValueError, match=message):
        advantages.compute("gae", **given_inputs)


def test_half_precision_is_computed_in_float32_without_gradient() -> None:
    values = torch.tensor([[0.5, 0.25]], dtype=torch.bfloat16, requires_grad=True)
    result, returns = advantages.compute("gae", token_rewards=torch.ones(1, 2, dtype=torch.bfloat16), values=values)
    assert result.dtype == returns.dtype == torch.float32
    assert not result.requires_grad and not returns.requires_grad


def test_values_are_not_touched_and_results_are_new() -> None:
    rewards, values = f64([0, 1]), f64([0.5, 0.25])
    before = rewards.clone(), values.clone()
    for _ in range(2):
        result, returns = advantages.compute("gae", token_rewards=rewards, values=values)
        result.zero_(), returns.zero_()
    assert torch.equal(rewards, before[0]) and torch.equal(values, before[1])
