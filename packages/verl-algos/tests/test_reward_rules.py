"""Reward rules: verl-facts reward strings; bug bank B01, B20, B22, B23, B30, B32, A16."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_algos.rewards import RULES, RewardResult, RewardRow, arithmetic, default_compute_score, gsm8k, score_all


def score(response: str, truth: Any, **options: Any) -> float:
    return _value(gsm8k.compute_score(response, truth, **options))


def _value(result: RewardResult) -> float:
    return float(result) if isinstance(result, float) else float(result["score"])


@pytest.mark.parametrize(
    ("response", "truth", "expected"),
    [
        ("#### 42", "42", 1),
        ("#### 1,234", "1234", 1),
        ("#### 1234", "1,234", 1),
        ("#### 41\n#### 42", "42", 1),
        ("#### 42\n#### 41", "42", 0),
        ("#### 42\n#### done", "42", 1),
        ("#### -3", "-3", 1),
        ("#### 3", "-3", 0),
        ("#### 42 apples", "42", 1),
        ("#### 42.", "42", 1),
        ("#### 42.0", "42", 1),
        ("#### 042", "42", 1),
        ("#### $42", "42", 1),
        ("#### $ 42", "42", 1),
        ("#### -$42", "-42", 1),
        ("#### $-42", "-42", 1),
        ("#### $1,234.50", "1234.5", 1),
        ("#### .5", "0.5", 1),
        ("#### 0.1", "0.10", 1),
        ("#### \u22127", "-7", 1),
        ("####\n42", "42", 1),
        ("#### 42", 42, 1),
        ("#### 42", 42.0, 1),
        ("#### 41", "42", 0),
        ("#### 1,23", "123", 0),
        ("#### ,", "42", 0),
        ("The answer is 42", "42", 0),
        ("", "42", 0),
        ("#### 0.30000000000000001", "0.3", 0),
    ],
)
def test_gsm8k_strict(response: str, truth: Any, expected: float) -> None:
    assert score(response, truth) == expected


@pytest.mark.parametrize(
    ("response", "truth", "expected"),
    [
        ("The answer is 42", "42", 1),
        ("The answer is 42.", "42", 1),
        ("#### $42", "42", 1),
        ("#### 1,234", "1234", 1),
        ("it costs $1,234.00 in all", "1234", 1),
        ("3-5", "5", 1),
        ("so x = -5", "-5", 1),
        ("first 42 then 7", "42", 0),
        ("no number", "42", 0),
        ("", "42", 0),
    ],
)
def test_gsm8k_flexible(response: str, truth: str, expected: float) -> None:
    assert score(response, truth, method="flexible") == expected


def test_b01_answer_far_from_the_end() -> None:
    response = "2+40=42\n#### 42\n" + " and the reasoning above confirms this result is consistent." * 8
    assert score(response, "42") == 1
    assert score("#### 42" + " x" * 100_000, "42") == 1


def test_b23_commas_separate_thousands_only() -> None:
    def last(text: str) -> Decimal | None:
        return gsm8k.extract_solution(text, "flexible")

    assert last("[8.124,12.852]") == Decimal("12.852")
    assert last("$1,234.00") == 1234
    assert last("1,000") == 1000
    assert last("1,23") == 23
    assert last("12,345,678") == 12345678
    assert gsm8k.extract_solution("#### 8.124,12.852") == Decimal("8.124")


@pytest.mark.parametrize("method", ["strict", "flexible"])
@pytest.mark.parametrize(
    "response",
    [
        "\\frac{1" * 20000,
        "$" * 50000,
        "#" * 50000,
        " " * 50000,
        "#### " * 20000,
        "####" + " " * 50000,
        "-" * 50000,
        "1," * 50000,
        ",111" * 50000 + "1",
        "1" * 200000,
        "1." * 50000,
    ],
)
def test_b30_degenerate_responses_score_zero(response: str, method: str) -> None:
    # A super-linear search would take minutes for these.
    assert score(response, "5", method=method) == 0


def test_b32_missing_marker_is_told() -> None:
    responses = ["Total is 18.", "\\boxed{18}"]
    strict: list[Any] = [gsm8k.compute_score(response, "18") for response in responses]
    assert [s["score"] for s in strict] == [0, 0]
    assert sum(s["no_marker"] for s in strict) == 2
    flexible: list[Any] = [gsm8k.compute_score(response, "18", "flexible") for response in responses]
    assert [s["score"] for s in flexible] == [1, 1]
    assert sum(s["no_marker"] for s in flexible) == 0


def test_b20_b22_one_score_per_row_from_the_response_alone() -> None:
    rows = [
        RewardRow("openai/gsm8k", response, truth, {"question": "Put the answer after #### 5"})
        for response, truth in (("I don't know.", "5"), ("#### 5", "5"), ("#### 137", "138"), ("", "5"))
    ]
    scores = score_all(default_compute_score, rows)
    assert [s.score for s in scores] == [0, 1, 0, 0]
    assert [s.extra["no_marker"] for s in scores] == [1, 0, 0, 1]
    extracted = [gsm8k.extract_solution(row.solution_str) for row in rows]
    assert extracted == [None, 5, 137, None]


def test_gsm8k_options_and_errors() -> None:
    assert score("#### 41", "42", format_score=0.1) == 0.1
    assert score("no marker", "42", format_score=0.1) == 0
    with pytest.raises(ValueError, match="Unknown GSM8K method 'loose'"):
        score("#### 42", "42", method="loose")
    for truth in ("forty-two", "", "#### 42", None):
        with pytest.raises(ValueError, match="must be a number"):
            score("#### 42", truth)


@settings(deadline=None)
@given(
    number=st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**12), max_value=10**12),
    noise=st.text(alphabet="abc \n.", max_size=20),
)
def test_any_way_of_writing_a_number_equals_it(number: Decimal, noise: str) -> None:
    for written in (f"{number}", f"{number:,}", f"{number}0", f"{number}."):
        assert score(f"{noise}\n#### {written}\n{noise}", str(number)) == 1
        assert score(f"#### {written}", str(number + 1)) == 0


# --- arithmetic


@pytest.mark.parametrize(
    ("response", "truth", "expected"),
    [
        ("57", "57", 1),
        (" 57\n", "57", 1),
        ("057", 57, 1),
        ("-3", "-3", 1),
        ("+57", "57", 1),
        ("-0", "0", 1),
        ("57.", "57", 0),
        ("57 58", "57", 0),
        ("57 is it", "57", 0),
        ("= 57", "57", 0),
        ("5 7", "57", 0),
        ("57.0", "57", 0),
        ("\u0665\u0667", "57", 0),
        ("58", "57", 0),
        ("", "57", 0),
        ("9" * 100_000, "57", 0),
    ],
)
def test_arithmetic(response: str, truth: str | int, expected: float) -> None:
    assert arithmetic.compute_score(response, truth) == expected


def test_arithmetic_ground_truth_must_be_an_integer() -> None:
    with pytest.raises(ValueError, match=r"must be an integer, got '5\.5'"):
        arithmetic.compute_score("5", "5.5")


# --- dispatch


def test_default_dispatch_and_its_options() -> None:
    assert set(RULES) == {"openai/gsm8k", "verl/arithmetic"}
    assert _value(default_compute_score("openai/gsm8k", "#### 42", "42", None)) == 1
    assert _value(default_compute_score("openai/gsm8k", "it is 42", "42", method="flexible")) == 1
    assert _value(default_compute_score("verl/arithmetic", "42", "42", extra_info={"index": 0})) == 1
    with pytest.raises(TypeError, match="methd"):
        default_compute_score("openai/gsm8k", "#### 42", "42", methd="flexible")


def test_a16_unknown_data_source_lists_the_known_and_the_way_out() -> None:
    with pytest.raises(ValueError, match="openai/gsm8k, verl/arithmetic") as error:
        default_compute_score("/home/data/gsm8k", "#### 42", "42")
    for part in ("'/home/data/gsm8k'", "compute_score(data_source, solution_str", "reward.custom_reward_function.path"):
        assert part in str(error.value)
