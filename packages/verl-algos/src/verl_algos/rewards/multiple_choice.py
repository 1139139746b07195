r"""Multiple choice: the letter that the response decides for.

In this order the last of these counts: ``\boxed{B}``, ``<answer>B</answer>``, ``answer is (B)`` or ``Answer: B``, and a
response that is the letter and nothing else. A letter somewhere in the text is not an answer.
"""

import re
import string
from collections.abc import Sequence
from typing import Any

from verl_algos.rewards.boxed import last_boxed
from verl_algos.rewards.search_qa import extract_solution as in_tag

_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\{([^{}]*)\}")
_SAID = re.compile(
    r"\banswer(?:[ \t*_]{1,4}is)?[ \t*_]{0,4}:?[ \t*_]{0,4}(?:option[ \t]|choice[ \t])?[ \t*_$'\"`]{0,4}"
    r"(?:\\boxed\{)?\(?([A-Za-z])\)?(?![A-Za-z0-9'])",
    re.IGNORECASE,
)
_LETTER = re.compile(
    r"[\s(*_$\[]{0,4}(?:option |choice )?\(?([A-Za-z])\)?(?:[.:)\]*_$\s].*)?", re.IGNORECASE | re.DOTALL
)
_GOES_ON = re.compile(r"\s+[a-z]")
_ALONE = re.compile(r"[\s(*_$'\"`\[]{0,4}([A-Za-z])[\s).:*_$'\"`\]]{0,4}")


def extract_choice(solution_str: str, letters: str = string.ascii_uppercase) -> str | None:
    """The chosen letter in upper case, one of `letters`; None if the response decides for none."""
    for text in (last_boxed(solution_str), in_tag(solution_str)):
        if text is not None:
            match = _LETTER.fullmatch(_TEXT.sub(r"\1", text))
            return None if match is not None and _is_word(match) else _known(match, letters)
    said = [match for match in _SAID.finditer(solution_str) if not _is_word(match)]
    if said:
        return _known(said[-1], letters)
    return _known(_ALONE.fullmatch(solution_str), letters)


def compute_score(
    solution_str: str, ground_truth: str | int, choices: Sequence[str] | int = 26, format_score: float = 0.0
) -> dict[str, Any]:
    """Score 1 for the right letter, `format_score` for another one, 0 where there is none.

    Args:
        solution_str: the response.
        ground_truth: a letter, or the 0-based number of the right choice.
        choices: the choices or their number; letters beyond them are no answer.
        format_score: for a wrong choice.

    Returns:
        ``score``; ``acc``, 1 if right; ``pred``, the letter, None where there is none.

    Raises:
        ValueError: the ground truth is not one of the choices.
    """
    letters = string.ascii_uppercase[: choices if isinstance(choices, int) else len(choices)]
    text = str(ground_truth).strip().strip("().").upper()
    truth = letters[int(text)] if re.fullmatch("[0-9]{1,2}", text) and int(text) < len(letters) else text
    if len(truth) != 1 or truth not in letters:
        raise ValueError(
            f"The ground truth of a multiple-choice row must be one of {letters}, got {ground_truth!r:.200}."
        )
    pred = extract_choice(solution_str, letters)
    score = 1.0 if pred == truth else 0.0 if pred is None else format_score
    return {"score": score, "acc": float(pred == truth), "pred": pred}


def _is_word(match: re.Match[str]) -> bool:
    """Whether the letter is the article or the pronoun of a sentence that goes on: "a cat", "I think"."""
    return match[1] in "aiI" and _GOES_ON.match(match.string, match.end(1)) is not None


def _known(match: re.Match[str] | None, letters: str) -> str | None:
    return None if match is None or (letter := match[1].upper()) not in letters else letter
