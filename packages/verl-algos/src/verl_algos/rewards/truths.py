"""What a row's ground truth may be, where it is one answer."""

import numbers
from typing import Any


def text_of(ground_truth: Any, rows: str) -> str:
    """The answer as text, white space around it apart; never empty.

    Args:
        ground_truth: text, or a number.
        rows: what the rows are called in errors: "mathematics".

    Raises:
        TypeError: it is neither.
        ValueError: it is empty, which every empty answer would equal.
    """
    if isinstance(ground_truth, bool) or not isinstance(ground_truth, str | numbers.Number):
        raise TypeError(
            f"The ground truth of a {rows} row must be text or a number, got {ground_truth!r:.200} "
            f"({type(ground_truth).__name__}): correct the row's reward_model.ground_truth."
        )
    if not (text := str(ground_truth).strip()):
        raise ValueError(
            f"The ground truth of a {rows} row is empty ({ground_truth!r:.200}): correct the row's "
            "reward_model.ground_truth."
        )
    return text
