"""Rewards for the form of a response, whatever it says. Only the response is looked at, never the prompt."""

import re
from functools import lru_cache
from typing import Any

_THINK_ANSWER = ("<think>", "</think>", "<answer>", "</answer>")


def has_tags(solution_str: str, tags: tuple[str, ...] = _THINK_ANSWER) -> bool:
    """Whether the response begins with the first tag, ends with the last, and has each exactly once, in this order.

    Between a closing tag and the next opening one there is only white space. White space around the response is
    allowed. Linear in the length of the response.
    """
    text = solution_str.strip()
    if any(text.count(tag) != 1 for tag in tags) or not text.startswith(tags[0]) or not text.endswith(tags[-1]):
        return False
    places = [text.index(tag) for tag in tags]
    return places == sorted(places) and all(
        not text[places[closing] + len(tags[closing]) : places[closing + 1]].strip()
        for closing in range(1, len(tags) - 1, 2)
    )


def matches(solution_str: str, pattern: str) -> bool:
    """Whether the whole response matches the regular expression; ``.`` matches new lines.

    A pattern that backtracks takes long on long responses: score it with a `RewardRunner` that has limits.

    Raises:
        ValueError: the pattern is not a regular expression.
    """
    return _compiled(pattern).fullmatch(solution_str) is not None


def compute_score(
    solution_str: str, ground_truth: Any = None, pattern: str | None = None, score: float = 1.0
) -> dict[str, Any]:
    """Score `score` if the response has the form, 0 otherwise.

    Args:
        solution_str: the response.
        ground_truth: ignored.
        pattern: for the whole response; None: ``<think>...</think><answer>...</answer>``, see `has_tags`.
        score: for the form.

    Returns:
        ``score`` and ``format``, 1 or 0.
    """
    kept = has_tags(solution_str) if pattern is None else matches(solution_str, pattern)
    return {"score": score if kept else 0.0, "format": float(kept)}


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.DOTALL)
    except (re.error, TypeError) as error:
        raise ValueError(f"The format pattern {pattern!r} is not a regular expression: {error}.") from error
