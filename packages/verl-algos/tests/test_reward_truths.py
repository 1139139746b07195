"""Malformed ground truths and answers of which nothing is left, for every rule; names that a reward cannot report."""

from collections.abc import Callable
from typing import Any

import pytest
from verl_algos.rewards import (
    NAMED_RULES,
    RESERVED_NAMES,
    Part,
    RewardError,
    RewardLoadError,
    RewardModel,
    RewardRow,
    RewardRunner,
    Score,
    WeightedSum,
    boxed,
    code_tests,
    default_compute_score,
    formats,
    math_dapo,
    math_reward,
    multiple_choice,
    overlong,
    score_all,
    search_qa,
)

# --- search


@pytest.mark.parametrize("answer", ["", " ", "the", "a", "...", "?!", "the .", "An, the; a."])
def test_search_pays_nothing_for_an_answer_of_which_nothing_is_left(answer: str) -> None:
    for target in (["Beijing"], ["Beijing", ""], ["Beijing", "!"], "Beijing"):
        score = search_qa.compute_score(f"<answer>{answer}</answer>", {"target": target})
        assert (score["score"], score["acc"]) == (0.0, 0.0)
        assert (score["pred"] is None) == (not answer.strip())


def test_search_targets_that_are_articles_or_punctuation_alone() -> None:
    """A band is called The The, and another !!!: they are compared by what they are."""
    for target, others in (("The The", ["a", "the", "!!!"]), ("!!!", ["?", "the", "!"]), ("A", ["the", "an", "."])):
        assert search_qa.compute_score(f"<answer>{target.lower()}</answer>", {"target": [target]})["score"] == 1
        for other in others:
            assert search_qa.compute_score(f"<answer>{other}</answer>", {"target": [target]})["score"] == 0


@pytest.mark.parametrize(
    ("truth", "kind", "said"),
    [
        ({}, ValueError, "must have a 'target', got {}: give"),
        ({"answer": "x"}, ValueError, "must have a 'target'"),
        ({"target": None}, TypeError, r"must be text or a list of texts, got None \(NoneType\): write"),
        ({"target": 42}, TypeError, r"must be text or a list of texts, got 42 \(int\): write numbers as text"),
        ({"target": ["x", 42]}, TypeError, r"got 42 \(int\)"),
        ({"target": [None]}, TypeError, r"got None \(NoneType\)"),
        ({"target": []}, ValueError, r"holds no text, got \[\]: every answer would be wrong"),
        ({"target": ""}, ValueError, "holds no text, got ''"),
        ({"target": ["", " "]}, ValueError, "holds no text"),
        (None, TypeError, r"got None \(NoneType\)"),
        (7, TypeError, r"got 7 \(int\)"),
    ],
)
def test_search_refuses_what_is_no_target(truth: Any, kind: type[Exception], said: str) -> None:
    for response in ("<answer>None</answer>", "<answer></answer>", "no tag"):
        with pytest.raises(kind, match=said):
            search_qa.compute_score(response, truth)


# --- the other rules


@pytest.mark.parametrize("truth", ["", "  ", None, True, b"42", {"target": "42"}, object()])
@pytest.mark.parametrize(
    ("rule", "responses"),
    [
        ("arithmetic", ["", "None", "True"]),
        ("boxed", ["", "\\boxed{}", "\\boxed{None}", "\\boxed{True}"]),
        ("code", ["", "```python\npass\n```"]),
        ("geo3k", ["", "\\boxed{}", "\\boxed{None}"]),
        ("gsm8k", ["", "####", "#### None"]),
        ("math", ["", "\\boxed{}", "\\boxed{None}"]),
        ("math_dapo", ["", "Answer: ", "Answer: None", "Answer: $$"]),
        ("multiple_choice", ["", "Answer: None", "T"]),
    ],
)
def test_a_ground_truth_that_is_none_is_an_error_of_the_row(rule: str, responses: list[str], truth: Any) -> None:
    for response in responses:
        with pytest.raises((ValueError, TypeError), match=r"(of an?|A) .* row .*(must|is empty|cannot)|not JSON"):
            NAMED_RULES[rule](response, truth)


def test_texts_of_which_the_normalisation_leaves_nothing() -> None:
    """The original calls any two of them equal: as `compat` only."""
    yes, no = "\\boxed{\\text{ yes}}", "\\text{ no}"
    assert boxed.compute_score(yes, no)["score"] == 0 and boxed.compute_score(yes, "\\text{ yes}")["score"] == 1
    assert boxed.compute_score(yes, no, compat=True)["score"] == 1
    assert math_dapo.compute_score("Answer: degrees", "students") == {"score": -1.0, "acc": False, "pred": "degrees"}
    assert math_dapo.compute_score("Answer: students", "students") == {"score": 1.0, "acc": True, "pred": "students"}
    assert math_dapo.compute_score("Answer: degrees", "students", compat=True)["score"] == 1
    for empty in ("Answer: $$", "Answer: \\text{}", "Answer: ."):
        assert math_dapo.compute_score(empty, "42")["score"] == -1


def test_lists_of_ground_truths_of_mathematics() -> None:
    assert math_reward.compute_score("\\boxed{2}", ["1", 2])["score"] == 1
    with pytest.raises(ValueError, match="is an empty list: give one right answer"):
        math_reward.compute_score("\\boxed{2}", [])
    with pytest.raises(TypeError, match=r"must be text or a number, got None \(NoneType\)"):
        math_reward.compute_score("\\boxed{None}", ["1", None])


def test_multiple_choice_numbers_are_short_and_plain() -> None:
    for truth in ("9" * 5000, "\u0661", "01 0"):
        with pytest.raises(ValueError, match="must be one of ABCD"):
            multiple_choice.compute_score("B", truth, choices=4)


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ({"inputs": ["1"], "outputs": [""]}, "None of the 1 tests .* expects any output"),
        ({"inputs": ["1", "2"], "outputs": ["", "\n"]}, "None of the 2 tests .* expects any output"),
        ({"inputs": "12", "outputs": "12"}, r"The inputs of a code row must be a list .*, got '12' \(str\)"),
        ({"inputs": None, "outputs": ["1"]}, r"The inputs of a code row must be a list .* \(NoneType\)"),
        ({"inputs": ["1"], "outputs": 1}, r"The outputs of a code row must be a list .*, got 1 \(int\)"),
        ({"inputs": ["1"], "outputs": [None]}, r"must be a list .* got None"),
        ({"inputs": [1], "outputs": ["1"], "fn_name": "f"}, r"The arguments of a code row must be a list"),
    ],
)
def test_code_rows_that_are_malformed(tests: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        code_tests.compute_score("```python\npass\n```", tests)


def test_a_test_without_output_may_stand_among_others() -> None:
    assert code_tests.parse_tests({"inputs": ["1", "2"], "outputs": ["", "2"]}).outputs == ["", "2"]


def test_dispatch_and_formats_tell_what_they_got() -> None:
    with pytest.raises(ValueError, match="No reward rule for data_source None"):
        default_compute_score(None, "#### 42", "42")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"No reward rule is called \['gsm8k'\]"):
        default_compute_score("x", "#### 42", "42", rule=["gsm8k"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="The format pattern 5 is not a regular expression"):
        formats.compute_score("x", pattern=5)  # type: ignore[arg-type]


# --- names that a run reports itself


def reports(name: str) -> Callable[..., Any]:
    def function(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> Any:
        return {"score": 0.5, "acc": 1.0, name: 3.0}

    return function


class Reporter(RewardModel):
    """Reports `name`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def score(self, rows: Any) -> Any:
        return [{"score": 1.0, self.name: 2.0} for _ in rows]


ROWS = [RewardRow("x", "a", "b"), RewardRow("x", "b", "b")]


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_an_entry_under_a_name_of_the_runs_own_is_refused(name: str) -> None:
    for function in (reports(name), Reporter(name)):
        with pytest.raises(RewardError, match=f"returned an entry '{name}', which a run reports itself: give it anoth"):
            score_all(function, ROWS)
        with pytest.raises(RewardError, match=f"an entry '{name}'"):
            RewardRunner(function).score(ROWS)
    with RewardRunner(reports(name), num_workers=1) as runner, pytest.raises(RewardError, match=f"an entry '{name}'"):
        runner.score(ROWS)
    with pytest.raises(ValueError, match=f"other than .*{name}"):
        WeightedSum([Part(name, default_compute_score)])


def test_reserved_names_are_those_of_the_counts_and_no_published_entry() -> None:
    counts = RewardRunner(default_compute_score).score([]).metrics
    assert {name.removeprefix("reward/") for name in counts} <= RESERVED_NAMES
    for name in ("acc", "pred", "overlong_reward", "overlong", "format", "score_2", "Timeout", "num_turns"):
        assert score_all(reports(name), ROWS)[0].extra[name] == 3.0
    assert "score" not in RESERVED_NAMES


def test_overlong_entries_are_the_penaltys_own_where_it_logs() -> None:
    scores = [Score(1.0, {"overlong": 7.0})]
    quiet = overlong.OverlongConfig(enable=True, len=2)
    assert overlong.apply(scores, [9], 10, quiet)[0].extra == {"overlong": 7.0}
    with pytest.raises(ValueError, match=r"reports 'overlong', and so does overlong_buffer_cfg\.log"):
        overlong.apply(scores, [9], 10, overlong.OverlongConfig(enable=True, len=2, log=True))


def test_the_parts_of_a_sum_are_checked_when_it_is_made() -> None:
    with pytest.raises(RewardLoadError, match=r"takes \(text\), but it is called as"):
        WeightedSum([Part("right", lambda text: 1.0)])
    with pytest.raises(RewardLoadError, match="correct reward_kwargs"):
        WeightedSum([Part("right", reports("other"), 1.0, {"rule": "gsm8k"})])
