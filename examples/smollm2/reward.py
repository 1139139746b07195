"""A reward of one's own: GSM8K's answer wherever it stands, and a little for ending with a number at all.

A 135 M model answers about 3 % of GSM8K and never writes the marker ####, so the strict rule would pay it nothing and
there would be nothing to learn from.
"""

import re
from collections.abc import Mapping
from typing import Any

from verl_algos.rewards import gsm8k


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Pay 1 for the right number, and 0.1 where a number stands in the last 40 characters."""
    correct = gsm8k.compute_score(solution_str, ground_truth, method="flexible")["score"]
    ends_with_number = bool(re.search(r"\d", solution_str[-40:]))
    return {"score": correct + 0.1 * ends_with_number, "acc": correct, "ends_with_number": ends_with_number}
