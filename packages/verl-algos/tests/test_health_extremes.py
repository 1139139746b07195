"""The monitors over the largest, smallest and broken numbers: no warnings of NumPy, which are errors here."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_algos import health
from verl_algos.health import HealthMonitor, Thresholds

LARGEST = 1.7976931348623157e308
EXTREMES = st.one_of(
    st.sampled_from([LARGEST, -LARGEST, 1e308, -1e308, 5e-324, -5e-324, 2.2e-308, 0.0, -0.0, 1.0, 0.1]),
    st.sampled_from([math.inf, -math.inf, math.nan]),
    st.floats(),
)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
SHORT = Thresholds(
    patience=1, constant_reward_patience=1, baseline_steps=1, window=4, spikes=1, kl_patience=1, short_response=1
)


@settings(deadline=None, max_examples=100)
@given(
    steps=st.lists(
        st.tuples(EXTREMES, EXTREMES, EXTREMES, EXTREMES, st.lists(EXTREMES, max_size=6), st.integers(0, 3)),
        min_size=1,
        max_size=14,
    )
)
def test_every_monitor_takes_every_number(steps: list[tuple[float, float, float, float, list[float], int]]) -> None:
    monitor = HealthMonitor(thresholds=SHORT, settings={"actor_rollout_ref.actor.optim.lr": 1e-6})
    for number, (entropy, kl, loss, grad_norm, rewards, kind) in enumerate(steps):
        rows = len(rewards)
        metrics, warnings = monitor.update(
            number,
            rewards=np.array(rewards),
            group=np.arange(rows) // 2,
            responses=[np.arange(1 + (kind * i) % 4) for i in range(rows)],
            truncated=np.arange(rows) % 2 == 0,
            entropy=entropy,
            kl=kl,
            loss=loss,
            grad_norm=grad_norm,
        )
        assert all(math.isfinite(value) for value in metrics.values())
        assert all(warning.message for warning in warnings)
    json.dumps(monitor.state_dict())


@settings(deadline=None, max_examples=200)
@given(values=st.lists(EXTREMES, max_size=8))
def test_numbers_of_a_series_of_anything(values: list[float]) -> None:
    turns, change = health.sign_changes(values), health.amplitude(values)
    assert turns is None or 0.0 <= turns <= 1.0
    assert (change is None) == (len(values) < 2)
    finite = [abs(value) for value in values if math.isfinite(value)]
    for value in values:
        times = health.spike(value, finite)
        assert times is None or not math.isnan(times)


def test_what_overflows_is_right_where_its_result_is_a_number() -> None:
    assert health.sign_changes([LARGEST, -LARGEST, LARGEST]) == 1.0
    assert health.amplitude([0.0, 1.7e308, 0.1e308]) == pytest.approx(1.65e308)
    assert health.amplitude([LARGEST, -LARGEST]) == math.inf
    assert math.isnan(health.amplitude([math.inf, math.inf, 1.0]) or 0.0)
    assert health.spike(LARGEST, [LARGEST, LARGEST]) == 1.0


@settings(deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(-50, 50), st.integers(1, 30), st.integers(0, 2)), min_size=3, max_size=12),
    exponent=st.sampled_from([1015, 1000, 600, -600, -1000, -1068]),
)
def test_correlation_does_not_depend_on_the_size_of_rewards(rows: list[tuple[int, int, int]], exponent: int) -> None:
    """Rewards times a power of two correlate with length as they do: at 1e307 and where squares are 0."""
    rewards, lengths, group = (np.array(column) for column in zip(*rows, strict=True))
    for ids in (None, group):
        plain = health.reward_length_correlation(rewards.astype(float), lengths, ids)
        scaled = health.reward_length_correlation(np.ldexp(rewards.astype(float), exponent), lengths, ids)
        assert scaled == pytest.approx(plain, abs=1e-12)


def test_the_mean_reward_of_a_collapse_is_told_without_overflow() -> None:
    monitor = HealthMonitor(thresholds=Thresholds(patience=1, baseline_steps=1))
    monitor.update(0, entropy=1.0)
    _, warnings = monitor.update(1, entropy=0.01, rewards=np.array([1.5e308, 1.7e308]))
    assert "1.6e+308" in warnings[-1].message


@pytest.mark.parametrize("ids", [["a", "b", "a", "b"], ["7", "8", "7", "8"], np.array([9, -3, 9, -3])])
def test_ids_are_strings_or_whole_numbers(ids: Any) -> None:
    rewards, responses = np.array([1.0, 0.0, 1.0, 1.0]), [np.array([1]), np.array([2]), np.array([1]), np.array([1])]
    assert health.zero_variance_groups(rewards, ids) == 0.5
    assert health.duplicate_responses(responses, ids) == 0.5
    assert health.most_common_response(responses, ids) == 0.75
    assert HealthMonitor().update(0, rewards=rewards, group=ids)[0]["health/zero_variance_groups"] == 0.5


@pytest.mark.parametrize("ids", [[0.5, 0.5], [math.nan, math.nan], [None, None], [True, False]])
def test_other_ids_are_refused(ids: list[Any]) -> None:
    with pytest.raises(ValueError, match="ids of prompts"):
        HealthMonitor().update(0, rewards=np.array([1.0, 0.0]), group=ids)  # type: ignore[arg-type]
