"""Numbers that are none, or that nothing can be computed with, are refused where they are set, in one paragraph."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from verl_algos import (
    advantages,
    aggregation,
    kl,
    logprobs,
    loss_options,
    policy_losses,
    preference_losses,
    rollout_correction,
    value_losses,
)

ONE = torch.tensor([[-0.5, -1.0], [-0.2, -0.3]])
GROUP = torch.tensor([0, 0])
NEVER: list[Any] = [
    math.nan,
    math.inf,
    -math.inf,
    1e-320,
    5e-324,
    1e-31,
    1e31,
    1e308,
    True,
    False,
    "0.5",
    b"1",
    [0.5],
    None,
]
NEGATIVE, ZERO = [-1e-3, -0.5, -1e9], [0, 0.0, -0.0]


def policy(name: str, option: str) -> Callable[[Any], Any]:
    base: dict[str, Any] = {"seed": 0} if name == "clip_cov" else {}
    return lambda value: policy_losses.compute(
        name, logprobs=ONE, old_logprobs=ONE, advantages=ONE, **{**base, option: value}
    )


def preference(name: str, option: str) -> Callable[[Any], Any]:
    inputs = loss_options.PREFERENCE_LOSS_INPUTS[name]
    columns: dict[str, Any] = {key: torch.ones(2) if "lengths" in key else ONE[0] for key in inputs}
    return lambda value: preference_losses.compute(
        name, chosen_logprobs=ONE[0], rejected_logprobs=ONE[1], **columns, **{option: value}
    )


def advantage(name: str, option: str) -> Callable[[Any], Any]:
    return lambda value: advantages.compute(name, token_rewards=ONE, values=ONE, group=GROUP, **{option: value})


def correct(**options: Any) -> Any:
    return rollout_correction.correct(old_logprobs=ONE, rollout_logprobs=ONE, **options)


def reward_weight(value: Any) -> Any:
    components = {"a": torch.tensor([0.0, 1.0])}
    return advantages.compute(
        "gdpo", token_rewards=ONE, group=GROUP, reward_components=components, reward_weights={"a": value}
    )


def aggregate(value: Any) -> Any:
    one = aggregation.Denominators(4, 2)
    return aggregation.aggregate(ONE, mode="seq-mean-token-sum-norm", denominators=one, scale=value)


def adaptive(**changes: Any) -> Any:
    return kl.AdaptiveController(**{"coef": 0.1, "target": 0.1, "horizon": 100, **changes})


ids = torch.tensor([0, 1])
#: What takes a number, and further ones that it refuses.
CALLS: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
    "gamma": (advantage("gae", "gamma"), [*NEGATIVE, 1.1]),
    "gamma of reinforce_plus_plus": (advantage("reinforce_plus_plus", "gamma"), [*NEGATIVE, 1.1]),
    "lam": (advantage("gae", "lam"), [*NEGATIVE, 1.1]),
    "reward_weights": (reward_weight, []),
    "scale": (aggregate, [*NEGATIVE, *ZERO]),
    "cliprange_value": (
        lambda value: value_losses.compute(values=ONE, returns=ONE, old_values=ONE, cliprange_value=value),
        NEGATIVE,
    ),
    "center_coef": (
        lambda value: preference_losses.bradley_terry(
            chosen_rewards=ONE[0], rejected_rewards=ONE[1], center_coef=value
        ),
        NEGATIVE,
    ),
    "temperature of log-probs": (lambda value: logprobs.logprobs_from_logits(ONE, ids, value), [*NEGATIVE, *ZERO]),
    "temperature of the entropy": (lambda value: logprobs.entropy_from_logits(ONE, value), [*NEGATIVE, *ZERO]),
    "temperature of sum_pi_squared": (lambda value: advantages.sum_pi_squared(ONE, value), [*NEGATIVE, *ZERO]),
    "temperature of kl.full": (lambda value: kl.full(ONE, ONE, value), [*NEGATIVE, *ZERO]),
    "coef": (
        lambda value: kl.apply_kl_to_rewards(token_rewards=ONE, logprobs=ONE, ref_logprobs=ONE, coef=value),
        NEGATIVE,
    ),
    "coef of the fixed controller": (kl.FixedController, NEGATIVE),
    "coef of the adaptive controller": (lambda value: adaptive(coef=value), NEGATIVE),
    "target": (lambda value: adaptive(target=value), [*NEGATIVE, *ZERO]),
    "horizon": (lambda value: adaptive(horizon=value), [*NEGATIVE, *ZERO]),
    "num_sequences": (lambda value: adaptive().update(0.1, value), NEGATIVE),
    "state of the adaptive controller": (lambda value: adaptive().load_state_dict({"coef": value}), NEGATIVE),
    "high of the monitor": (lambda value: kl.Monitor(high=value), [*NEGATIVE, *ZERO]),
    "low of the monitor": (lambda value: kl.Monitor(low=value), NEGATIVE),
    "patience": (lambda value: kl.Monitor(patience=value), [*NEGATIVE, *ZERO]),
    "rollout_is_threshold": (lambda value: correct(rollout_is="token", rollout_is_threshold=value), [*NEGATIVE, *ZERO]),
    "rollout_rs_threshold": (
        lambda value: correct(rollout_rs="token_k2", rollout_rs_threshold=value),
        [*NEGATIVE, *ZERO],
    ),
    "weight_mean": (
        lambda value: correct(rollout_is="token", rollout_is_batch_normalize=True, weight_mean=value),
        NEGATIVE,
    ),
    **{
        f"{option} of {name}": (policy(name, option), NEGATIVE if declared.minimum >= 0 else [])
        for name, options in loss_options.POLICY_LOSS_OPTIONS.items()
        for option, declared in options.items()
    },
    **{
        f"{option} of {name}": (preference(name, option), NEGATIVE)
        for name, options in loss_options.PREFERENCE_LOSS_OPTIONS.items()
        for option in options
    },
}
#: Where a text is a way to write the number, or the number is another way to say "none".
TAKEN: dict[str, list[Any]] = {
    "rollout_is_threshold": ["0.5"],
    "rollout_rs_threshold": ["0.5"],
    "cliprange_value": [None, math.inf],
    "weight_mean": [None],
}


@pytest.mark.parametrize("what", CALLS)
def test_numbers_without_a_meaning_are_refused(what: str) -> None:
    call, more = CALLS[what]
    for value in [*NEVER, *more]:
        if any(value is taken or (type(value) is type(taken) and value == taken) for taken in TAKEN.get(what, [])):
            call(value)
            continue
        with pytest.raises(ValueError, match=r"\w.{20,}") as error:
            call(value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text", ["1e-320", "nan", "inf", "0", "-1", "0.5_nan", "0_2", "1e-320_2", "2_0.5", "", "1_2_3", "True"]
)
def test_thresholds_as_text(text: str) -> None:
    with pytest.raises(ValueError, match="rollout_is_threshold="):
        correct(rollout_is="token", rollout_is_threshold=text)
    with pytest.raises(ValueError, match="rollout_rs_threshold"):
        correct(rollout_rs="token_k1", rollout_rs_threshold=text)


def test_numbers_of_numpy_are_numbers() -> None:
    for half in (np.float64(0.5), np.float32(0.5), np.float16(0.5)):
        policy("vanilla", "clip_ratio_high")(half)
        advantage("gae", "gamma")(half)
        reward_weight(half)
    aggregate(np.int64(3))


@pytest.mark.parametrize("given", [math.nan, math.inf, True, "1", torch.ones(2), torch.tensor(math.nan)])
def test_kl_points_are_one_finite_number(given: Any) -> None:
    """A column would be broadcast, one number for each pair."""
    with pytest.raises(ValueError, match=r"chosen_kl=.* is not one finite number"):
        preference("kto", "chosen_kl")(given)
    small: Any = 1e-40
    assert torch.equal(preference("kto", "chosen_kl")(small)[0], preference("kto", "chosen_kl")(torch.tensor(0.0))[0])


def test_a_long_run_of_an_adaptive_controller_stays_a_number() -> None:
    down, up = adaptive(), adaptive()
    for _ in range(2000):
        down.update(0.0, 100)
        up.update(9.0, 100)
    assert down.coef == 1e-30 and up.coef == 1e30
    for controller in (down, up):
        adaptive().load_state_dict(controller.state_dict())
        kl.apply_kl_to_rewards(token_rewards=ONE, logprobs=ONE, ref_logprobs=ONE, coef=controller.coef)
    off = adaptive(coef=0)
    off.update(9.0, 100)
    assert off.coef == 0.0


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("Vanilla", "vanilla"),
        ("GSPO", "gspo"),
        ("GMPO", "geo_mean"),
        ("Clip-Cov", "clip_cov"),
        ("KL-Cov", "kl_cov"),
        ("CISPO", "cispo"),
        ("SAPO", "sapo"),
        ("DPPO-TV", "dppo_tv"),
        ("DPPO-Binary-KL", "dppo_kl"),
        ("DPO", "dpo"),
        ("kto_pair", "kto"),
    ],
)
def test_papers_spellings_of_losses(spelling: str, name: str) -> None:
    assert loss_options.canonical_loss(spelling) == loss_options.canonical_loss(name) == name
    if name in loss_options.POLICY_LOSS_OPTIONS:
        base: dict[str, Any] = {"seed": 0} if name == "clip_cov" else {}
        columns: dict[str, Any] = {"logprobs": ONE, "old_logprobs": ONE.flip(0), "advantages": ONE.flip(1), **base}
        assert torch.equal(
            policy_losses.compute(spelling, **columns)[0],
            policy_losses.compute(name, **columns)[0],
        )


@pytest.mark.parametrize("flag", ["norm_by_std", "whiten", "compat"])
@pytest.mark.parametrize("value", ["false", 0, 1.0])
def test_flags_of_estimators_are_flags(flag: str, value: Any) -> None:
    with pytest.raises(
        ValueError, match=rf"{flag}={value!r} of the advantage estimator .*gdpo.* is a {type(value).__name__}"
    ):
        advantages.compute(
            "gdpo",
            token_rewards=torch.zeros(2, 3),
            group=torch.zeros(2, dtype=torch.long),
            reward_components={"one": torch.zeros(2)},
            **{flag: value},
        )


def test_fractions_and_whole_log_probs_are_refused() -> None:
    with pytest.raises(ValueError, match=r"gamma=1/2 must be .* It is a Fraction, not a number"):
        advantages.compute("gae", token_rewards=torch.zeros(1, 2), values=torch.zeros(1, 2), gamma=Fraction(1, 2))  # type: ignore[arg-type]
    whole, real = torch.zeros(1, 2, dtype=torch.long), torch.zeros(1, 2)
    with pytest.raises(ValueError, match=r"logprobs has dtype torch\.int64: log-probs are floating-point numbers"):
        policy_losses.compute("vanilla", logprobs=whole, old_logprobs=real, advantages=real)
