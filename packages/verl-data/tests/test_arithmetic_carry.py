from typing import Any

import pytest
from verl_data.processors.arithmetic import addition_rows, carries


def operands(row: dict[str, Any]) -> tuple[int, int]:
    a, b = row["prompt"][0]["content"].removesuffix("=").split("+")
    return int(a), int(b)


def test_units_that_reach_ten_carry() -> None:
    assert [carries(27, 15), carries(23, 15), carries(25, 15), carries(30, 9)] == [True, False, True, False]


def test_a_carry_share_drops_problems_without_a_carry_only() -> None:
    train, held_out = addition_rows(10, 29, validation=40, seed=3, carry_share=0.75)
    pairs = [operands(row) for row in (*train, *held_out)]
    assert len(pairs) == len(set(pairs))
    assert sum(carries(a, b) for a, b in pairs) == 4 * 45  # every problem with a carry: 45 pairs of units in 2 x 2 tens
    assert sum(not carries(a, b) for a, b in pairs) == 60


@pytest.mark.parametrize("share", [0.44, 0.0, 1.01, float("nan")])
def test_a_share_that_cannot_be_reached_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match=r"carry_share must be between 0\.450"):
        addition_rows(10, 29, validation=40, seed=3, carry_share=share)


def test_both_parts_have_the_share() -> None:
    train, held_out = addition_rows(10, 49, validation=250, seed=1, carry_share=0.7)
    for part in (train, held_out):
        assert sum(carries(*operands(row)) for row in part) / len(part) == pytest.approx(0.7, abs=0.08)
