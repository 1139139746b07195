r"""verl-facts 5.2, every reward string: what the original gives (`compat`), and what we give and why where we differ.

Responses that the original marks as wrong for reasons of layout alone are right here: a full stop, a currency sign,
leading zeros, a thousands comma, emphasis, or text behind the answer do not change which number was meant.
"""

import pytest
from verl_algos.rewards import boxed, geo3k, gsm8k, math_dapo, math_reward, search_qa

pytest.importorskip("math_verify", reason="the extra math is not installed")

FORMAT = 0.25  # told apart from 0 and 1


@pytest.mark.parametrize(
    ("response", "truth", "published", "ours"),
    [
        ("#### 42", "42", 1, 1),
        ("#### 1,234", "1234", 1, 1),
        ("#### 41\n#### 42", "42", 1, 1),
        ("#### -3", "-3", 1, 1),
        ("#### 42 apples", "42", 1, 1),
        ("#### 42.", "42", FORMAT, 1),  # the full stop of the sentence
        ("#### 42.0", "42", FORMAT, 1),  # equal as a number
        ("#### 042", "42", FORMAT, 1),  # equal as a number
        ("#### $42", "42", 0, 1),  # a currency sign
        ("####42", "42", 0, 1),  # no space behind the marker
        ("The answer is 42", "42", 0, 0),
        ("#### ,", "42", FORMAT, 0),  # no number, so no answer whose format could be paid
        ("#### 42" + "x" * 294, "42", 0, 1),  # no window hides an answer
        ("#### 42" + "x" * 293, "42", 1, 1),
    ],
)
def test_gsm8k_strict(response: str, truth: str, published: float, ours: float) -> None:
    assert gsm8k.compute_score(response, truth, format_score=FORMAT, compat=True)["score"] == published
    assert gsm8k.compute_score(response, truth, format_score=FORMAT)["score"] == ours


@pytest.mark.parametrize(
    ("response", "truth", "published", "ours"),
    [
        ("The answer is 42", "42", 1, 1),
        ("#### $42", "42", 1, 1),
        ("#### 1,234", "1234", 0, 1),  # the original keeps the comma
        ("42.", "42", 0, 1),  # and the full stop
    ],
)
def test_gsm8k_flexible(response: str, truth: str, published: float, ours: float) -> None:
    assert gsm8k.compute_score(response, truth, method="flexible", compat=True)["score"] == published
    assert gsm8k.compute_score(response, truth, method="flexible")["score"] == ours


@pytest.mark.parametrize(
    ("response", "truth", "published", "ours"),
    [
        (r"\boxed{\frac12}", r"\frac{1}{2}", 1, 1),
        (r"\boxed{0.5}", r"\frac{1}{2}", 1, 1),
        (r"\boxed{1/2}", r"\frac{1}{2}", 1, 1),
        (r"\boxed{x=5}", "5", 1, 1),
        (r"\boxed{50\%}", "50", 1, 1),
        (r"\boxed{3\text{ cm}}", "3", 1, 1),
        (r"\boxed{\dfrac{3}{4}}", r"\frac34", 1, 1),
        (r"\boxed{\sqrt3}", r"\sqrt{3}", 1, 1),
        (r"\boxed{(1,2)}", "(1, 2)", 1, 1),
        (r"\boxed{90^\circ}", "90", 1, 1),
        (r"\boxed{.5}", "0.5", 1, 1),
        (r"$\boxed 7$", "7", 1, 1),
        (r"\boxed{1} and then \boxed{2}", "2", 1, 1),
        (r"\boxed{1} and then \boxed{2}", "1", 0, 0),
        (r"\boxed{1,000}", "1000", 0, 1),  # a thousands comma
        (r"\boxed{5.0}", "5", 0, 1),  # equal as a number
        ("the answer is 5", "5", 0, 0),
        (r"\boxed{5", "5", 0, 0),  # a box that was cut off is not paid
        (r"\fbox{3}", "3", 0, 1),  # bug bank B04: a box like any other; the original raises and catches it
    ],
)
def test_math(response: str, truth: str, published: float, ours: float) -> None:
    for rule in (math_reward, boxed):
        assert rule.compute_score(response, truth, compat=True)["score"] == published
    assert math_reward.compute_score(response, truth)["score"] == ours


@pytest.mark.parametrize(("response", "ours"), [(r"\boxed{1,000}", 0), (r"\boxed{1000}", 1), (r"\fbox{1000}", 1)])
def test_boxed_is_a_comparison_of_texts(response: str, ours: float) -> None:
    """Without Math-Verify: 1,000 is another text than 1000, as in the original."""
    assert boxed.compute_score(response, "1000")["score"] == ours


@pytest.mark.parametrize(
    ("response", "truth", "published", "ours"),
    [
        ("Answer: 42", "42", "42", "42"),
        ("answer : $42$", "42", "42", "42"),
        (r"Answer: \boxed{42}", "42", "42", "42"),
        (r"so \boxed{42}", "42", "42", "42"),
        ("Answer: 1,234", "1234", "1234", "1234"),
        ("Answer: x = 5", "5", "5", "5"),
        ("Answer: 42 dollars", "42", "42", "42"),
        (r"Answer: \frac12", r"\frac{1}{2}", r"\frac{1}{2}", r"\frac{1}{2}"),
        ("I think 42", "42", "[INVALID]", None),  # None is told apart from a response that says [INVALID]
        (r"Answer: 41. \boxed{42}", "42", "41.42", "42"),  # the original glues both answers; the box is the final one
        ("Answer: 42.", "42", "42.", "42"),  # the full stop of the sentence
        ("**Answer:** 42", "42", "**42", "42"),  # emphasis
        ("Answer: 42\n" + "x" * 301, "42", "[INVALID]", "42"),  # no window hides an answer
    ],
)
def test_math_dapo(response: str, truth: str, published: str, ours: str | None) -> None:
    for compat, pred in ((True, published), (False, ours)):
        right = pred == truth
        assert math_dapo.compute_score(response, truth, compat=compat) == {
            "score": 1.0 if right else -1.0,
            "acc": right,
            "pred": pred,
        }


@pytest.mark.parametrize(
    ("response", "truth", "expected"),
    [
        ("<answer>The Beijing!</answer>", "Beijing", 1.0),
        ("<answer>Paris</answer> no: <answer>Beijing</answer>", "Beijing", 1.0),
        ("<answer>Beijing</answer> no: <answer>Paris</answer>", "Beijing", 0.0),
        ("Beijing", "Beijing", 0.0),
        ("<answer>Beijing</answer>" * 11, "Beijing", 0.25),
        ("<answer>Paris, France</answer>", "Paris", 0.0),
    ],
)
def test_search_exact_match_as_the_original(response: str, truth: str, expected: float) -> None:
    assert search_qa.compute_score(response, {"target": [truth]})["score"] == expected


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (r"<think>1 + 1</think> so \boxed{2}", 1.0),
        (r"so \boxed{2}", 0.9),
        (r"<think>1 + 1</think> so \boxed{3}", 0.1),
    ],
)
def test_geo3k_as_the_original(response: str, expected: float) -> None:
    assert geo3k.compute_score(response, "2")["score"] == pytest.approx(expected)
