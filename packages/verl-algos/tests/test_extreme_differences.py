"""Log-probs that are apart by as much as their type holds: sums over sequences do not depend on the layout."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from verl_algos import aggregation, kl, policy_losses, preference_losses, rollout_correction, value_losses

POOL = [3.4e38, -3.4e38, 3e38, -3e38, 1e30, -1e30, 2e6, -2e6, 1.0, -1.0, 0.1, -7.0, 0.0]
REJECTIONS = "seq_sum_k1,seq_mean_k1,seq_sum_k2,seq_mean_k2,seq_sum_k3,seq_mean_k3,seq_max_k2,seq_max_k3,token_k1"
Columns = dict[str, Tensor]


def policy_loss(name: str, columns: Columns, where: dict[str, Any]) -> list[Tensor]:
    current = columns["new"].clone().requires_grad_()
    options: dict[str, Any] = {"dro_beta": 0.5} if name == "dro" else {}
    loss, metrics = policy_losses.compute(
        name,
        logprobs=current,
        old_logprobs=columns["old"],
        advantages=columns["advantages"],
        rollout_weights=columns["weights"],
        **options,
        **where,
    )
    total = aggregation.aggregate(
        loss, mode="seq-mean-token-mean", denominators=aggregation.count(where["mask"], where["cu_seqlens"]), **where
    )
    gradient = torch.autograd.grad(loss.sum(), current, retain_graph=True)[0]
    numbers = [number for pair in metrics.values() for number in pair]
    return [loss.detach(), gradient, torch.autograd.grad(total, current)[0], total.detach(), *numbers]


def correction(level: Any, columns: Columns, where: dict[str, Any]) -> list[Tensor]:
    result = rollout_correction.correct(
        old_logprobs=columns["new"],
        rollout_logprobs=columns["old"],
        rollout_is=level,
        rollout_is_batch_normalize=True,
        rollout_rs=REJECTIONS,
        rollout_rs_threshold=2.0,
        **where,
    )
    assert result.weights is not None
    numbers = [torch.tensor(value, dtype=torch.float64) for value in result.metrics.values()]
    return [result.mask, result.weights, *numbers]


def kls(name: str, columns: Columns, where: dict[str, Any]) -> list[Tensor]:
    both = {"logprobs": columns["new"], "ref_logprobs": columns["old"]}
    loss, metrics = kl.loss(name, **both, **where)
    rewards, reward_metrics = kl.apply_kl_to_rewards(
        token_rewards=columns["advantages"], coef=0.1, penalty=name, **both, **where
    )
    return [loss, rewards, *metrics["kl"], *reward_metrics["reward_kl_penalty"]]


def sums(name: str, columns: Columns, where: dict[str, Any]) -> list[Tensor]:
    _, metrics = value_losses.compute(values=columns["new"], returns=columns["old"], cliprange_value=None, **where)
    return [*preference_losses.sequence_logprobs(columns["new"], **where), *metrics["vpred_mean"]]


CASES = [
    *((policy_loss, name) for name in ("gspo", "geo_mean", "vanilla", "sapo", "dro")),
    *((correction, level) for level in ("token", "sequence", "geometric")),
    *((kls, name) for name in ("k1", "k2", "k3", "abs", "k3+")),
    (sums, "sums"),
]


@pytest.mark.parametrize(("function", "name"), CASES)
@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**31), lengths=st.lists(st.integers(0, 40), min_size=1, max_size=4))
def test_packed_is_padded_where_numbers_of_1e38_cancel(function: Any, name: str, seed: int, lengths: list[int]) -> None:
    generator = torch.Generator().manual_seed(seed)
    pool, tokens = torch.tensor(POOL), sum(lengths)
    packed = {
        column: pool[torch.randint(len(pool), (tokens,), generator=generator)]
        for column in ("new", "old", "advantages", "weights")
    }
    packed["weights"] = packed["weights"].abs()
    mask = torch.rand(tokens, generator=generator) < 0.8
    inside = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    padded = {key: torch.full(inside.shape, torch.nan).masked_scatter(inside, column) for key, column in packed.items()}
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    expected = function(name, packed, {"mask": mask, "cu_seqlens": offsets})
    padded_mask = torch.zeros_like(inside).masked_scatter(inside, mask)
    actual = function(name, padded, {"mask": padded_mask, "cu_seqlens": None})
    for ours, reference in zip(actual, expected, strict=True):
        assert ours.isfinite().all()
        ours = ours[inside] if ours.shape == inside.shape else ours
        # exp of the last tokens of a vector may differ in its last bit; a sum over sequences cancels down to that
        scale = float(expected[0].float().abs().max()) * tokens if tokens else 0.0
        torch.testing.assert_close(ours, reference, rtol=1e-5, atol=0.0 if ours.dim() else 1e-6 * scale)


def test_one_impossible_token_leaves_the_others_their_say() -> None:
    """Two differences of 3e38 cancel: what is left is the mean of the others, as it is without the two."""
    new = torch.tensor([[3e38, -0.5, -3e38, -1.0]], requires_grad=True)
    loss, _ = policy_losses.compute(
        "gspo", logprobs=new, old_logprobs=torch.tensor([[0.0, -1.0, 0.0, -1.0]]), advantages=torch.ones(1, 4)
    )
    torch.testing.assert_close(loss.detach(), -torch.full((1, 4), 0.125).exp(), rtol=1e-6, atol=0)


def test_differences_of_any_model_are_exact() -> None:
    """The bound of 1e6 per token changes nothing below it."""
    old = torch.tensor([[-2e5, -3e5, -0.25]], dtype=torch.float64)
    new = torch.tensor([[-3e5, -2e5, -0.5]], dtype=torch.float64)
    loss, _ = policy_losses.compute("gspo", logprobs=new, old_logprobs=old, advantages=-torch.ones(1, 3))
    torch.testing.assert_close(loss, torch.full((1, 3), -0.25 / 3, dtype=torch.float64).exp(), rtol=1e-12, atol=0)


def test_equal_advantages_are_chosen_by_hash_not_by_rounding() -> None:
    """Tokens of one advantage have covariance 0, whatever its mean rounds to; so no order of sequences matters."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        logprobs = -torch.rand(5, 7, generator=generator, dtype=torch.float64)
        advantages, keys = torch.full((5, 7), 0.1, dtype=torch.float64), torch.arange(5)
        order = torch.randperm(5, generator=generator)

        def choose(rows: Tensor, logprobs: Tensor = logprobs, advantages: Tensor = advantages) -> Tensor:
            return policy_losses.select_by_covariance(
                "kl_cov",
                logprobs=logprobs[rows],
                advantages=advantages[rows],
                sequence_keys=rows,
                kl_cov_ratio=0.3,
            )

        assert torch.equal(choose(keys)[order], choose(order))
