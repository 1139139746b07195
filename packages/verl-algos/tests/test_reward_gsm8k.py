"""GSM8K in strict mode: the marked answer is a number as a whole, or none; and both modes on long responses."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_algos.rewards import RewardRow, RewardRunner, default_compute_score, gsm8k


@pytest.mark.parametrize(
    "marked",
    [
        *(
            "42/7",
            "42 / 7",
            "$42/7",
            "42/(7)",
            "42*2",
            "42 * 2",
            "42**2",
            "42(3)",
            "42+1",
            "42-45",
            "42\u201345",
            "42^2",
        ),
        *("42 million", "42 Billion", "42 thousands", "42k", "42K", "$42M", "42B", "42 bn", "42 lakh", "42\u4e07"),
        *("42 dozen", "42 dozens", "42 halves", "42 hundredths", "42 and a half", "42 and one half"),
        *("42 squared", "42 cubed", "42 times 3", "42 plus 1", "42 divided by 7", "42 by 7", "42 over 7", "42 point 5"),
        *(
            "42 dollars and 50 cents",
            "42 dollars 50 cents",
            "42 hours, 30 minutes",
            "42 feet 6 inches",
            "42 km or 26 mi",
        ),
        *("42e3", "42E-1", "42e+03", "42:30", "42%3", "42 \u00d7 3", "42\u00f77", "42x3", "42 x 3", "42\\times 3"),
        *("42 000", "42\u00a0000", "42\u2009000", "42'000", "42_000", "42{,}000", "42\\,000", "42 ,000", "42,00"),
        *("1,23,4", "42,5", "42, 43", "42; 43", "42 or 43", "42 and 1/2", "42 to 45", "42 ~ 43", "[42, 43]"),
        *("1.234,5", "42.5.3", "42..45", "42 = 6 * 7", "6 * 7 = 42", "x = 42", "42 1/2", "42\u00bd", "42\u00b2"),
        *("42\u0660", "\u0664\u0662", "\uff14\uff12", "4\u0662", "42\\frac{1}{2}", "0x42", "(42)", "- 42", "half", ""),
    ],
)
def test_what_is_no_whole_number_is_no_answer(marked: str) -> None:
    """Nor is a number paid with which it begins or ends."""
    response = f"It is 42.\n#### {marked}"
    for truth in ("42", "4", "1", "1.234", "6", "-42"):
        score = gsm8k.compute_score(response, truth, format_score=0.25)
        assert score == {"score": 0.0, "acc": 0.0, "pred": None, "no_marker": 1.0}


@pytest.mark.parametrize(
    "marked",
    [
        *(
            "42",
            "42.",
            "42..",
            "42...",
            "42,",
            "42;",
            "42!",
            "42:",
            "42.0",
            "042",
            "$42",
            "\\$42",
            "$ 42",
            "$42.00",
            "+42",
        ),
        *(
            "42 dollars",
            "42 apples",
            "42 kids",
            "42 pairs",
            "42km",
            "42 km/h",
            "$42 per hour",
            "$42/hour",
            "42%",
            "42 %",
            "42\\%",
            "42\u00b0",
        ),
        *("**42**", "**42** apples", "*42*", "__42__", "**$42**", "$42$", "\\(42\\)", "\\boxed{42}", "$\\boxed{42}$"),
        *(
            "42. So 7 are left.",
            "42 (6 * 7)",
            "**42** (6 * 7)",
            "42 [7]",
            "42 - as she said",
            "42\\text{ cm}",
            "42 each",
        ),
        *(
            "42</s>",
            "42<|im_end|>",
            "42\x00",
            "42\ud800",
            "42\n7",
            "42\r\n7",
            "42e",
            "42 east",
            "42\n#### done",
            "42 ####",
        ),
        *(
            "\u20ac42",
            "\u00a342",
            "\u00a542",
            "\u20b942",
            "42\u20ac",
            "42 \u20ac",
            "`42`",
            "** 42 **",
            "$$42$$",
            "$ 42 $",
        ),
        *("\\[42\\]", "\\fbox{42}", "\\text{42}", "$\\mathbf{42}$", "\\boxed{\\text{42}}", "**$\\boxed{42}$**"),
        *("\\(\\boxed{42}\\)", "\\[ \\boxed{\\$42} \\]", "$\\boxed{42 \\text{ dollars}}$", "\\boxed{42.}"),
        *(
            "42 times as many",
            "42 in 2020",
            "42 because 6*7",
            "42 and no more",
            "42m",
            "42 m",
            "42 third-graders",
            "42 quarters",
        ),
        *("41\n#### 42", "42/7\n#### 42", "41 #### 42"),
    ],
)
def test_what_stands_around_a_number(marked: str) -> None:
    """A percent sign is a unit as in the rule for mathematics, where 28 is right for 28%."""
    for response in (f"#### {marked}", f"It is 7.\n####{marked}\n", f"###### \n{marked}"):
        assert gsm8k.extract_solution(response) == 42


@pytest.mark.parametrize("sign", ["\u2010", "\u2011", "\ufe63", "\uff0d", "-\u20ac", "\u20ac-", "\u00a3\uff0d"])
@pytest.mark.parametrize("method", ["strict", "flexible"])
def test_signs_of_other_keyboards(sign: str, method: Any) -> None:
    """A sign that is not known would make a positive number of a negative one."""
    assert gsm8k.compute_score(f"#### {sign}42", -42, method)["acc"] == 1
    assert gsm8k.compute_score(f"#### {sign}42", 42, method)["acc"] == 0


@pytest.mark.parametrize("marked", ["-42", "\u221242", "\u201342", "-$42", "$-42", "**-42**", "\\boxed{-42}", "-42.0"])
def test_negative_answers(marked: str) -> None:
    assert gsm8k.extract_solution(f"#### {marked}") == -42
    assert gsm8k.compute_score(f"it is {marked}", -42, method="flexible")["acc"] == 1


def test_the_last_marked_number_decides_also_where_it_is_none() -> None:
    assert gsm8k.extract_solution("#### 42\n#### 42/7") is None
    assert gsm8k.extract_solution("#### 42/7\n#### 42\n####\n####") == 42


@pytest.mark.parametrize(
    "marked", ["42/7", "42e3", "42 000", "42:30", "42^2", "42%", "42*2", "42, 43", "42 = 6 * 7", "42 1/2"]
)
def test_the_original_pays_a_leading_number(marked: str) -> None:
    assert gsm8k.compute_score(f"#### {marked}", "42", compat=True)["score"] == 1


@settings(deadline=None)
@given(
    number=st.integers(0, 10**9).map(str),
    between=st.text(alphabet="/:*^+-=%,;'_~<>|\\ ", min_size=1, max_size=4),
    then=st.integers(0, 999).map(str),
)
def test_digits_behind_signs_are_never_left_out(number: str, between: str, then: str) -> None:
    answer = gsm8k.extract_solution(f"#### {number}{between}{then}")
    assert answer is None or (between == "," and answer == Decimal(number + then) and len(then) == 3)


@settings(deadline=None)
@given(text=st.text(alphabet="0123456789,.-$ ax", max_size=40), digit=st.integers(0, 9))
def test_the_last_number_does_not_depend_on_what_stands_before(text: str, digit: int) -> None:
    last = gsm8k.extract_solution(f"{text}{digit}", "flexible")
    for before in ("7", "1,234.5 and then $", "x" * 50, "9" * 50, "#### -", ",111" * 50):
        assert gsm8k.extract_solution(f"{before}; {text}{digit}", "flexible") == last


@pytest.mark.parametrize("method", ["strict", "flexible"])
@pytest.mark.parametrize(
    "unit",
    ["#", "####", "#### ", "####\n", "1,", ",111", "1.", "$", "-", " ", "#### 1x/", "#### 1/", "so $1,234 and\n"],
)
def test_long_responses(unit: str, method: Any) -> None:
    """Of 2 MB: what is not linear would take hours."""
    long = unit * (2_000_000 // len(unit))
    assert gsm8k.compute_score(long, "42", method)["acc"] == 0
    assert gsm8k.compute_score(f"{long}\n#### 42", "42", method)["acc"] == 1


def test_ground_truths() -> None:
    numpy = pytest.importorskip("numpy")
    truth: Any
    for truth in (42, 42.0, "42", " 42. ", "$42", Decimal(42), numpy.int64(42), numpy.float64(42.0), numpy.float32(42)):
        assert gsm8k.compute_score("#### 42", truth)["acc"] == 1
    for truth in (None, "", "x", "42/7", True, b"42", ["42"], float("nan"), float("inf"), {"target": "42"}):
        with pytest.raises(ValueError, match="ground truth of a GSM8K row must be a number, got"):
            gsm8k.compute_score("#### 42", truth)


def test_responses_that_are_no_text_are_told() -> None:
    for response in (b"#### 42", None, 42):
        with pytest.raises(TypeError, match=r"A response must be text, got .*: decode it"):
            default_compute_score("openai/gsm8k", response, "42")  # type: ignore[arg-type]
    rows = [RewardRow("openai/gsm8k", "#### 42/7", "42"), RewardRow("openai/gsm8k", "#### 42", "42")]
    assert RewardRunner(default_compute_score).score(rows).unparsable == (0,)
