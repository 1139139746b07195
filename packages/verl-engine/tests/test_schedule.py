import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_engine import OptimConfig, lr_multiplier


def rates(config: OptimConfig, steps: int) -> list[float]:
    return [lr_multiplier(step, config) for step in range(1, steps + 1)]


def test_warmup_learns_from_the_first_step() -> None:
    assert rates(OptimConfig(lr_warmup_steps=4), 6) == [0.25, 0.5, 0.75, 1, 1, 1]
    assert rates(OptimConfig(lr_warmup_steps=0), 2) == [1, 1]
    assert rates(OptimConfig(), 2) == [1, 1]


def test_published_cosine() -> None:
    config = OptimConfig(lr_scheduler_type="cosine", lr_warmup_steps=10, total_training_steps=110, min_lr_ratio=0.1)
    assert [lr_multiplier(step, config) for step in (5, 10, 60, 110, 500)] == pytest.approx([0.5, 1, 0.55, 0.1, 0.1])


def test_linear_ends_at_the_minimum() -> None:
    config = OptimConfig(lr_scheduler_type="linear", total_training_steps=5, min_lr_ratio=0.2)
    assert rates(config, 6) == pytest.approx([1, 0.8, 0.6, 0.4, 0.2, 0.2])


def test_warmup_ratio_counts_steps_of_the_whole_run() -> None:
    assert rates(OptimConfig(lr_warmup_steps_ratio=0.1, total_training_steps=40), 4) == [0.25, 0.5, 0.75, 1]
    # A number of steps wins over the ratio.
    assert rates(OptimConfig(lr_warmup_steps=0, lr_warmup_steps_ratio=0.5, total_training_steps=4), 1) == [1]


@pytest.mark.parametrize("config", [OptimConfig(lr_warmup_steps_ratio=0.1), OptimConfig(lr_scheduler_type="cosine")])
def test_schedule_that_needs_the_length_of_the_run_says_so(config: OptimConfig) -> None:
    with pytest.raises(ValueError, match="total_training_steps is -1"):
        lr_multiplier(1, config)


def test_unknown_schedule_is_named() -> None:
    with pytest.raises(ValueError, match="'step'; use constant, linear or cosine"):
        lr_multiplier(1, OptimConfig(lr_scheduler_type="step"))  # type: ignore[arg-type]


@settings(deadline=None)
@given(
    warmup=st.integers(0, 20),
    total=st.integers(1, 40),
    floor=st.floats(0, 1),
    kind=st.sampled_from(("constant", "linear", "cosine")),
)
def test_rate_rises_to_the_peak_and_never_again(warmup: int, total: int, floor: float, kind: str) -> None:
    config = OptimConfig(
        lr_warmup_steps=warmup,
        total_training_steps=total,
        min_lr_ratio=floor,
        lr_scheduler_type=kind,  # type: ignore[arg-type]
    )
    peak = max(warmup, 1)
    found = rates(config, peak + total + 3)
    assert found[:peak] == sorted(found[:peak]) and found[peak - 1] == 1.0
    for before, after in zip(found[peak - 1 :], found[peak:], strict=False):
        assert after <= before + 1e-12
    assert all(0 < rate <= 1 for rate in found[:peak])
    if kind != "constant" and total > peak:
        assert found[total - 1] == pytest.approx(floor, abs=1e-12)
