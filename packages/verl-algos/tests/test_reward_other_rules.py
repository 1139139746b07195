"""Search, multiple choice, formats, overlong penalty and sums; bug bank B31."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from verl_algos.rewards import (
    Part,
    RewardRow,
    Score,
    WeightedSum,
    default_compute_score,
    formats,
    multiple_choice,
    overlong,
    score_all,
    search_qa,
)


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("<answer>The Beijing!</answer>", 1.0),
        ("<answer>Paris</answer> <answer> Beijing </answer>", 1.0),
        ("<answer>Beijing</answer> <answer>Paris</answer>", 0.0),
        ("Beijing", 0.0),
        ("<answer>Beijing", 0.0),
        ("<answer>Beijing</answer>" * 11, 0.25),
        ("<answer>Beijing</answer>" * 10, 1.0),
        ("<answer>Beijing, China</answer>", 0.0),
    ],
)
def test_search_exact_match(response: str, expected: float) -> None:
    """verl-facts 5.2, searchR1 EM."""
    for truth in ({"target": ["Peking", "Beijing"]}, {"target": "Beijing"}, "Beijing"):
        assert search_qa.compute_score(response, truth)["score"] == expected
    with pytest.raises(ValueError, match="must have a 'target'"):
        search_qa.compute_score(response, {"answer": "Beijing"})


def test_search_is_linear_in_the_response() -> None:
    for response in ("<answer>" * 20000, "<answer>" * 20000 + "</answer>", "</answer>" * 20000):
        assert search_qa.compute_score(response, "x")["score"] == 0


@pytest.mark.parametrize(
    ("response", "choice"),
    [
        ("The answer is (B).", "B"),
        ("Answer: B", "B"),
        ("**Answer:** C", "C"),
        ("Answer: A. No, the answer is D", "D"),
        ("the correct answer is **C**", "C"),
        ("the answer is option D", "D"),
        ("\\boxed{\\text{B}}", "B"),
        ("\\boxed{B. Paris}", "B"),
        ("<answer>d</answer>", "D"),
        ("(b)", "B"),
        ("B", "B"),
        ("$B$", "B"),
        ('"B"', "B"),
        ('The answer is "B".', "B"),
        ("the answer is `C`", "C"),
        ("B) Paris", None),
        ("A cat sat on it", None),
        ("I think A or B", None),
        ("answer is Apple", None),
        ("the answer is E", None),
        ("", None),
    ],
)
def test_multiple_choice(response: str, choice: str | None) -> None:
    assert multiple_choice.compute_score(response, "B", choices=4) == {
        "score": float(choice == "B"),
        "acc": float(choice == "B"),
        "pred": choice,
    }


def test_multiple_choice_ground_truths() -> None:
    for truth in (1, "1", "B", "(b)", " B."):
        assert multiple_choice.compute_score("B", truth, choices=["one", "two"])["score"] == 1
    assert multiple_choice.compute_score("A", "B", format_score=0.1)["score"] == 0.1
    for truth in (7, "C", "", "AB"):
        with pytest.raises(ValueError, match="must be one of AB"):
            multiple_choice.compute_score("B", truth, choices=2)


@pytest.mark.parametrize(
    ("response", "kept"),
    [
        ("<think>a</think>\n<answer>b</answer>", 1.0),
        ("  <think>a</think><answer>b</answer>\n", 1.0),
        ("x<think>a</think><answer>b</answer>", 0.0),
        ("<think>a</think> so <answer>b</answer>", 0.0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0.0),
        ("<answer>b</answer><think>a</think>", 0.0),
        ("<think>a</think>", 0.0),
        ("", 0.0),
    ],
)
def test_think_answer_tags(response: str, kept: float) -> None:
    assert formats.compute_score(response, score=0.5) == {"score": 0.5 * kept, "format": kept}


def test_format_by_pattern() -> None:
    assert formats.compute_score("a\nb #### 1", pattern=r".*#### \d+")["format"] == 1
    assert formats.compute_score("a\nb #### 1.", pattern=r".*#### \d+")["format"] == 0
    with pytest.raises(ValueError, match="is not a regular expression"):
        formats.compute_score("a", pattern="(")


@pytest.mark.parametrize(("tokens", "expected"), [(0, 0.0), (60, 0.0), (80, -0.25), (100, -0.5), (120, -0.75)])
def test_overlong_penalty(tokens: int, expected: float) -> None:
    config = overlong.OverlongConfig(enable=True, len=40, penalty_factor=0.5, log=True)
    assert overlong.penalty(tokens, 100, config) == pytest.approx(expected)
    (score,) = overlong.apply([Score(1.0, {"acc": 1.0})], [tokens], 100, config)
    assert score.score == pytest.approx(1 + expected)
    assert score.extra == {"acc": 1.0, "overlong_reward": pytest.approx(expected), "overlong": expected < 0}


def test_b31_no_overlong_config_changes_nothing() -> None:
    """Bug bank B31."""
    scores = [Score(1.0, {"acc": 1.0})]
    assert overlong.apply(scores, [5], 4) == scores
    assert overlong.apply(scores, [5], 4, overlong.OverlongConfig()) == scores


def test_overlong_errors() -> None:
    with pytest.raises(ValueError, match="must be at least 1 token"):
        overlong.OverlongConfig(enable=True)
    config = overlong.OverlongConfig(enable=True, len=5)
    with pytest.raises(ValueError, match="more than the 4 tokens"):
        overlong.apply([], [], 4, config)
    with pytest.raises(ValueError, match="1 scores and 0 response lengths"):
        overlong.apply([Score(1.0, {})], [], 4, config)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), "1", None, True])
def test_numbers_that_no_score_can_be_added_up_with(number: Any) -> None:
    with pytest.raises(ValueError, match=r"penalty_factor=.* must be at least 0: it is the penalty at the limit"):
        overlong.OverlongConfig(enable=True, len=5, penalty_factor=number)
    with pytest.raises(ValueError, match=r"Part\('right'\).weight=.* must be a finite number"):
        WeightedSum([Part("right", default_compute_score, number)])


def test_a_negative_penalty_is_refused() -> None:
    """It would be cut at 0, and punish nothing."""
    with pytest.raises(ValueError, match=r"penalty_factor=-1.0 must be at least 0"):
        overlong.OverlongConfig(enable=True, len=5, penalty_factor=-1.0)
    with pytest.raises(ValueError, match="must be at least 1 token"):
        overlong.OverlongConfig(enable=True, len=float("nan"))  # type: ignore[arg-type]


async def slow(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> Any:
    await asyncio.sleep(0)
    return {"score": 0.5, "pred": "slow", "judged": True}


def test_weighted_sums_plain_and_async() -> None:
    right = Part("right", default_compute_score)
    form = Part("form", default_compute_score, 0.2, {"rule": "format", "pattern": ".*#### 4"})
    rows = [RewardRow("openai/gsm8k", text, "4") for text in ("#### 4", "#### 4.0", "4")]
    scores = score_all(WeightedSum([right, form]), rows)
    assert [score.score for score in scores] == pytest.approx([1.2, 1.0, 0.0])
    assert scores[0].extra == {
        "right": 1.0,
        "form": 0.2 / 0.2,
        "acc": 1.0,
        "pred": "4",
        "no_marker": 0.0,
        "format": 1.0,
    }
    scores = score_all(WeightedSum([right, Part("slow", slow, -1.0)]), rows)
    assert [score.score for score in scores] == [0.5, 0.5, -0.5]
    assert scores[0].extra["pred"] == "4" and scores[0].extra["judged"] is True and scores[0].extra["slow"] == 0.5


@pytest.mark.parametrize("names", [[], ["a", "a"], ["acc"]])
def test_weighted_sums_need_names(names: list[str]) -> None:
    with pytest.raises(ValueError, match="give at least one, each a name of its own"):
        WeightedSum([Part(name, default_compute_score) for name in names])


DOCS = Path(__file__).parents[3] / "docs" / "algorithms" / "rewards.md"


@pytest.mark.skipif(not DOCS.exists(), reason="the package is tested without the repository around it")
def test_the_examples_of_the_documentation_run() -> None:
    for code in re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL):
        done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
        assert (done.stderr, done.returncode) == ("", 0)
        assert done.stdout.splitlines() == re.findall(r"# prints: (.*)", code)
