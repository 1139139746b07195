"""The numbers of the health monitors: values by hand, what is left out, and None where there is nothing."""

import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_algos import health

NAN = math.nan
PAGE = Path(__file__).parents[3] / "docs" / "algorithms" / "health.md"


def test_groups_of_equal_rewards_are_counted_among_those_that_can_be_compared() -> None:
    rewards = np.array([1.0, 0.0, 1.0, 0.5, 0.5, 0.0, 0.3])
    group = np.array([7, 7, 3, 9, 9, 3, 1])
    equal, groups = health.equal_groups(rewards, group)
    assert (equal.tolist(), groups) == ([0.5], 3)
    assert health.zero_variance_groups(rewards, group) == pytest.approx(1 / 3)


def test_unscored_responses_do_not_make_a_group_differ() -> None:
    rewards, group = np.array([1.0, NAN, 1.0, 0.0, NAN, math.inf]), np.array([0, 0, 0, 1, 1, 1])
    assert health.zero_variance_groups(rewards, group) == 1.0
    assert health.equal_groups(rewards, group)[1] == 1
    assert health.most_common_reward(rewards) == pytest.approx(2 / 3)
    assert health.share_at(rewards, 1.0) == pytest.approx(2 / 3)


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.1, 1.0, NAN])), max_size=20))
@settings(deadline=None)
def test_zero_variance_is_what_a_loop_over_the_groups_finds(rows: list[tuple[int, float]]) -> None:
    groups: dict[int, list[float]] = {}
    for one, reward in rows:
        if not math.isnan(reward):
            groups.setdefault(one, []).append(reward)
    compared = [values for values in groups.values() if len(values) > 1]
    found = health.zero_variance_groups(np.array([r for _, r in rows]), np.array([g for g, _ in rows], dtype=np.int64))
    assert found == (sum(len(set(v)) == 1 for v in compared) / len(compared) if compared else None)


def test_correlation_within_groups_is_not_that_of_the_batch() -> None:
    """Hard prompts have long, wrong answers; within each prompt the longer response is the better one."""
    rewards = np.array([0.8, 0.9, 1.0, 0.0, 0.1, 0.2])
    lengths, group = np.array([10, 11, 12, 100, 101, 102]), np.array([0, 0, 0, 1, 1, 1])
    over_batch = health.reward_length_correlation(rewards, lengths)
    assert over_batch is not None and over_batch < -0.9
    assert over_batch == pytest.approx(np.corrcoef(rewards, lengths)[0, 1])
    assert health.reward_length_correlation(rewards, lengths, group) == pytest.approx(1.0)
    order = np.array([5, 0, 3, 1, 4, 2])
    assert health.reward_length_correlation(rewards[order], lengths[order], group[order]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("rewards", "lengths"),
    [
        ([], []),
        ([1.0, 0.0], [3, 9]),  # two points always lie on a line
        ([0.1, 0.1, 0.1], [1, 2, 3]),
        ([0.1, 0.2, 0.3], [5, 5, 5]),
        ([1.0, 0.0, NAN], [1, 2, 3]),
    ],
)
def test_correlation_of_nothing_is_none(rewards: list[float], lengths: list[int]) -> None:
    columns = np.array(rewards), np.array(lengths, dtype=np.int64)
    assert health.reward_length_correlation(*columns) is None
    assert health.reward_length_correlation(*columns, np.zeros(len(rewards), np.int64)) is None


def test_columns_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="There are 3 rewards, but 2 rows in a column beside them"):
        health.reward_length_correlation(np.ones(3), np.ones(2))
    with pytest.raises(ValueError, match="There are 3 rewards, but 4 rows"):
        health.zero_variance_groups(np.ones(3), np.zeros(4, np.int64))


def test_rounding_is_no_correlation() -> None:
    """The mean of three 0.1 is not 0.1."""
    rewards, group = np.array([0.1] * 3 + [0.7] * 3), np.array([0, 0, 0, 1, 1, 1])
    assert health.reward_length_correlation(rewards, np.array([1, 5, 9, 2, 4, 7]), group) is None


def test_duplicates_are_compared_token_by_token() -> None:
    same, other, longer = np.array([1, 2]), np.array([1, 3]), np.array([1, 2, 0])
    group = np.array([0, 0, 1, 1])
    assert health.duplicate_responses([same, same.astype(np.int32), same, other], group) == 0.5
    assert health.duplicate_responses([same, other, same, longer], group) == 0.0
    assert health.duplicate_responses([same, other, same, longer]) == 0.5
    assert health.duplicate_responses([same, same], np.array([0, 1])) is None
    assert health.duplicate_responses([np.zeros(0), np.zeros(0)], np.array([0, 0])) == 1.0
    assert health.most_common_response([same, other, same, same], group) == 0.75
    assert health.most_common_response([same, same], np.array([0, 0])) is None


def test_numbers_of_a_series() -> None:
    assert health.sign_changes([0.0, 1.0, 0.0, 1.0]) == 1.0
    assert health.sign_changes([0.0, 1.0, 2.0, 3.0]) == 0.0
    assert health.sign_changes([1.0, 1.0, 1.0, 2.0]) == 0.0
    assert health.sign_changes([0.0, 1.0]) is None
    assert health.amplitude([0.0, 1.0, 0.0, 100.0, 99.0]) == 1.0
    assert health.amplitude([1.0]) is None
    assert health.spike(20.0, [1.0, 2.0, 3.0]) == 10.0
    assert health.spike(NAN, []) == math.inf
    assert health.spike(1.0, []) is None
    assert health.spike(1.0, [0.0, 0.0, 5.0]) is None


def test_two_thirds_of_the_changes_of_noise_turn_back() -> None:
    noise = np.random.default_rng(0)
    for values in (noise.normal(size=20_000), noise.standard_cauchy(size=20_000), noise.random(20_000)):
        assert health.sign_changes(values.tolist()) == pytest.approx(2 / 3, abs=0.01)


def test_the_numbers_need_no_torch() -> None:
    code = (
        "import sys, numpy; from verl_algos import health;"
        "health.zero_variance_groups(numpy.zeros(2), numpy.zeros(2)); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_page_is_true() -> None:
    if not PAGE.exists():
        pytest.skip("the documentation is not beside this package")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == re.findall(r"# prints: (.*)", code)
