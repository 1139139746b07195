"""Every other estimator: published numeric cases (verl-facts A6 to A14), bug bank C02, C03, C05 for all of them."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from verl_algos import advantages
from verl_algos.errors import NonFiniteError
from verl_algos.estimators import ESTIMATORS

NAN, INF = math.nan, math.inf
A4_REWARDS, A4_GROUPS = [1.0, 0, 0, 1, 0.5, 0.5, 2, 3], [0, 0, 0, 0, 1, 1, 2, 3]


def f64(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def mask(*rows: list[int]) -> Tensor:
    return torch.tensor(rows, dtype=torch.bool)


def close(actual: Tensor, expected: Tensor | list[float], tolerance: float = 1e-8) -> None:
    if isinstance(expected, list):
        expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual, expected, rtol=0, atol=tolerance)


def outcome(
    name: str, rewards: list[float], group: list[int], valid: list[int] | None = None, **options: Any
) -> Tensor:
    """Advantages of one-token sequences."""
    flags = None if valid is None else mask(*[[v] for v in valid])
    if name == "gdpo":
        options["reward_components"] = {"reward": torch.tensor(rewards, dtype=torch.float64)}
    if name.endswith("token_baseline"):
        ones = torch.ones(len(rewards), 1, dtype=torch.float64)
        options |= {"old_logprobs": (ones / 2).log(), "sum_pi_squared": ones / 2}
    result, returns = advantages.compute(
        name, token_rewards=f64(*[[r] for r in rewards]), group=torch.tensor(group), mask=flags, **options
    )
    assert result.data_ptr() != returns.data_ptr()
    return result[:, 0]


# --- single cases


@pytest.mark.parametrize("name", ["rloo", "rloo_vectorized", "RLOO"])
def test_a6_rloo(name: str) -> None:
    # Singletons: 0 here and in the original's rloo_vectorized, their reward in its rloo.
    close(outcome(name, A4_REWARDS, A4_GROUPS), [2 / 3, -2 / 3, -2 / 3, 2 / 3, 0, 0, 0, 0])
    close(outcome(name, A4_REWARDS, A4_GROUPS, compat=True), [2 / 3, -2 / 3, -2 / 3, 2 / 3, 0, 0, 2, 3])


def test_c02_rloo_and_every_spelling_of_it_agree() -> None:
    """Bug bank C02: one path kept the raw score of a single sample, the other returned 0."""
    for name in ("rloo", "rloo_vectorized"):
        assert outcome(name, [1, 0, 0.7], [1, 1, 2]).tolist() == [1, -1, 0]


@pytest.mark.parametrize("name", ["grpo", "grpo_vectorized"])
def test_a4_a5_grpo_compat(name: str) -> None:
    with_std = [0.866023904, -0.866023904, -0.866023904, 0.866023904, 0, 0, 1.999998, 2.999997]
    close(outcome(name, A4_REWARDS, A4_GROUPS, compat=True), with_std)
    without = outcome(name, A4_REWARDS, A4_GROUPS, norm_by_std=False, compat=True)
    close(without, [0.5, -0.5, -0.5, 0.5, 0, 0, 2, 3])


@pytest.mark.parametrize("name", ["reinforce_plus_plus", "REINFORCE++"])
def test_a7_reinforce_plus_plus(name: str) -> None:
    inputs: dict[str, Any] = {"token_rewards": f64([0, 0, 9, NAN, 2]), "mask": mask([1, 1, 0, 0, 1]), "gamma": 0.5}
    result, returns = advantages.compute(name, **inputs)
    close(returns, f64([0.5, 1, 0, 0, 2]))
    close(result, f64([-0.872871550, -0.218217884, 0, 0, 1.091089449]), 3e-8)
    raw, _ = advantages.compute(name, **inputs, whiten=False)
    assert torch.equal(raw, returns)


@pytest.mark.parametrize("name", ["reinforce_plus_plus_baseline", "REINFORCE++-baseline"])
def test_a8_reinforce_plus_plus_baseline(name: str) -> None:
    # Centred: [.5, -.5, 1, -1]; over the tokens [.5, .5, .5, -.5, 1, -1, -1]: mean 0, unbiased variance 4 / 6.
    inputs: dict[str, Any] = {
        "token_rewards": f64([0, 0, 1], [0, 0, 0], [2, 0, 0], [0, 0, 0]),
        "mask": mask([1, 1, 1], [1, 0, 0], [1, 0, 0], [1, 1, 0]),
        "group": torch.tensor([0, 0, 1, 1]),
    }
    raw, _ = advantages.compute(name, **inputs, whiten=False)
    close(raw, f64([0.5, 0.5, 0.5], [-0.5, 0, 0], [1, 0, 0], [-1, -1, 0]), 0)
    result, returns = advantages.compute(name, **inputs)
    close(result, raw / math.sqrt(4 / 6 + 1e-8), 1e-12)
    assert torch.equal(result, returns)


def test_reinforce_plus_plus_baseline_gives_singletons_zero_and_does_not_let_them_vote() -> None:
    close(outcome("reinforce_plus_plus_baseline", [1, 0, 5], [0, 0, 1]), [0.5**0.5, -(0.5**0.5), 0])
    # The original: centred [.5, -.5, 5] are whitened together.
    centred = torch.tensor([0.5, -0.5, 5], dtype=torch.float64)
    expected = (centred - centred.mean()) / (centred.var() + 1e-8).sqrt()
    close(outcome("reinforce_plus_plus_baseline", [1, 0, 5], [0, 0, 1], compat=True), expected)


@pytest.mark.parametrize("name", ["remax", "ReMax"])
def test_a9_remax(name: str) -> None:
    result, returns = advantages.compute(
        name,
        token_rewards=f64([0.5, 0, 1], [0, 0, 0]),
        mask=mask([1, 1, 1], [1, 1, 0]),
        baseline=torch.tensor([0.7, 0.2], dtype=torch.float64),
    )
    close(result, f64([0.8, 0.3, 0.3], [-0.2, -0.2, 0]))
    close(returns, f64([1.5, 1, 1], [0, 0, 0]))


def test_remax_without_a_score_of_the_greedy_response() -> None:
    result, returns = advantages.compute(
        "remax", token_rewards=f64([1], [1], [NAN]), baseline=torch.tensor([NAN, 0.25, 0.5], dtype=torch.float64)
    )
    assert result.flatten().tolist() == [0, 0.75, 0]
    assert returns.flatten().tolist() == [1, 1, 0]
    with pytest.raises(NonFiniteError, match="baseline holds 1"):
        advantages.compute("remax", token_rewards=f64([1]), baseline=torch.tensor([-INF]))


A10: dict[str, Any] = {
    "token_rewards": f64([0, 0, 1], [0, 0, 0], [2, 0, 0], [0, 0, 5]),
    "mask": mask([1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]),
    "group": torch.tensor([3, 3, 8, 8]),
}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("opo", [0.4, -0.6, -2.25, 0.75]), ("gpg", [2 / 3, -2 / 3, -2, 2]), ("GPG", [2 / 3, -2 / 3, -2, 2])],
)
def test_a10_a11_opo_and_gpg(name: str, expected: list[float]) -> None:
    result, returns = advantages.compute(name, **A10)
    close(result, torch.tensor(expected, dtype=torch.float64).unsqueeze(1) * A10["mask"], 1e-12)
    assert torch.equal(result, returns)


def test_gpg_without_any_reward() -> None:
    assert outcome("gpg", [0, 0], [0, 0]).tolist() == [0, 0]
    close(outcome("gpg", [-1, 0, 0], [0, 0, 0]), [-2, 1, 1])  # what counts is not 0, not above 0


def test_a12_gdpo() -> None:
    # GRPO of [1, 0] is +-.5 / (std + 1e-6) with std sqrt(.5); of [.1, .2] +-.05 with std sqrt(.005).
    component = 0.5 / (0.5**0.5 + 1e-6)
    inputs: dict[str, Any] = {
        "token_rewards": f64([9], [9], [9], [9]),
        "group": torch.tensor([0, 0, 1, 1]),
        "reward_components": {
            "right": torch.tensor([1.0, 0, 1, 0], dtype=torch.float64),
            "short": torch.tensor([0.1, 0.2, 0.3, 0.3], dtype=torch.float64),
        },
    }
    short = 0.05 / (0.005**0.5 + 1e-6)
    total = torch.tensor([component - 2 * short, -component + 2 * short, component, -component], dtype=torch.float64)
    raw, _ = advantages.compute("gdpo", **inputs, reward_weights={"short": 2.0}, whiten=False)
    close(raw[:, 0], total, 1e-12)
    white, _ = advantages.compute("gdpo", **inputs, reward_weights={"short": 2.0})
    close(white[:, 0], (total - total.mean()) / (total.var() + 1e-8).sqrt(), 1e-12)
    centred, _ = advantages.compute("GDPO", **inputs, norm_by_std=False, whiten=False)
    close(centred[:, 0], [0.45, -0.45, 0.5, -0.5], 1e-12)


def test_every_component_of_gdpo_counts_the_same_whatever_its_scale() -> None:
    components = {
        "a": torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64),
        "b": torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64),
        "c": torch.tensor([0.0, 0.0, 10.0], dtype=torch.float64),
    }
    inputs: dict[str, Any] = {"token_rewards": torch.zeros(3, 1), "group": torch.tensor([0, 0, 0])}
    result, _ = advantages.compute("gdpo", **inputs, reward_components=components, whiten=False)
    close(result[:, 0].double(), [0, 0, 0], 1e-5)


def test_gdpo_component_that_does_not_apply() -> None:
    """Bug bank C05, for one component: missing is not zero, and the others still teach."""
    result, _ = advantages.compute(
        "gdpo",
        token_rewards=torch.zeros(3, 1, dtype=torch.float64),
        group=torch.tensor([0, 0, 0]),
        reward_components={
            "a": torch.tensor([1, 0, NAN], dtype=torch.float64),
            "b": torch.tensor([0, 0, 3], dtype=torch.float64),
        },
        norm_by_std=False,
        whiten=False,
    )
    close(result[:, 0], [0.5 - 1, -0.5 - 1, 2])


@pytest.mark.parametrize(
    ("components", "weights", "message"),
    [
        ({}, None, "reward_components is empty"),
        ({"a": torch.zeros(2)}, {"b": 1.0}, "reward_weights names 'b', which reward_components does not have"),
        ({"a": torch.zeros(2)}, {"a": NAN}, r"reward_weights\['a'\]=nan"),
        ({"a": torch.zeros(3)}, None, r"reward_components\['a'\] has shape \(3,\) but there are 2 sequences"),
        ({"a": torch.tensor([INF, 0])}, None, r"reward_components\['a'\] holds 1"),
        ([torch.zeros(2)], None, "reward_components is a list, but gdpo takes a mapping"),
        (torch.zeros(2), None, "reward_components is a Tensor, but gdpo takes a mapping"),
        ({"a": torch.zeros(2)}, [1.0], "reward_weights is a list, but gdpo takes a mapping"),
    ],
)
def test_gdpo_refuses(components: Any, weights: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        advantages.compute(
            "gdpo",
            token_rewards=torch.zeros(2, 1),
            group=torch.tensor([0, 0]),
            reward_components=components,
            reward_weights=weights,
        )


def test_a13_grpo_passk() -> None:
    std = torch.tensor([0.1, 0.9, 0.4], dtype=torch.float64).std()
    rewards, group = [0.1, 5, 0.9, 5, 0.4, 7], [0, 1, 0, 1, 0, 2]
    close(outcome("grpo_passk", rewards, group, norm_by_std=False), [0, 0, 0.5, 0, 0, 0])
    close(outcome("grpo_passk", rewards, group), [0, 0, 0.5 / (float(std) + 1e-6), 0, 0, 0])
    with pytest.raises(ValueError, match="1 groups have only one scored sequence"):
        outcome("grpo_passk", rewards, group, compat=True)


A14: dict[str, Any] = {
    "token_rewards": f64([0, 0, 1], [0, 0, 0], [0, 1, 0]),
    "mask": mask([1, 1, 1], [1, 1, 0], [1, 1, 0]),
    "old_logprobs": f64([0.5, 0.4, 0.9], [0.6, 0.3, 0.5], [0.2, 0.8, 0.5]).log(),
    "sum_pi_squared": f64([0.4, 0.3, 0.82], [0.45, 0.35, 0.5], [0.3, 0.66, 0.5]),
    "group": torch.tensor([0, 0, 0]),
}
A14_EXPECTED = f64([0.161290328, 0.349650352, 1], [-0.838709672, -0.650349648, 0], [0.161290328, 0.349650352, 0])


@pytest.mark.parametrize("name", ["optimal_token_baseline", "tir_optimal_token_baseline", "OTB", "TIR-OTB"])
def test_a14_optimal_token_baseline(name: str) -> None:
    result, returns = advantages.compute(name, **A14)
    close(result, A14_EXPECTED)
    close(returns, f64([1, 1, 1], [0, 0, 0], [1, 1, 0]))


def test_a14_rollout_weights_scale_each_token_by_their_square() -> None:
    weights = f64([1, 2, 1], [0.5, 1, 1], [1, 1, 1])
    result, _ = advantages.compute("optimal_token_baseline", **A14, rollout_weights=weights)
    # 1 - 2 pi + sum pi^2 = [.4, .5, .02; .25, .75; .9, .06].
    first = (0.4 + 0.9) / (0.4 + 0.25 / 4 + 0.9 + 1e-8)
    second = (0.4 + 4 * 0.5 + 0.96) / (0.4 + 4 * 0.5 + 0.25 / 4 + 0.75 + 0.96 + 1e-8)
    close(result, f64([1 - first, 1 - second, 1], [-first, -second, 0], [1 - first, 1 - second, 0]))


def test_tool_tokens_are_positions_of_one_and_not_of_the_other() -> None:
    def apart(column: Tensor) -> Tensor:
        """Tool output behind the first token of the first sequence, padding behind the others."""
        filler = torch.full((3, 2), NAN, dtype=torch.float64)
        return torch.cat(
            [torch.cat([column[:1, :1], filler[:1], column[:1, 1:]], 1), torch.cat([column[1:], filler[1:]], 1)]
        )

    flags = mask([1, 0, 0, 1, 1], [1, 1, 0, 0, 0], [1, 1, 0, 0, 0])
    inputs: dict[str, Any] = {
        **{name: apart(A14[name]) for name in ("token_rewards", "old_logprobs", "sum_pi_squared")},
        "mask": flags,
        "group": A14["group"],
    }
    compacted, _ = advantages.compute("tir_optimal_token_baseline", **inputs)
    close(compacted[flags], A14_EXPECTED[A14["mask"]])
    assert (compacted[~flags] == 0).all()
    # By position the second tokens of the others have only each other, and the first sequence's last two nobody.
    placed, _ = advantages.compute("optimal_token_baseline", **inputs)
    baseline = 0.96 / (1 + 0.96 + 1e-8)
    close(placed[flags], [0.161290328, 1, 1, -0.838709672, -baseline, 0.161290328, 1 - baseline])


@pytest.mark.parametrize("name", ["optimal_token_baseline", "tir_optimal_token_baseline"])
def test_token_baseline_singletons_and_bad_probabilities(name: str) -> None:
    alone = {**A14, "group": torch.tensor([0, 0, 1])}
    result, returns = advantages.compute(name, **alone)
    assert result[2].tolist() == [0, 0, 0] and returns[2].tolist() == [1, 1, 0]
    original, _ = advantages.compute(name, **alone, compat=True)
    assert original[2].tolist() == [1, 1, 0]
    assert torch.equal(original[:2], result[:2])
    for column in ("old_logprobs", "sum_pi_squared"):
        broken = A14[column].clone()
        broken[1, 1] = NAN
        with pytest.raises(NonFiniteError, match=f"{column} holds 1"):
            advantages.compute(name, **{**A14, column: broken})


def test_sum_pi_squared() -> None:
    logits = torch.tensor([[1.0, 2, 3, 4], [0, 0, 0, -INF]], dtype=torch.float64)
    for temperature in (1.0, 2.0):
        expected = (logits / temperature).softmax(-1).square().sum(-1)
        close(advantages.sum_pi_squared(logits, temperature), expected, 1e-14)
    assert advantages.sum_pi_squared(logits.bfloat16().view(2, 1, 4)).shape == (2, 1)
    assert advantages.sum_pi_squared(logits.bfloat16()).dtype == torch.float32
    with pytest.raises(ValueError, match="temperature"):
        advantages.sum_pi_squared(logits, 0.0)


# --- every estimator that compares sequences

COMPARING = sorted(name for name, spec in ESTIMATORS.items() if spec.least_group_size == 2)


@pytest.mark.parametrize("name", COMPARING)
def test_c02_a_single_sample_gets_zero(name: str) -> None:
    """Bug bank C02: nothing says whether the reward of a single sample is good; with n = 1 nothing is learnt."""
    assert float(outcome(name, [1, 0, 0.7], [1, 1, 2])[2]) == 0
    assert outcome(name, [1, 0, 0.7], [1, 2, 3]).tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", COMPARING)
def test_c03_masked_members_do_not_vote(name: str) -> None:
    """Bug bank C03: a response whose mask is empty stays out of its siblings' statistics."""
    kept = outcome(name, [1, 0, 0], [0, 0, 0])
    for poison in (1.0, 100.0, NAN, INF):
        result = outcome(name, [1, poison, 0, 0], [0] * 4, valid=[1, 0, 1, 1])
        assert float(result[1]) == 0
        close(result[[0, 2, 3]], kept, 1e-12)
    assert outcome(name, [100, 1], [0, 0], valid=[0, 1]).tolist() == [0, 0]
    if name == "rloo":
        close(kept, [1, -0.5, -0.5], 1e-12)


@pytest.mark.parametrize("name", COMPARING)
def test_c05_unscored_members_do_not_vote(name: str) -> None:
    """Bug bank C05: missing is not zero; a group with one score is a single sample."""
    result = outcome(name, [1, NAN, 0, 0], [0] * 4)
    assert float(result[1]) == 0
    close(result[[0, 2, 3]], outcome(name, [1, 0, 0], [0, 0, 0]), 1e-12)
    assert outcome(name, [1, NAN, 2], [0, 0, 1]).tolist() == [0, 0, 0]


def test_c05_unscored_sequences_of_reinforce_plus_plus() -> None:
    result, returns = advantages.compute(
        "reinforce_plus_plus", token_rewards=f64([1, 0], [NAN, 3], [0, 0]), mask=mask([1, 1], [1, 1], [1, 1])
    )
    alone, _ = advantages.compute("reinforce_plus_plus", token_rewards=f64([1, 0], [0, 0]))
    close(result[[0, 2]], alone, 1e-12)
    assert result[1].tolist() == returns[1].tolist() == [0, 0]


@pytest.mark.parametrize("name", COMPARING)
def test_c06_groups_by_id_wherever_they_stand(name: str) -> None:
    """Bug bank C06: rows may be tiled p1, p2, p1, p2."""
    tiled = outcome(name, [1, 0, 0.5, 0.25], [7, 3, 7, 3])
    close(tiled[[0, 2, 1, 3]], outcome(name, [1, 0.5, 0, 0.25], [0, 0, 1, 1]), 1e-12)


@pytest.mark.parametrize("name", COMPARING)
def test_equal_rewards_teach_exactly_nothing(name: str) -> None:
    if name.endswith("token_baseline"):
        close(outcome(name, [0.1] * 3, [0] * 3), [0, 0, 0], 1e-8)  # 1e-8 in the denominator of the baseline
    else:
        assert outcome(name, [0.1] * 3, [0] * 3).tolist() == [0, 0, 0]  # their mean is 0.10000000000000002


@pytest.mark.parametrize("name", ["grpo", "grpo_passk", "gdpo"])
def test_c01_std_of_close_rewards(name: str) -> None:
    """Bug bank C01: epsilon belongs to the std, in every estimator that divides by it."""
    options: dict[str, Any] = {"whiten": False} if name == "gdpo" else {}
    result = outcome(name, [1.0, 1.00001], [0, 0], **options)
    best = 1.2390 if name == "grpo_passk" else 0.6195
    assert float(result[1]) == pytest.approx(best, abs=1e-4)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_no_sequences_and_no_tokens(name: str) -> None:
    for shape in ((0, 3), (2, 0), (2, 3)):
        columns: dict[str, Any] = {
            column: torch.zeros(shape) for column in ("token_rewards", "values", "old_logprobs", "sum_pi_squared")
        }
        result, returns = advantages.compute(
            name,
            **columns,
            mask=torch.zeros(shape, dtype=torch.bool),
            group=torch.zeros(shape[0], dtype=torch.int64),
            baseline=torch.ones(shape[0]),
            reward_components={"a": torch.ones(shape[0])},
        )
        assert result.shape == returns.shape == shape
        assert not result.any() and not returns.any()
