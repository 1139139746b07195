"""What every function of token columns makes of inputs that are unusual or wrong: right numbers, or one paragraph."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from verl_algos import advantages, aggregation, kl, loss_options, policy_losses, rollout_correction, value_losses
from verl_algos.estimators import ESTIMATORS

NEEDED: dict[str, dict[str, Any]] = {
    "dro": {"dro_beta": 0.5},
    "clip_cov": {"seed": 0, "clip_cov_ratio": 0.5, "clip_cov_lb": -9.0, "clip_cov_ub": 9.0},
    "kl_cov": {"kl_cov_ratio": 0.5},
}
COLUMNS = ("token_rewards", "values", "logprobs", "old_logprobs", "sum_pi_squared", "rollout_weights")
Inputs = dict[str, Any]
Function = Callable[[Inputs], tuple[Tensor, ...]]


def draw(dtype: torch.dtype = torch.float64) -> Inputs:
    """Numbers that every type holds exactly: eighths."""
    generator = torch.Generator().manual_seed(3)
    columns: Inputs = {name: torch.randint(1, 9, (4, 6), generator=generator).div(8).to(dtype) for name in COLUMNS}
    columns |= {name: -columns[name] for name in ("logprobs", "old_logprobs")}
    mask = torch.tensor([[1, 1, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1], [0, 1, 1, 0, 0, 0]]).bool()
    return columns | {"mask": mask, "cu_seqlens": None, "group": torch.tensor([7, 7, -3, 7])}


def advantage(name: str) -> Function:
    def call(inputs: Inputs) -> tuple[Tensor, ...]:
        own = {key: value for key, value in inputs.items() if key != "logprobs"}
        n = len(inputs["group"])
        return advantages.compute(
            name, **own, baseline=torch.full((n,), 0.25), reward_components={"a": torch.arange(n)}, gamma=0.5, lam=0.5
        )

    return call


def policy(name: str) -> Function:
    def call(inputs: Inputs) -> tuple[Tensor, ...]:
        current = inputs["logprobs"].detach().requires_grad_() if isinstance(inputs["logprobs"], Tensor) else None
        loss, metrics = policy_losses.compute(
            name,
            logprobs=inputs["logprobs"] if current is None else current,
            old_logprobs=inputs["old_logprobs"],
            advantages=inputs["token_rewards"],
            rollout_weights=inputs["rollout_weights"],
            mask=inputs["mask"],
            cu_seqlens=inputs["cu_seqlens"],
            **NEEDED.get(name, {}),
        )
        assert current is not None
        (gradient,) = torch.autograd.grad(loss.sum(), current)
        assert gradient.dtype == current.dtype
        return (loss.detach(), gradient, *(number for pair in metrics.values() for number in pair))

    return call


def where(inputs: Inputs) -> Inputs:
    return {"mask": inputs["mask"], "cu_seqlens": inputs["cu_seqlens"]}


def value_loss(inputs: Inputs) -> tuple[Tensor, ...]:
    columns = {"values": inputs["values"], "returns": inputs["token_rewards"]}
    loss, _ = value_losses.compute(**columns, old_values=inputs["old_logprobs"], **where(inputs))
    return loss.detach(), value_losses.explained_variance(**columns, **where(inputs)).detach()


def kl_loss(inputs: Inputs) -> tuple[Tensor, ...]:
    both = {"logprobs": inputs["logprobs"], "ref_logprobs": inputs["old_logprobs"]}
    rewards, _ = kl.apply_kl_to_rewards(token_rewards=inputs["token_rewards"], **both, coef=0.5, **where(inputs))
    return kl.loss("k2", **both, **where(inputs))[0].detach(), rewards


def correction(inputs: Inputs) -> tuple[Tensor, ...]:
    result = rollout_correction.correct(
        old_logprobs=inputs["old_logprobs"],
        rollout_logprobs=inputs["logprobs"],
        rollout_is="sequence",
        rollout_rs="token_k1",
        rollout_rs_threshold=1.5,
        **where(inputs),
    )
    assert result.weights is not None
    return result.mask, result.weights


def aggregate(inputs: Inputs) -> tuple[Tensor, ...]:
    counted = aggregation.Denominators(8, 3)
    return (
        aggregation.aggregate(
            inputs["values"], mode="seq-mean-token-mean", denominators=counted, **where(inputs)
        ).detach(),
    )


FUNCTIONS: dict[str, Function] = {
    **{name: advantage(name) for name in ESTIMATORS},
    **{f"{name} loss": policy(name) for name in loss_options.POLICY_LOSS_OPTIONS},
    "value loss": value_loss,
    "kl": kl_loss,
    "correction": correction,
    "aggregate": aggregate,
}
every_function = pytest.mark.parametrize("name", FUNCTIONS)
#: What no function refuses, or makes anything else of than of plain float64 columns.
HARMLESS: dict[str, Callable[[Inputs], Inputs]] = {
    "all of them require gradients": lambda inputs: {
        key: value.clone().requires_grad_() if key in COLUMNS else value for key, value in inputs.items()
    },
    "every other number of a wider column": lambda inputs: {
        key: value.repeat_interleave(2, dim=1)[:, ::2] if key in COLUMNS else value for key, value in inputs.items()
    },
    "rows that are one row of memory": lambda inputs: (
        inputs | {"mask": torch.ones(1, 6, dtype=torch.bool).expand(4, 6) & inputs["mask"]}
    ),
    "mask of 0 and 1 in float": lambda inputs: inputs | {"mask": inputs["mask"].double()},
    "mask of 0 and 1 in int8": lambda inputs: inputs | {"mask": inputs["mask"].to(torch.int8)},
    "NaN and inf where the mask is 0": lambda inputs: (
        inputs | {key: torch.where(inputs["mask"], inputs[key], torch.nan) for key in COLUMNS}
    ),
    "group ids of int8": lambda inputs: inputs | {"group": inputs["group"].to(torch.int8)},
    "group ids of int32, huge": lambda inputs: (
        inputs | {"group": torch.tensor([2**31 - 1] * 2 + [-(2**31), 2**31 - 1])}
    ),
    "group ids as a list of numbers": lambda inputs: inputs | {"group": [10**30, 10**30, -1, 10**30]},
    "group ids as strings": lambda inputs: inputs | {"group": ["a", "a", "b", "a"]},
    "group ids of NumPy": lambda inputs: inputs | {"group": np.array([4, 4, 9, 4])},
    "group ids as NumPy's objects": lambda inputs: inputs | {"group": np.array(["u", "u", "v", "u"], dtype=object)},
}


def same(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...], atol: float = 1e-12) -> None:
    for ours, reference in zip(actual, expected, strict=True):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, reference, rtol=atol, atol=atol, check_dtype=False)


@every_function
@pytest.mark.parametrize("what", HARMLESS)
def test_harmless_inputs(name: str, what: str) -> None:
    results = FUNCTIONS[name](HARMLESS[what](draw()))
    same(results, FUNCTIONS[name](draw()))
    assert not any(result.requires_grad for result in results)


@every_function
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_is_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    results, expected = FUNCTIONS[name](draw(dtype)), FUNCTIONS[name](draw())
    for index, (ours, reference) in enumerate(zip(results, expected, strict=True)):
        gradient = name.endswith(" loss") and index == 1 and name != "value loss"
        if ours.is_floating_point():
            assert ours.dtype == (dtype if gradient else torch.float32)
        precision = max(torch.finfo(dtype).eps if gradient else 0.0, 2e-5)
        torch.testing.assert_close(ours, reference, rtol=precision, atol=precision, check_dtype=False)


@every_function
@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0], [3, 0, 2], [0, 1], [5]])
@pytest.mark.parametrize("valid", [True, False])
def test_empty_batches_sequences_and_rows(name: str, lengths: list[int], valid: bool) -> None:
    """Packed and padded, with and without a valid token: finite numbers, the same ones, and 0 where the mask is."""
    tokens, width, n = sum(lengths), max(lengths, default=0), len(lengths)
    offsets = torch.tensor([0, *torch.tensor(lengths, dtype=torch.int64).cumsum(0).tolist()])
    packed: Inputs = {key: draw()[key].flatten()[:tokens] for key in COLUMNS}
    packed |= {"mask": torch.full((tokens,), valid), "cu_seqlens": offsets, "group": torch.zeros(n, dtype=torch.int64)}
    inside = torch.arange(width) < torch.tensor(lengths, dtype=torch.int64).unsqueeze(1)
    padded: Inputs = {
        key: torch.full(inside.shape, torch.nan, dtype=torch.float64).masked_scatter(inside, packed[key])
        for key in COLUMNS
    }
    padded |= {"mask": inside & valid, "cu_seqlens": None, "group": packed["group"]}
    expected = FUNCTIONS[name](packed)
    same(FUNCTIONS[name](packed | {"cu_seqlens": offsets.int()}), expected)
    same(tuple(one[inside] if one.shape == inside.shape else one for one in FUNCTIONS[name](padded)), expected)
    if not valid:
        assert not any(one.any() for one in expected[:1])


PACKED: Inputs = {key: draw()[key][draw()["mask"]] for key in COLUMNS}
TOKENS = len(PACKED["values"])
PACKED |= {"mask": None, "cu_seqlens": torch.tensor([0, 4, 4, 10, 12]), "group": torch.tensor([0, 0, 1, 0])}
assert TOKENS == 12


def offsets(*numbers: float, dtype: torch.dtype = torch.int64) -> Inputs:
    return PACKED | {"cu_seqlens": torch.tensor(numbers, dtype=dtype)}


def column(change: Callable[[Tensor], Any]) -> Inputs:
    return draw() | {key: change(draw()[key]) for key in COLUMNS}


#: Wrong for whatever function, and the words that say so.
WRONG: dict[str, tuple[Inputs, str]] = {
    "packed without offsets": (PACKED | {"cu_seqlens": None}, "cu_seqlens is missing"),
    "padded with offsets": (draw() | {"cu_seqlens": torch.tensor([0, 4])}, "cu_seqlens was given but"),
    "offsets that start with 1": (offsets(1, 4, 4, 10, 12), "must start with 0"),
    "offsets that fall": (offsets(0, 4, 3, 10, 12), "never fall"),
    "offsets that end early": (offsets(0, 4, 4, 10, 11), "end with 12"),
    "offsets that end late": (offsets(0, 4, 4, 10, 13), "end with 12"),
    "offsets that are none": (PACKED | {"cu_seqlens": torch.zeros(0, dtype=torch.int64)}, "cu_seqlens has shape"),
    "offsets in float": (offsets(0, 4, 4, 10, 12, dtype=torch.float64), "is an integer vector"),
    "offsets that are flags": (PACKED | {"cu_seqlens": torch.tensor([False, True])}, "is an integer vector"),
    "offsets in two dimensions": (PACKED | {"cu_seqlens": torch.tensor([[0, 4, 4, 10, 12]])}, "is an integer vector"),
    "offsets in a list": (PACKED | {"cu_seqlens": [0, 4, 4, 10, 12]}, "cu_seqlens is a list, not a torch.Tensor"),
    "columns in three dimensions": (draw() | {k: draw()[k].unsqueeze(2) for k in (*COLUMNS, "mask")}, "padded"),
    "columns without a dimension": (draw() | {k: draw()[k][0, 0] for k in (*COLUMNS, "mask")}, "padded"),
    "columns of complex numbers": (column(lambda one: one.to(torch.complex64)), "hold real numbers"),
    "columns of NumPy": (column(lambda one: one.numpy()), "not a torch.Tensor"),
    "columns in lists": (column(lambda one: one.tolist()), "not a torch.Tensor"),
    "a mask of one row": (draw() | {"mask": torch.ones(1, 6, dtype=torch.bool)}, "nothing is broadcast"),
    "a mask of rows": (draw() | {"mask": torch.ones(4, 1)}, "nothing is broadcast"),
    "a mask of another dimension": (draw() | {"mask": torch.ones(6)}, "nothing is broadcast"),
    "a mask of halves": (draw() | {"mask": draw()["mask"] * 0.5}, "mask holds 0.5"),
    "a mask of NaN": (draw() | {"mask": draw()["mask"] * torch.nan}, "mask holds nan"),
    "a mask of -100": (draw() | {"mask": torch.where(draw()["mask"], 1, -100)}, "mask holds -100"),
    "a mask in a list": (draw() | {"mask": draw()["mask"].tolist()}, "mask is a list, not a torch.Tensor"),
    "a mask elsewhere": (draw() | {"mask": draw()["mask"].to("meta")}, "mask is on meta but"),
}


@every_function
@pytest.mark.parametrize("what", WRONG)
def test_wrong_inputs_are_refused_in_a_paragraph(name: str, what: str) -> None:
    inputs, message = WRONG[what]
    with pytest.raises(ValueError, match=message) as error:
        FUNCTIONS[name](inputs)
    assert "\n" not in str(error.value)


READS: dict[str, tuple[str, ...]] = {
    **{
        name: tuple(key for key in (*spec.required, *spec.optional) if key in COLUMNS)
        for name, spec in ESTIMATORS.items()
    },
    **{
        f"{name} loss": ("logprobs", "old_logprobs", "token_rewards", "rollout_weights")
        for name in loss_options.POLICY_LOSS_OPTIONS
    },
    "value loss": ("values", "token_rewards", "old_logprobs"),
    "kl": ("logprobs", "old_logprobs", "token_rewards"),
    "correction": ("logprobs", "old_logprobs"),
}


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name, keys in READS.items() if len(keys) > 1 for key in keys]
)
def test_no_column_is_broadcast_or_elsewhere(name: str, key: str) -> None:
    for other in (draw()[key][:1], draw()[key][:, :1], draw()[key][0], torch.tensor(1.0), draw()[key].T):
        with pytest.raises(ValueError, match=r"must have the same shape|has shape"):
            FUNCTIONS[name](draw() | {key: other})
    with pytest.raises(ValueError, match=r"is on meta but|on cpu"):
        FUNCTIONS[name](draw() | {key: draw()[key].to("meta")})


GROUPED = [name for name, spec in ESTIMATORS.items() if "group" in spec.required]
WRONG_IDS: dict[str, tuple[Any, str]] = {
    "float32": (torch.tensor([0.0, 0.0, 1.0, 0.0]), "group has dtype torch.float32"),
    "float64 with NaN": (torch.full((4,), torch.nan, dtype=torch.float64), "group has dtype torch.float64"),
    "complex": (torch.zeros(4, dtype=torch.complex64), "group has dtype torch.complex64"),
    "flags": (torch.zeros(4, dtype=torch.bool), "group has dtype torch.bool"),
    "too few": (torch.tensor([0, 0, 1]), r"group has shape \(3,\) but there are 4 sequences"),
    "one per token": (torch.zeros(4, 6, dtype=torch.int64), r"group has shape \(4, 6\) but"),
    "a number": (torch.tensor(0), r"group has shape \(\) but"),
    "a list too short": (["a", "a"], "group is a list of 2 entries but there are 4 sequences"),
    "a list of floats": ([0.0, 0.0, 1.0, 0.0], "group holds 0.0, a float"),
    "a list of flags": ([True, True, False, True], "group holds True, a bool"),
    "a list with None": (["a", "a", None, "b"], "group holds None, a NoneType"),
    "a list of lists": ([[0], [0], [1], [0]], r"group holds \[0\], a list"),
    "NumPy's floats": (np.zeros(4), "group holds .*float64"),
    "one string": ("aaba", "group is a str but"),
    "a mapping": ({0: 0, 1: 0, 2: 0, 3: 0}, "group is a dict but"),
    "elsewhere": (torch.zeros(4, dtype=torch.int64, device="meta"), "group is on meta but"),
}


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("what", WRONG_IDS)
def test_wrong_ids_of_groups_are_refused(name: str, what: str) -> None:
    ids, message = WRONG_IDS[what]
    columns = {key: draw()[key] for key in ("token_rewards", "old_logprobs", "sum_pi_squared", "mask")}
    with pytest.raises(ValueError, match=message):
        advantages.compute(name, **columns, group=ids, reward_components={"a": torch.arange(4)})


def test_ids_reach_a_function_of_your_own_as_numbers() -> None:
    seen = []

    def mine(*, token_rewards: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(group)
        return token_rewards, token_rewards

    advantages.compute(mine, token_rewards=torch.ones(3, 1), group=["b", "a", "b"])
    assert torch.equal(seen[0], torch.tensor([0, 1, 0]))
    assert advantages.singleton_groups(["b", "a", "b"]) == 1
    with pytest.raises(ValueError, match="group has dtype"):
        advantages.singleton_groups(torch.zeros(3))


def test_a_choice_by_covariance_takes_whole_keys_and_seeds() -> None:
    columns = {"logprobs": draw()["logprobs"], "advantages": draw()["values"]}
    for wrong in (torch.arange(4.0), torch.tensor([True] * 4), torch.arange(3)):
        with pytest.raises(ValueError, match="sequence_keys"):
            policy_losses.select_by_covariance("kl_cov", **columns, sequence_keys=wrong)
    for seed in (True, 1.5, "1", 1 << 63):
        with pytest.raises(ValueError, match="is not an int64"):
            policy_losses.select_by_covariance("kl_cov", **columns, seed=seed)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"exclude holds 0\.5"):
        policy_losses.select_by_covariance("clip_cov", **columns, exclude=torch.full((4, 6), 0.5))
