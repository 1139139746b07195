"""KL controllers and monitor: verl-facts 1.1, bug bank C29."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from verl_algos import kl
from verl_algos.errors import NonFiniteError


@pytest.mark.parametrize(("measured", "expected"), [(0.8, 0.200032), (0.3, 0.199968), (0.4, 0.2), (0.44, 0.200016)])
def test_c29_adaptive_controller(measured: float, expected: float) -> None:
    """Bug bank C29: one update at a KL above, below and at the target."""
    controller = kl.AdaptiveController(coef=0.2, target=0.4, horizon=10000)
    controller.update(measured, 8)
    assert controller.coef == pytest.approx(expected, abs=1e-9)


def test_c29_the_diluted_kl_would_have_moved_the_coefficient() -> None:
    controller = kl.AdaptiveController(coef=0.2, target=0.4, horizon=10000)
    for _ in range(200):
        controller.update(0.3, 8)
    assert controller.coef == pytest.approx(0.193701, abs=1e-6)


@pytest.mark.parametrize(("measured", "factor"), [(0.0, 0.8), (9.0, 1.2)])
@pytest.mark.parametrize("num_sequences", [100, 101, 500, 501, 10**6])
def test_more_sequences_than_the_horizon_change_the_coefficient_by_a_fifth(
    measured: float, factor: float, num_sequences: int
) -> None:
    controller = kl.AdaptiveController(coef=0.2, target=0.4, horizon=100)
    controller.update(measured, num_sequences)
    assert controller.coef == pytest.approx(0.2 * factor)


def test_a_measured_tensor_leaves_the_coefficient_a_number() -> None:
    """The quotient of what `apply_kl_to_rewards` measures is a tensor; the state is JSON all the same."""
    controller = kl.AdaptiveController(coef=0.2, target=0.4, horizon=10000)
    measured: tuple[Any, Any] = (torch.tensor(0.44, dtype=torch.float64), np.int64(8))
    controller.update(*measured)
    assert type(controller.coef) is float and controller.coef == pytest.approx(0.200016, abs=1e-9)
    assert json.loads(json.dumps(controller.state_dict())) == {"coef": controller.coef}


def test_controllers_refuse_and_stay() -> None:
    fixed = kl.FixedController(coef=0.001)
    fixed.update(5.0, 8)
    assert fixed.coef == 0.001
    with pytest.raises(ValueError, match="target and horizon above 0"):
        kl.AdaptiveController(coef=0.2, target=0.0, horizon=1)
    with pytest.raises(NonFiniteError, match="current_kl=nan"):
        kl.AdaptiveController(coef=0.2, target=0.1, horizon=1).update(math.nan, 1)


def test_a_resumed_controller_goes_on() -> None:
    controller = kl.AdaptiveController(coef=0.2, target=0.4, horizon=100)
    controller.update(0.8, 8)
    state = json.loads(json.dumps(controller.state_dict()))
    resumed = kl.AdaptiveController(coef=0.2, target=0.4, horizon=100)
    resumed.load_state_dict(state)
    assert resumed == controller
    for one in (controller, resumed):
        one.update(0.1, 8)
    assert resumed.coef == controller.coef
    with pytest.raises(ValueError, match=r"coef=nan"):
        resumed.load_state_dict({"coef": math.nan})
    assert resumed.coef == controller.coef


def test_the_coefficient_of_a_fixed_controller_is_the_configurations() -> None:
    fixed = kl.FixedController(coef=0.3)
    fixed.load_state_dict(kl.FixedController(coef=0.1).state_dict())
    assert fixed.coef == 0.3
    with pytest.raises(ValueError, match="fixed KL controller holds nothing, but this one holds coef"):
        fixed.load_state_dict(kl.AdaptiveController(coef=0.2, target=0.1, horizon=1).state_dict())
    with pytest.raises(ValueError, match="adaptive KL controller holds coef, but this one holds nothing"):
        kl.AdaptiveController(coef=0.2, target=0.1, horizon=1).load_state_dict(fixed.state_dict())


# --- monitor


def warnings(monitor: kl.Monitor, values: list[float]) -> list[int]:
    """The steps at which it speaks."""
    return [step for step, value in enumerate(values) if monitor.update(value) is not None]


def test_monitor_speaks_once_for_each_time_that_the_kl_leaves_for_long() -> None:
    monitor = kl.Monitor(patience=3)
    assert warnings(monitor, [0.05, 0.2, 0.2, 0.05, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2]) == [6]
    assert warnings(monitor, [0.05, 0.005, 0.0, 0.001, 0.0]) == [3]
    assert warnings(monitor, [0.2, 0.0, 0.2, 0.0, 0.2, 0.2, 0.2]) == [6]  # one side for long
    assert warnings(kl.Monitor(patience=1), [0.01, 0.1, 0.1001, 0.0099]) == [2, 3]  # bounds belong to the range
    assert warnings(kl.Monitor(patience=2), [math.nan, math.inf]) == [1]
    assert warnings(kl.Monitor(), [1.0] * 100) == [19]


def test_monitor_says_what_it_means_and_what_to_try() -> None:
    for value, side, advice in (
        (0.5, "above 0.1", "larger KL coefficient"),
        (0.0, "below 0.01", "smaller KL coefficient"),
    ):
        text = kl.Monitor(patience=1).update(value)
        assert text is not None and side in text and f"now {value:g}" in text and advice in text
        assert "algorithm.kl_ctrl.kl_coef" in text and "actor_rollout_ref.actor.kl_loss_coef" in text


@pytest.mark.parametrize("cut", range(6))
def test_a_resumed_monitor_speaks_at_the_same_step(cut: int) -> None:
    values = [0.2, 0.2, 0.2, 0.2, 0.05, 0.2]
    whole = kl.Monitor(patience=3)
    before, after = kl.Monitor(patience=3), kl.Monitor(patience=3)
    expected = [whole.update(value) for value in values]
    spoken = [before.update(value) for value in values[:cut]]
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert spoken + [after.update(value) for value in values[cut:]] == expected
    with pytest.raises(ValueError, match="KL monitor holds side, steps"):
        after.load_state_dict({"coef": 1})


@pytest.mark.parametrize(
    ("low", "high", "patience"), [(0.1, 0.01, 1), (-1.0, 0.1, 1), (0.01, 0.1, 0), (math.nan, 1, 1)]
)
def test_monitor_refuses(low: float, high: float, patience: int) -> None:
    with pytest.raises(ValueError, match="0 <= low < high"):
        kl.Monitor(low=low, high=high, patience=patience)
