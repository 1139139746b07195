"""Question answering with search: the last ``<answer>`` must be one of the expected texts, as SQuAD compares them.

Source: the exact match of Rajpurkar et al. 2016 (SQuAD), as Search-R1 (Jin et al. 2025, arXiv:2503.09516) uses it.
"""

import re
import string
from collections.abc import Iterable, Mapping
from typing import Any

_OPEN, _CLOSE = "<answer>", "</answer>"
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)

#: A response that writes more opening or closing answer tags than this is paid a quarter.
MAX_TAGS = 10


def extract_solution(solution_str: str) -> str | None:
    """What stands in the last closed ``<answer>`` tag; None without one."""
    close = solution_str.rfind(_CLOSE)
    while close >= 0:  # every character is looked at once, however many tags there are
        earlier = solution_str.rfind(_CLOSE, 0, close)
        # A tag that opens within another is text of that: the first one after the last close counts.
        opening = solution_str.find(_OPEN, max(earlier, 0), close)
        if opening >= 0:
            return solution_str[opening + len(_OPEN) : close].strip()
        close = earlier
    return None


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles and repeated white space; with the first two where nothing else is."""
    text = text.lower()
    return _joined(_ARTICLES.sub(" ", text.translate(_WITHOUT_PUNCTUATION))) or _joined(text)


def _joined(text: str) -> str:
    return " ".join(text.split())


def compute_score(
    solution_str: str,
    ground_truth: Mapping[str, Any] | str | Iterable[str],
    score: float = 1.0,
    format_score: float = 0.0,
) -> dict[str, Any]:
    """Score `score` for an exact match, a quarter of it beyond `MAX_TAGS` tags, `format_score` for another answer.

    Args:
        solution_str: the response.
        ground_truth: a mapping whose "target" is the expected text or a list of texts of which any will do; or the
            text or list itself.
        score: for a right answer.
        format_score: for a wrong one in a tag.

    Returns:
        ``score``; ``acc``, 1 for a match; ``pred``, the normalised answer, None without a closed tag or with nothing
        in it.

    Raises:
        ValueError: the ground truth has no "target", or none with anything in it.
        TypeError: the target is neither text nor a list of texts.
    """
    targets = {normalise(target) for target in _targets(ground_truth)}
    answer = extract_solution(solution_str)
    if not answer:
        return {"score": 0.0, "acc": 0.0, "pred": None}
    pred = normalise(answer)
    right = pred in targets
    many = max(solution_str.count("<answer>"), solution_str.count("</answer>")) > MAX_TAGS
    value = format_score if not right else score / 4 if many else score
    return {"score": value, "acc": float(right), "pred": pred}


def _targets(ground_truth: Any) -> list[str]:
    if isinstance(ground_truth, Mapping):
        if "target" not in ground_truth:
            raise ValueError(
                f"The ground truth of a search row must have a 'target', got {ground_truth!r:.200}: give "
                '{"target": [TEXT, ...]}.'
            )
        ground_truth = ground_truth["target"]
    targets = (
        [ground_truth] if isinstance(ground_truth, str) or not isinstance(ground_truth, Iterable) else ground_truth
    )
    texts = list(targets)
    if others := [target for target in texts if not isinstance(target, str)]:
        raise TypeError(
            f"The target of a search row must be text or a list of texts, got {others[0]!r:.200} "
            f"({type(others[0]).__name__}): write numbers as text, and leave out rows without an answer."
        )
    if not any(text.strip() for text in texts):
        raise ValueError(
            f"The target of a search row holds no text, got {ground_truth!r:.200}: every answer would be wrong. Leave "
            "the row out, or give it the texts that are right."
        )
    return texts
