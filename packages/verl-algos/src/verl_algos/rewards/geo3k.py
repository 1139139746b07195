r"""Geometry3K: 0.9 for the right answer in the last box, 0.1 for thinking before it."""

from typing import Any

from verl_algos.rewards import math_reward


def has_format(solution_str: str) -> bool:
    r"""Whether the response is ``<think>...</think>``, anything, a box, anything; linear in its length."""
    text = solution_str.strip()
    closing = text.find("</think>")
    if not text.startswith("<think>") or closing < 0:
        return False
    opening = text.find("\\boxed{", closing)
    return opening >= 0 and "}" in text[opening:]


def compute_score(solution_str: str, ground_truth: Any, format_weight: float = 0.1) -> dict[str, Any]:
    """Score ``(1 - format_weight) * right + format_weight * format``.

    Returns:
        ``score``; ``acc`` and ``pred`` as `math_reward.compute_score`; ``format``, 1 or 0.

    Raises:
        MissingExtraError: Math-Verify is needed and not installed.
    """
    result = math_reward.compute_score(solution_str, ground_truth)
    kept = float(has_format(solution_str))
    return result | {"score": (1 - format_weight) * result["acc"] + format_weight * kept, "format": kept}
