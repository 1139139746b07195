"""Every public function of token columns takes any strides and masks, whole numbers, and batches without tokens."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from verl_algos import (
    advantages,
    aggregation,
    kl,
    loss_options,
    masked,
    policy_losses,
    preference_losses,
    rollout_correction,
    value_losses,
)
from verl_algos.estimators import ESTIMATORS
from verl_algos.rewards import place_rewards

ROWS, WIDTH = 4, 6
COLUMNS = ("token_rewards", "values", "old_logprobs", "logprobs", "sum_pi_squared", "rollout_weights", "returns")
NEEDED: dict[str, dict[str, Any]] = {
    "dro": {"dro_beta": 0.5},
    "clip_cov": {"seed": 0, "clip_cov_ratio": 0.5, "clip_cov_lb": -9.0, "clip_cov_ub": 9.0},
    "kl_cov": {"kl_cov_ratio": 0.5},
}
Columns = dict[str, Tensor]
Function = Callable[[Columns, Tensor | None], list[Tensor]]


def policy_loss(name: str) -> Function:
    def call(columns: Columns, offsets: Tensor | None) -> list[Tensor]:
        current = columns["logprobs"].detach().requires_grad_()
        loss, metrics = policy_losses.compute(
            name,
            logprobs=current,
            old_logprobs=columns["old_logprobs"],
            advantages=columns["token_rewards"],
            rollout_weights=columns["rollout_weights"],
            mask=columns["mask"],
            cu_seqlens=offsets,
            **NEEDED.get(name, {}),
        )
        return [
            loss,
            torch.autograd.grad(loss.sum(), current)[0],
            *(part for pair in metrics.values() for part in pair),
        ]

    return call


def advantage(name: str) -> Function:
    def call(columns: Columns, offsets: Tensor | None) -> list[Tensor]:
        n = len(columns["mask"]) if offsets is None else len(offsets) - 1
        own: dict[str, Any] = {column: columns[column] for column in COLUMNS[:3]} | {
            column: columns[column] for column in ("sum_pi_squared", "rollout_weights")
        }
        return list(
            advantages.compute(
                name,
                **own,
                mask=columns["mask"],
                cu_seqlens=offsets,
                group=torch.arange(n) // 2,
                baseline=torch.full((2 * n,), 0.3)[::2],
                reward_components={"a": torch.arange(2.0 * n)[::2]},
                gamma=0.9,
                lam=0.8,
            )
        )

    return call


def aggregate(mode: aggregation.Mode) -> Function:
    def call(columns: Columns, offsets: Tensor | None) -> list[Tensor]:
        where: dict[str, Any] = {"mask": columns["mask"], "cu_seqlens": offsets}
        scale = 3.0 if mode == "seq-mean-token-sum-norm" else None
        return [
            aggregation.aggregate(
                columns["values"], mode=mode, denominators=aggregation.count(**where), scale=scale, **where
            )
        ]

    return call


def kl_losses(columns: Columns, offsets: Tensor | None) -> list[Tensor]:
    where: dict[str, Any] = {"mask": columns["mask"], "cu_seqlens": offsets}
    logprobs: dict[str, Any] = {"logprobs": columns["logprobs"], "ref_logprobs": columns["old_logprobs"]}
    loss, _ = kl.loss("k3+", **logprobs, **where)
    rewards, metrics = kl.apply_kl_to_rewards(token_rewards=columns["token_rewards"], **logprobs, coef=0.1, **where)
    return [loss, rewards, *metrics["reward_kl_penalty"]]


def value_loss(columns: Columns, offsets: Tensor | None) -> list[Tensor]:
    where: dict[str, Any] = {"mask": columns["mask"], "cu_seqlens": offsets}
    values, returns = columns["values"], columns["returns"]
    loss, _ = value_losses.compute(values=values, returns=returns, old_values=columns["old_logprobs"], **where)
    return [loss, value_losses.explained_variance(values, returns, **where)]


def statistics(columns: Columns, offsets: Tensor | None) -> list[Tensor]:
    x, mask = columns["values"], columns["mask"]
    whitened = masked.masked_whiten(x, mask)
    return [whitened, masked.masked_mean(x, mask), masked.masked_sum(x, mask), masked.masked_var(x, mask)]


def correction(columns: Columns, offsets: Tensor | None) -> list[Tensor]:
    where: dict[str, Any] = {"mask": columns["mask"], "cu_seqlens": offsets}
    result = rollout_correction.correct(
        old_logprobs=columns["logprobs"],
        rollout_logprobs=columns["old_logprobs"],
        rollout_is="sequence",
        rollout_rs="token_k1,seq_max_k2",
        rollout_rs_threshold=1.5,
        **where,
    )
    assert result.weights is not None
    return [result.mask, result.weights, *map(torch.tensor, result.metrics.values())]


def sums(columns: Columns, offsets: Tensor | None) -> list[Tensor]:
    n = len(columns["mask"]) if offsets is None else len(offsets) - 1
    placed, _ = place_rewards(torch.arange(1.0, n + 1), columns["mask"].bool(), offsets)
    scored = advantages.scored_sequences(columns["token_rewards"], columns["mask"], offsets)
    return [*preference_losses.sequence_logprobs(columns["logprobs"], columns["mask"], offsets), placed, scored]


FUNCTIONS: dict[str, Function] = {
    **{f"advantages {name}": advantage(name) for name in ESTIMATORS},
    **{f"policy loss {name}": policy_loss(name) for name in loss_options.POLICY_LOSS_OPTIONS},
    **{f"aggregate {mode}": aggregate(mode) for mode in aggregation.MODES},
    "kl": kl_losses,
    "value loss": value_loss,
    "masked": statistics,
    "rollout correction": correction,
    "sums": sums,
}
every_function = pytest.mark.parametrize("name", FUNCTIONS)


def draw(shape: tuple[int, ...] = (ROWS, WIDTH)) -> Columns:
    generator = torch.Generator().manual_seed(1)
    columns = {name: torch.rand(shape, generator=generator, dtype=torch.float64) for name in COLUMNS}
    columns |= {name: -columns[name] for name in ("old_logprobs", "logprobs")}
    return columns | {"mask": torch.rand(shape, generator=generator) < 0.7}


def close(actual: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def transposed(x: Tensor) -> Tensor:
    return x.T.contiguous().T


def every_second(x: Tensor) -> Tensor:
    wide = torch.zeros(x.shape[0], 2 * x.shape[1], dtype=x.dtype)
    wide[:, ::2] = x
    return wide[:, ::2]


def inner(x: Tensor) -> Tensor:
    return torch.nn.functional.pad(x, (1, 2, 3, 1))[3:-1, 1:-2]


@every_function
@pytest.mark.parametrize("way", [transposed, every_second, inner])
def test_strides(name: str, way: Callable[[Tensor], Tensor]) -> None:
    columns = draw()
    strided = {key: way(column) for key, column in columns.items()}
    assert not strided["mask"].is_contiguous()
    expected = FUNCTIONS[name](columns, None)
    close(FUNCTIONS[name](strided, None), expected)
    close(FUNCTIONS[name]({**columns, "mask": strided["mask"]}, None), expected)
    close(FUNCTIONS[name]({**strided, "mask": columns["mask"]}, None), expected)


@every_function
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.float32, torch.float16])
def test_types_of_masks(name: str, dtype: torch.dtype) -> None:
    columns = draw()
    close(FUNCTIONS[name]({**columns, "mask": columns["mask"].to(dtype)}, None), FUNCTIONS[name](columns, None))


@every_function
@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (2, 3), (1, 1), (0,), (3,)])
@pytest.mark.parametrize("valid", [False, True])
def test_batches_of_no_or_one_token(name: str, shape: tuple[int, ...], valid: bool) -> None:
    """Padded and packed; without a valid token everything is 0, with one of several nothing is divided by zero."""
    columns = draw(shape)
    columns["mask"] = torch.zeros(shape, dtype=torch.bool)
    columns["mask"].view(-1)[-1:] = valid
    offsets = torch.tensor([0, shape[0]]) if len(shape) == 1 else None
    results = FUNCTIONS[name](columns, offsets)
    assert all(bool(result.isfinite().all()) for result in results)
    for result in results:
        if result.shape == shape:
            assert not result[~columns["mask"]].any()


@every_function
def test_packed_is_padded(name: str) -> None:
    columns = draw()
    inside = torch.arange(WIDTH) < torch.tensor([6, 0, 3, 1]).unsqueeze(1)
    columns["mask"] &= inside
    packed = {key: column[inside] for key, column in columns.items()}
    offsets = torch.tensor([0, 6, 6, 9, 10])
    padded_results = FUNCTIONS[name](columns, None)
    packed_results = FUNCTIONS[name](packed, offsets)
    close(packed_results, [r[inside] if r.shape == inside.shape else r for r in padded_results])
    close(FUNCTIONS[name](packed, offsets.int()), packed_results)


WHOLE = torch.tensor([[1, 0, 2], [0, 0, 1]])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_whole_rewards(name: str) -> None:
    """Rewards of 0 and 1 in int64 give what they give in float32, as float32."""

    def run(numbers: Tensor) -> tuple[Tensor, Tensor]:
        fixed = torch.full((2, 3), 0.5)
        return advantages.compute(
            name,
            token_rewards=numbers,
            values=numbers,
            group=torch.tensor([5, 5], dtype=torch.int32),
            baseline=numbers[:, 2],
            reward_components={"a": numbers[:, 0]},
            old_logprobs=fixed.log(),
            sum_pi_squared=fixed,
        )

    for ours, expected in zip(run(WHOLE), run(WHOLE.float()), strict=True):
        assert ours.dtype == torch.float32
        assert torch.equal(ours, expected)


def test_whole_numbers_elsewhere() -> None:
    real, mask = WHOLE.float(), WHOLE.clamp(max=1)
    assert masked.masked_sum(WHOLE, mask).dtype == torch.int64
    for f in (masked.masked_mean, masked.masked_var, masked.masked_whiten):
        assert torch.equal(f(WHOLE, mask), f(real, mask))
    one = aggregation.Denominators(4, 2)
    assert float(aggregation.aggregate(WHOLE, mode="token-mean", denominators=one)) == 1.0
    assert torch.equal(kl.penalty("k3", -WHOLE, -WHOLE.flip(1)), kl.penalty("k3", -real, -real.flip(1)))
    loss, _ = preference_losses.bradley_terry(chosen_rewards=WHOLE[0], rejected_rewards=WHOLE[1], margin=WHOLE[0])
    expected, _ = preference_losses.bradley_terry(chosen_rewards=real[0], rejected_rewards=real[1], margin=real[0])
    assert torch.equal(loss, expected)
