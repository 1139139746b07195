"""The health monitors on simulated runs: each failure is told once, with numbers and a key, and health is not."""

import inspect
import json
import math
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_algos.health import HealthMonitor, HealthWarning, Thresholds

Inputs = dict[str, Any]
PROMPTS, N = 16, 4
GROUP = np.repeat(np.arange(PROMPTS), N)


@cache
def healthy(seed: int, steps: int) -> tuple[Inputs, ...]:
    """A run in which nothing happens: every number is noise around where it began."""
    draw, rows = np.random.default_rng(seed), len(GROUP)
    return tuple(
        {
            "rewards": draw.choice([0.0, 1.0, math.nan], size=rows, p=[0.5, 0.48, 0.02]),
            "group": GROUP,
            "responses": [draw.integers(0, 1000, size=draw.integers(20, 60)) for _ in range(rows)],
            "truncated": draw.random(rows) < 0.05,
            "entropy": 0.5 * draw.lognormal(0.0, 0.2),
            "kl": 0.03 * draw.lognormal(0.0, 0.5),
            "loss": 0.02 * draw.standard_t(3),
            "empty_loss": False,
            "grad_norm": draw.lognormal(0.0, 0.4),
        }
        for _ in range(steps)
    )


def spoken(steps: Iterable[Inputs], monitor: HealthMonitor | None = None) -> list[tuple[int, HealthWarning]]:
    """The warnings of a run, with the step of each."""
    monitor = monitor or HealthMonitor()
    return [(step, one) for step, inputs in enumerate(steps, 1) for one in monitor.update(step, **inputs)[1]]


def names(found: list[tuple[int, HealthWarning]]) -> list[tuple[int, str]]:
    return [(step, one.name) for step, one in found]


def change(name: str, value: Callable[[int, Any], Any], steps: int = 100, start: int = 30) -> Iterator[Inputs]:
    """A healthy run of which one number changes from step `start` on."""
    for step, usual in enumerate(healthy(0, steps), 1):
        yield {**usual, name: value(step, usual[name])} if step >= start else usual


def by_length(step: int) -> Inputs:
    """A reward for length alone, and a policy that has found it: responses grow by one part in a hundred a step."""
    draw = np.random.default_rng(step)
    lengths = (40 * 1.01**step * draw.lognormal(0.0, 0.2, size=len(GROUP))).astype(int)
    responses = [draw.integers(0, 1000, size=length) for length in lengths]
    return {"rewards": lengths / 100, "group": GROUP, "responses": responses}


def test_each_failure_is_told_once_with_numbers_and_a_key() -> None:
    cases: dict[str, tuple[Iterable[Inputs], int, tuple[str, ...]]] = {
        "entropy_collapse": (
            change("entropy", lambda _, usual: usual / 10),
            39,
            ("10 steps, since step 30", "actor_rollout_ref.actor.clip_ratio_high=0.28", "The mean reward is 0."),
        ),
        "entropy_explosion": (
            change("entropy", lambda _, usual: usual * 10),
            39,
            ("since step 30", "actor_rollout_ref.actor.optim.lr=5e-07"),
        ),
        "truncated_responses": (
            change("truncated", lambda *_: np.ones(len(GROUP), bool)),
            39,
            ("100% of the responses end at the length limit", "data.max_response_length=118"),
        ),
        "duplicate_responses": (
            change("responses", lambda *_: [np.arange(5)] * len(GROUP)),
            39,
            ("100% of the responses", "actor_rollout_ref.rollout.temperature=1"),
        ),
        "reward_saturated": (
            change("rewards", lambda *_: np.where(np.arange(len(GROUP)) == 0, 0.0, 1.0)),
            39,
            ("98% of the responses have the best reward seen, 1 ", "data.train_files"),
        ),
        "constant_reward": (
            change("rewards", lambda *_: np.ones(len(GROUP))),
            34,
            ("has had the reward 1 for 5 steps (since step 30)", "usually the prompts are solved"),
        ),
        "empty_loss": (
            change("empty_loss", lambda *_: True),
            31,
            ("for 2 steps (since step 30)", "algorithm.rollout_correction.rollout_rs=null"),
        ),
        "kl_out_of_range": (
            change("kl", lambda *_: 0.5),
            79,
            ("above 0.1 for 50 steps", "since step 30", "actor_rollout_ref.actor.kl_loss_coef=0.001"),
        ),
        "grad_norm_spikes": (
            change("grad_norm", lambda step, usual: 50.0 if step in (30, 35, 50) else usual),
            50,
            ("3 times in the last 40 steps", "actor_rollout_ref.actor.optim.lr"),
        ),
        "reward_of_length": (
            (by_length(step) for step in range(1, 100)),
            55,
            ("longer a response", "reward.custom_reward_function.path", "kl_loss_coef"),
        ),
    }
    for name, (run, step, texts) in cases.items():
        found = [(at, one) for at, one in spoken(run) if one.name == name]
        assert [at for at, _ in found] == [step], name
        for text in texts:
            assert text in found[0][1].message, (name, text, found[0][1].message)


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"algorithm.rollout_correction.rollout_rs": "token_k1"}, "algorithm.rollout_correction.rollout_rs=null"),
        ({"algorithm.rollout_correction.preset": "decoupled_k3_rs"}, "algorithm.rollout_correction.preset=null"),
        ({"algorithm.rollout_correction.rollout_rs": None}, "reward.custom_reward_function.path=FILE.py"),
    ],
)
def test_an_empty_loss_names_what_leaves_the_tokens_out(settings: dict[str, object], key: str) -> None:
    ((step, found),) = spoken([{"empty_loss": True}] * 20, HealthMonitor(settings=settings))
    assert (step, found.name) == (2, "empty_loss")
    assert f"Try first: {key}" in found.message


def test_saturation_is_also_told_by_the_groups() -> None:
    solved = change("rewards", lambda *_: np.where(np.arange(len(GROUP)) == 0, 0.0, 1.0))
    found = {one.name: one.message for _, one in spoken(solved)}
    assert set(found) == {"reward_saturated", "zero_variance"}
    assert "94% of the groups now; 94% have the best reward seen, 0% the worst" in found["zero_variance"]
    assert "algorithm.filter_groups.enable=true" in found["zero_variance"]


def test_too_hard_prompts_ask_for_larger_groups() -> None:
    hard = change("rewards", lambda *_: np.where(np.arange(len(GROUP)) == 0, 1.0, 0.0))
    ((step, found),) = spoken(hard, HealthMonitor(settings={"actor_rollout_ref.rollout.n": 4}))
    assert (step, found.name) == (39, "zero_variance")
    assert "too hard" in found.message and "actor_rollout_ref.rollout.n=8 (now 4)" in found.message


@pytest.mark.parametrize("alternates", [True, False])
def test_a_loss_that_oscillates_is_told(alternates: bool) -> None:
    draw = np.random.default_rng(0)

    def loss(step: int, usual: float) -> float:
        return 0.3 * (-1) ** step + float(draw.normal()) * 0.02 if alternates else usual * 20

    found = [(step, one) for step, one in spoken(change("loss", loss, 250, 100)) if one.name == "loss_oscillation"]
    assert len(found) == 1 and 109 <= found[0][0] <= 160
    assert "turn back" in found[0][1].message and "actor_rollout_ref.actor.optim.lr" in found[0][1].message


def test_a_constant_reward_from_the_first_step_is_told_without_groups_too() -> None:
    """The control of the quickstart: one response per prompt, every reward 1."""
    run = ({"rewards": np.ones(8), "group": np.arange(8)} for _ in range(43))
    ((step, found),) = spoken(run)
    assert (step, found.name) == (5, "constant_reward")
    assert "No other reward was ever seen" in found.message and "reward.custom_reward_function.path" in found.message
    zeros = ({"rewards": np.zeros(8)} for _ in range(43))
    assert names(spoken(zeros)) == [(5, "constant_reward")]
    broken = [{"rewards": np.arange(8.0)}] + [{"rewards": np.zeros(8)}] * 6
    ((step, found),) = spoken(broken)
    assert step == 6 and "earlier checkpoint" in found.message


def test_one_response_says_nothing_of_constancy() -> None:
    assert spoken({"rewards": np.ones(1)} for _ in range(20)) == []


def test_growing_without_reward_for_it_and_reward_without_growing_are_no_fault() -> None:
    assert names(spoken([by_length(1)] * 60)) == []
    grows = ({**by_length(step), "rewards": np.random.default_rng(step).random(len(GROUP))} for step in range(1, 100))
    assert names(spoken(grows)) == []


def test_responses_that_shrink_because_they_end_now_are_no_fault() -> None:
    def run(ends: float) -> Iterator[Inputs]:
        for step in range(1, 60):
            draw = np.random.default_rng(step)
            lengths = np.maximum(1, (100 * 0.95**step * draw.lognormal(0.0, 0.3, len(GROUP))).astype(int))
            responses = [draw.integers(0, 1000, size=length) for length in lengths]
            truncated = lengths >= np.quantile(lengths, ends)
            yield {"rewards": -lengths / 100, "group": GROUP, "responses": responses, "truncated": truncated}

    assert [one.name for _, one in spoken(run(0.9))] == []
    ((_, found),) = spoken(run(1.0))
    assert found.name == "reward_of_length" and "shorter a response" in found.message


@pytest.mark.parametrize("seed", range(2))
def test_a_long_healthy_run_is_silent(seed: int) -> None:
    assert names(spoken(healthy(seed, 200))) == []


@given(
    seed=st.integers(0, 2**32 - 1),
    scale=st.floats(1e-4, 10.0),
    kind=st.sampled_from(["normal", "laplace", "uniform", "standard_t", "logistic"]),
)
@settings(deadline=None, max_examples=20)
def test_stationary_noise_is_rarely_a_warning(seed: int, scale: float, kind: str) -> None:
    """200 steps of loss, gradient norm, entropy and reward without memory, of any size and several shapes."""
    draw = np.random.default_rng(seed)
    shape = (3,) if kind == "standard_t" else ()
    monitor, found = HealthMonitor(), []
    for step in range(1, 201):
        _, warnings = monitor.update(
            step,
            loss=scale * float(getattr(draw, kind)(*shape)),
            grad_norm=scale * draw.lognormal(0.0, 0.5),
            entropy=scale * draw.lognormal(0.0, 0.3),
            kl=0.03 * draw.lognormal(0.0, 0.7),
            rewards=draw.normal(size=8),
            responses=[np.arange(draw.integers(1, 30)) for _ in range(8)],
            group=np.repeat([0, 1], 4),
        )
        found += warnings
    assert found == []


# Speaking and being silent


def shares(values: list[float]) -> Iterator[Inputs]:
    """Steps with these shares of truncated responses, of ten."""
    for value in values:
        yield {"responses": [np.arange(3)] * 10, "group": np.arange(10), "truncated": np.arange(10) < 10 * value}


def truncated_at(values: list[float], patience: int = 3) -> list[int]:
    found = spoken(shares(values), HealthMonitor(Thresholds(patience=patience, duplicates=1.0)))
    return [step for step, one in found if one.name == "truncated_responses"]


def test_it_speaks_once_and_again_only_after_recovery() -> None:
    assert truncated_at([0.5] * 20) == [3]
    assert truncated_at([0.5, 0.5, 0.1] * 5) == []
    assert truncated_at([0.5] * 3 + [0.1, 0.5] * 10) == [3]  # one good step is no recovery
    assert truncated_at([0.5] * 3 + [0.1] * 3 + [0.5] * 3) == [3, 9]
    assert truncated_at([0.5] * 3 + [0.1] * 2 + [0.5] * 9) == [3]


def test_short_answers_may_be_alike_in_their_group_but_not_across_prompts() -> None:
    def run(length: int, *, one: bool) -> list[Inputs]:
        responses = [np.full(length, 0 if one else prompt) for prompt in GROUP]
        return [{"group": GROUP, "responses": responses}] * 15

    assert names(spoken(run(3, one=False))) == []
    assert names(spoken(run(3, one=True))) == [(10, "duplicate_responses")]
    ((step, found),) = spoken(run(20, one=False))
    assert (step, found.name) == (10, "duplicate_responses") and "another one to their prompt" in found.message


def test_steps_without_a_number_do_not_count() -> None:
    monitor = HealthMonitor(Thresholds(patience=3, baseline_steps=1))
    steps: list[Inputs] = [{"entropy": 1.0}, {"entropy": 0.1}, {}, {"entropy": 0.1}, {"loss": 1.0}, {"entropy": 0.1}]
    assert names(spoken(steps, monitor)) == [(6, "entropy_collapse")]


def test_what_is_undefined_is_absent() -> None:
    monitor = HealthMonitor()
    assert monitor.update(1) == ({}, [])
    empty = monitor.update(2, rewards=np.zeros(0), group=np.zeros(0, np.int64), responses=[], truncated=np.zeros(0))
    assert empty == ({}, [])
    unscored = monitor.update(3, rewards=np.full(2, math.nan), responses=[np.arange(3), np.arange(2)])
    assert set(unscored[0]) == {"health/duplicate_responses_batch", "health/most_common_response"}
    broken = monitor.update(4, entropy=math.nan, loss=math.nan, grad_norm=math.nan, kl=math.nan)
    assert broken == ({}, [])
    with pytest.raises(ValueError, match=r"different lengths: \{'rewards': 2, 'group': 3\}"):
        monitor.update(5, rewards=np.zeros(2), group=np.zeros(3))


def test_gradients_that_are_not_finite_are_spikes() -> None:
    run = ({"grad_norm": math.nan if step % 5 == 0 else 1.0} for step in range(1, 30))
    assert names(spoken(run)) == [(15, "grad_norm_spikes")]


def test_every_number_of_a_healthy_step_is_finite() -> None:
    monitor = HealthMonitor()
    for step, inputs in enumerate(healthy(1, 60), 1):
        metrics, _ = monitor.update(step, **inputs)
    assert all(name.startswith("health/") and math.isfinite(value) for name, value in metrics.items())
    assert len(metrics) == 18


# Resuming


def troubled() -> list[Inputs]:
    """A run of which most monitors have something to say."""
    steps = []
    for step, usual in enumerate(healthy(0, 100), 1):
        inputs = dict(usual)
        if step > 20:
            inputs |= {"entropy": 0.01, "kl": 0.5, "truncated": np.ones(len(GROUP), bool)}
        if step > 30:
            inputs |= {"rewards": np.ones(len(GROUP)), "loss": (-1.0) ** step}
        if step % 9 == 0:
            inputs |= {"grad_norm": 100.0}
        steps.append(inputs)
    return steps


@cache
def uninterrupted() -> tuple[list[Any], dict[str, Any]]:
    """What the monitors return at every step of `troubled`, and what they remember at its end."""
    whole = HealthMonitor()
    return [whole.update(step, **inputs) for step, inputs in enumerate(troubled(), 1)], whole.state_dict()


@pytest.mark.parametrize("cut", [0, 1, 4, 22, 33, 40, 41, 69, 80, 99])
def test_a_resumed_run_warns_as_an_uninterrupted_one(cut: int) -> None:
    steps, (expected, state) = troubled(), uninterrupted()
    assert {one.name for _, warnings in expected for one in warnings} == {
        "constant_reward",
        "entropy_collapse",
        "grad_norm_spikes",
        "kl_out_of_range",
        "loss_oscillation",
        "truncated_responses",
    }
    before, after = HealthMonitor(), HealthMonitor()
    found = [before.update(step, **inputs) for step, inputs in enumerate(steps[:cut], 1)]
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    found += [after.update(step, **inputs) for step, inputs in enumerate(steps[cut:], cut + 1)]
    assert found == expected
    assert after.state_dict() == state


def test_the_state_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match=r"not the state of these health monitors: coef, first_amplitude"):
        HealthMonitor().load_state_dict({"coef": 1.0})


# Limits and advice


@pytest.mark.parametrize(
    "wrong",
    [{"patience": 0}, {"zero_variance": 0.0}, {"saturated": 1.5}, {"longer": 1.0}, {"window": 3}, {"spike": math.nan}],
)
def test_limits_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=f"{name}="):
        Thresholds(**wrong)


def test_every_limit_says_why() -> None:
    source = inspect.getsource(Thresholds)
    for name in Thresholds.__dataclass_fields__:
        assert f"    {name}: " in source and source.split(f"    {name}: ")[1].split("\n")[1].strip().startswith('"""')


@pytest.mark.parametrize(
    ("settings_", "advice"),
    [
        ({}, "actor_rollout_ref.actor.kl_loss_coef=0.001."),
        ({"algorithm.use_kl_in_reward": False, "actor_rollout_ref.actor.use_kl_loss": False}, "use_kl_loss=true."),
        (
            {"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": 0.005},
            "algorithm.kl_ctrl.kl_coef=0.01 (now 0.005).",
        ),
        (
            {
                "algorithm.use_kl_in_reward": True,
                "algorithm.kl_ctrl.type": "adaptive",
                "algorithm.kl_ctrl.target_kl": 0.1,
            },
            "algorithm.kl_ctrl.target_kl=0.05 (now 0.1).",
        ),
        (
            {"actor_rollout_ref.actor.use_kl_loss": True, "actor_rollout_ref.actor.kl_loss_coef": 0.02},
            "actor_rollout_ref.actor.kl_loss_coef=0.04 (now 0.02).",
        ),
    ],
)
def test_the_kl_key_is_that_of_the_run(settings_: dict[str, object], advice: str) -> None:
    monitor = HealthMonitor(Thresholds(kl_patience=1), settings=settings_)
    ((_, found),) = spoken([{"kl": 0.5}], monitor)
    assert found.message.endswith(advice)


@pytest.mark.parametrize(
    ("settings_", "advice"),
    [
        ({"actor_rollout_ref.actor.clip_ratio_high": 0.2}, "clip_ratio_high=0.28."),
        (
            {"actor_rollout_ref.actor.clip_ratio_high": 0.28, "actor_rollout_ref.actor.entropy_coeff": 0.0},
            "entropy_coeff=0.001.",
        ),
        (
            {
                "actor_rollout_ref.actor.policy_loss.loss_mode": "gspo",
                "actor_rollout_ref.actor.entropy_coeff": 0.01,
            },
            "entropy_coeff=0.02 (now 0.01).",
        ),
    ],
)
def test_the_entropy_key_goes_on_from_the_present_value(settings_: dict[str, object], advice: str) -> None:
    monitor = HealthMonitor(Thresholds(patience=1, baseline_steps=1), settings=settings_)
    ((_, found),) = spoken([{"entropy": 1.0}, {"entropy": 0.1}], monitor)
    assert found.message.endswith(advice)
