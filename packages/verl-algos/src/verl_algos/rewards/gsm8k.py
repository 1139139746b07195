"""GSM8K: the answer is the number after ``####`` (strict) or the last number of the response (flexible)."""

import re
from decimal import Decimal
from typing import Literal

from verl_algos.rewards.decimals import find_numbers, number_at, parse_number

Method = Literal["strict", "flexible"]

_MARKER = re.compile(r"####\s*")


def extract_solution(solution_str: str, method: Method = "strict") -> Decimal | None:
    """The response's answer, None if it has none; the whole response is searched and the last answer counts.

    Args:
        solution_str: the response.
        method: "strict" takes the number after the last ``####`` that a number follows, "flexible" the last number
            anywhere.

    Raises:
        ValueError: the method is neither.
    """
    if method == "strict":
        answers = [number_at(solution_str, marker.end()) for marker in _MARKER.finditer(solution_str)]
        return next((answer for answer in reversed(answers) if answer is not None), None)
    if method == "flexible":
        numbers = find_numbers(solution_str)
        return numbers[-1] if numbers else None
    raise ValueError(f"Unknown GSM8K method {method!r}: use 'strict' or 'flexible'.")


def compute_score(
    solution_str: str, ground_truth: str | int | float, method: Method = "strict", format_score: float = 0.0
) -> dict[str, float]:
    """Score 1 for the right number, `format_score` for another number where one was expected, 0 otherwise.

    Numbers are compared by value: "42.", "42.0", "$42" and "1,234" equal their number.

    Returns:
        ``score``; ``acc``, 1 for the right number; ``no_marker``, 1 if no answer could be extracted: a model that
        never writes ``####`` scores 0 in strict mode whatever it knows.

    Raises:
        ValueError: the ground truth is not a number.
    """
    truth = parse_number(str(ground_truth))
    if truth is None:
        raise ValueError(f"The ground truth of a GSM8K row must be a number, got {ground_truth!r}.")
    answer = extract_solution(solution_str, method)
    right = answer == truth
    score = 1.0 if right else 0.0 if answer is None else format_score
    return {"score": score, "acc": float(right), "no_marker": float(answer is None)}
