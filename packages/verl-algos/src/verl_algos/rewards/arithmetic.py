"""Arithmetic with integers: the response must be the number and nothing else."""

import re
from decimal import Decimal

_INTEGER = re.compile(r"[+-]?[0-9]+")


def compute_score(solution_str: str, ground_truth: str | int) -> float:
    """Score 1 if the response, apart from white space around it, is exactly the integer `ground_truth`, 0 otherwise.

    Raises:
        ValueError: the ground truth is not an integer.
    """
    truth = _integer(str(ground_truth))
    if truth is None:
        raise ValueError(f"The ground truth of an arithmetic row must be an integer, got {ground_truth!r:.200}.")
    return float(_integer(solution_str) == truth)


def _integer(text: str) -> Decimal | None:
    text = text.strip()
    # Decimal rather than int: Python refuses to convert integers of more than 4300 digits, and a model may write one.
    return Decimal(text) if _INTEGER.fullmatch(text) else None
