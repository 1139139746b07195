"""GSM8K: the answer is the number after ``####`` (strict) or the last number of the response (flexible)."""

import re
from decimal import Decimal
from typing import Any, Literal

from verl_algos.rewards.decimals import canonical, find_numbers, number_at, parse_number

Method = Literal["strict", "flexible"]

_MARKER = re.compile(r"####\s*")

# What the original looks at and for.
_COMPAT_WINDOW_CHARS = 300
_COMPAT_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_COMPAT_FLEXIBLE = re.compile(r"-?[0-9.,]+")


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
    raise _unknown(method)


def compute_score(
    solution_str: str,
    ground_truth: str | int | float,
    method: Method = "strict",
    format_score: float = 0.0,
    compat: bool = False,
) -> dict[str, Any]:
    """Score 1 for the right number, `format_score` for another number where one was expected, 0 otherwise.

    Numbers are compared by value: "42.", "42.0", "$42" and "1,234" equal their number.

    Args:
        solution_str: the response.
        ground_truth: a number, as text or as such.
        method: see `extract_solution`.
        format_score: for a wrong number.
        compat: score exactly as the original does: only the last 300 characters are looked at, the marker is ``####``
            and one space, and the answer without ``,`` and ``$`` must be the same text as the ground truth.

    Returns:
        ``score``; ``acc``, 1 for the right number; ``pred``, the number as text, None if there is none; ``no_marker``,
        1 if no answer could be extracted: a model that never writes ``####`` scores 0 in strict mode whatever it knows.

    Raises:
        ValueError: the ground truth is not a number (without `compat`), or the method is unknown.
    """
    pred: str | None
    if compat:
        pred = _compat_solution(solution_str, method)
        right = pred == str(ground_truth)
    else:
        exact = f"{Decimal(repr(ground_truth)):f}" if isinstance(ground_truth, float) else str(ground_truth)
        truth = parse_number(exact)  # a float may be written with an exponent, which no answer is
        if truth is None:
            raise ValueError(f"The ground truth of a GSM8K row must be a number, got {ground_truth!r}.")
        answer = extract_solution(solution_str, method)
        right = answer == truth
        pred = None if answer is None else canonical(answer)
    score = 1.0 if right else 0.0 if pred is None else format_score
    return {"score": score, "acc": float(right), "pred": pred, "no_marker": float(pred is None)}


def _compat_solution(solution_str: str, method: Method) -> str | None:
    window = solution_str[-_COMPAT_WINDOW_CHARS:]
    if method == "strict":
        found = _COMPAT_STRICT.findall(window)
        return found[-1].replace(",", "") if found else None
    if method == "flexible":
        found = _COMPAT_FLEXIBLE.findall(window)
        return next((text for text in reversed(found) if text != "."), found[0] if found else None)
    raise _unknown(method)


def _unknown(method: str) -> ValueError:
    return ValueError(f"Unknown GSM8K method {method!r}: use 'strict' or 'flexible'.")
