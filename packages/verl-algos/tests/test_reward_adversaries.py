"""Functions, models and responses that would harm others: what comes of them is their own."""

import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_algos import kl, value_losses
from verl_algos.rewards import (
    RewardError,
    RewardModel,
    RewardResult,
    RewardRow,
    RewardRunner,
    code_tests,
    gsm8k,
    multiple_choice,
    search_qa,
)


def counts_calls(data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any]) -> float:
    """Writes into what it was given."""
    extra_info["calls"] = extra_info.get("calls", 0) + 1
    return float(extra_info["calls"])


class AwkwardError(Exception):
    """Cannot be unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


def odd_entries(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any) -> dict[str, Any]:
    """Reports what does not survive the way to another process."""
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    return {"score": 1.0, "error": AwkwardError("none", "x"), "nested": nested}


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_what_a_function_writes_into_extra_info_is_seen_by_no_other_row(num_workers: int) -> None:
    shared = {"index": 0}
    with RewardRunner(counts_calls, num_workers=num_workers) as runner:
        result = runner.score([RewardRow("d", "a", "b", shared)] * 12)
    assert [score.score for score in result.scores] == [1.0] * 12
    assert shared == {"index": 0}


def test_entries_that_cannot_be_sent_become_text() -> None:
    with RewardRunner(odd_entries, num_workers=1) as runner:
        result = runner.score([RewardRow("d", "a", "b")] * 3)
    assert not result.failures
    assert result.workers_replaced == 0
    assert "AwkwardError" in result.scores[0].extra["error"]
    assert "list" in result.scores[0].extra["nested"]


class Short(RewardModel):
    """Returns one result too few."""

    def score(self, rows: Sequence[RewardRow]) -> Sequence[RewardResult]:
        return [1.0 for _ in rows[1:]]


def test_a_model_that_loses_a_row_is_not_asked_again_row_by_row() -> None:
    with RewardRunner(Short()) as runner, pytest.raises(RewardError, match="returned 3 results for 4 rows"):
        runner.score([RewardRow("d", "a", "b")] * 4)


def test_a_case_cannot_trace_the_process_that_watches_it() -> None:
    code = "```python\nimport ctypes, os\nprint(ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0))\n```"
    result = code_tests.compute_score(code, {"inputs": ["1\n"] * 2, "outputs": ["-1\n"] * 2})
    assert result["score"] == 1.0


def test_an_integer_beyond_every_float_is_a_wrong_answer() -> None:
    code = "```python\ndef f(x): return 10 ** 400\n```"
    truth = {"fn_name": "f", "inputs": [[1]], "outputs": [1.5]}
    assert code_tests.compute_score(code, truth)["score"] == 0.0
    with pytest.raises(ValueError, match="max_tests=0 must be at least 1"):
        code_tests.compute_score(code, truth, continuous=True, max_tests=0)


_TAGS = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


@settings(deadline=None)
@given(st.lists(st.sampled_from(["<answer>", "</answer>", "a", " ", "<"]), max_size=12))
def test_the_last_closed_tag_is_the_one_that_a_search_from_the_front_finds_last(parts: list[str]) -> None:
    text = "".join(parts)
    found = _TAGS.findall(text)
    assert search_qa.extract_solution(text) == (found[-1].strip() if found else None)


@pytest.mark.parametrize("text", ["</answer>" + "<answer>" * 300_000, "<answer>" + "</answer>" * 300_000])
def test_many_tags_are_looked_at_once(text: str) -> None:
    """A search from every tag to the end would take hours."""
    assert search_qa.extract_solution(text) == (None if text.startswith("</") else "")


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("The answer is B, because the answer is a mammal.", "B"),
        ("\\boxed{a cat}", None),
        ("<answer>a dog</answer>", None),
        ("The answer is a cat.", None),
        ("Answer: I do not know", None),
        ("The answer is A because it barks.", "A"),
        ("the answer is (a)", "A"),
        ("Answer: a", "A"),
        ("<answer>b) a dog</answer>", "B"),
        ("Answer: I", "I"),
    ],
)
def test_an_article_or_a_pronoun_is_no_choice(text: str, choice: str | None) -> None:
    assert multiple_choice.extract_choice(text) == choice


@pytest.mark.parametrize(("text", "truth"), [("#### 0.00001", 1e-5), ("#### 1" + "0" * 22, 1e22), ("#### 2.5", 2.5)])
def test_a_float_may_be_the_ground_truth_however_python_writes_it(text: str, truth: float) -> None:
    assert gsm8k.compute_score(text, truth)["score"] == 1.0


def test_only_what_is_trained_has_a_gradient() -> None:
    values, returns, old = (torch.randn(1, 4, requires_grad=True) for _ in range(3))
    loss, _ = value_losses.compute(values=values, returns=returns, old_values=old)
    assert [gradient is None for gradient in gradients(loss, values, returns, old)] == [False, True, True]
    for name in ("k1", "k2", "k3", "k3+"):
        policy, reference = torch.randn(4, requires_grad=True), torch.randn(4, requires_grad=True)
        found = gradients(kl.penalty(name, policy, reference), policy, reference)
        assert [gradient is None for gradient in found] == [False, True]


def gradients(loss: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """The gradient of the sum with respect to each input; None where there is none."""
    return torch.autograd.grad(loss.sum(), inputs, allow_unused=True)
