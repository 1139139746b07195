r"""The rule of DAPO (Yu et al. 2025, arXiv:2503.14476): the answer after ``Answer:`` or in a box scores 1, or else -1.

Equality is that of Minerva (Lewkowycz et al. 2022, arXiv:2206.14858, appendix D.1): both sides normalised as text.
"""

import re
from typing import Any

from verl_algos.rewards import truths
from verl_algos.rewards.boxed import MAX_ANSWER_CHARS, last_boxed
from verl_algos.rewards.decimals import canonical, parse_number

#: What the original reports as the prediction where there is no answer; only with `compat`.
INVALID = "[INVALID]"

_COMPAT_WINDOW_CHARS = 300
_COMPAT_BOX_WINDOW_CHARS = 100
_COMPAT_LINE = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)
# Marks of emphasis may stand around the word, the colon and the answer: **Answer:** 42
_LABEL = re.compile(r"answer[ \t*_]{0,8}:[ \t*_]{0,8}\n?[ \t]{0,8}(?=[^\n])", re.IGNORECASE)

_REPLACED = (
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    (r"\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
)
_REMOVED = (
    *("square", "ways", "integers", "dollars", "mph", "inches", "hours", "km", "units", "\\ldots", "sue", "points"),
    *("feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges", "students"),
    *(
        "childrentickets",
        "multiples",
        "\\text{s}",
        "\\text{.}",
        "\\text{\ns}",
        "\\text{}^2",
        "\\text{}^3",
        "\\text{\n}",
    ),
    *("\\text{}", r"\mathrm{th}", r"^\circ", r"^{\circ}", r"\;", r",\!", "{,}", '"', "\\dots"),
)
_IN_DOLLARS = re.compile(r"(.*?)(\$)(.*?)(\$)(.*)")
_COMMANDS = tuple(
    re.compile(rf"(\\{name}\{{)(.*?)(\}})") for name in ("text", "textbf", "overline", "boxed")
)  # their arguments are kept
_BARE_FRACTION = re.compile(r"(frac)([^{])(.)")
_BARE_SQRT = re.compile(r"(sqrt)([^{])")


def compute_score(solution_str: str, ground_truth: Any, compat: bool = False) -> dict[str, Any]:
    r"""Score 1 for the right answer and -1 for anything else.

    Args:
        solution_str: the response.
        ground_truth: the answer, as text or a number.
        compat: as the original: only the last 300 characters are looked at (the last 100 for a box), a full stop or
            emphasis belongs to the answer, and what follows it on its line is glued to it.

    Returns:
        ``score``; ``acc``, whether it is right; ``pred``, the normalised answer, None without one ("[INVALID]" with
        `compat`).

    Raises:
        TypeError: the ground truth is neither text nor a number.
        ValueError: it is empty.
    """
    text = truths.text_of(ground_truth, "math_dapo")
    if compat:
        pred: str | None = _compat_answer(solution_str)
        right = pred == normalise(text)
    else:
        answer = extract_solution(solution_str)
        # A word that the normalisation takes for a unit may be all that there is: "degrees" is not "students".
        pred = None if answer is None else normalise(answer) or answer
        truth = normalise(text) or text
        right = pred is not None and (pred == truth or _same_number(pred, truth))
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": pred}


def extract_solution(solution_str: str) -> str | None:
    """The answer in the last ``Answer:`` line (in its box, if there is one), or else in the last box; None without."""
    label = None
    for label in _LABEL.finditer(solution_str):  # noqa: B007 (the last one counts)
        pass
    if label is None:
        return last_boxed(solution_str)
    line = solution_str[label.end() : label.end() + MAX_ANSWER_CHARS + 100].partition("\n")[0]
    inside = last_boxed(line)
    if inside is not None:
        return inside
    text = line.strip().strip("*_ ").removesuffix(".").strip("*_ ")
    return text if text and len(text) <= MAX_ANSWER_CHARS else None


def normalise(answer: str) -> str:
    r"""Minerva's normalisation: without ``x =``, units, math delimiters and thousands commas; braced fractions."""
    answer = answer.rpartition("=")[2]
    for before, after in _REPLACED:
        answer = answer.replace(before, after)
    for expression in _REMOVED:
        answer = answer.replace(expression, "")
    answer = _IN_DOLLARS.sub(r"$\3$", answer)
    for command in _COMMANDS:
        answer = command.sub(r"\2", answer)
    answer = _BARE_FRACTION.sub(r"frac{\2}{\3}", answer)
    answer = _BARE_SQRT.sub(r"sqrt{\2}", answer).replace("$", "")
    if answer.replace(",", "").isdigit():
        answer = answer.replace(",", "")
    return answer.strip()


def _same_number(pred: str, truth: str) -> bool:
    left, right = parse_number(pred), parse_number(truth)
    return left is not None and right is not None and canonical(left) == canonical(right)


def _compat_answer(solution_str: str) -> str:
    window = solution_str[-_COMPAT_WINDOW_CHARS:]
    found = _COMPAT_LINE.findall(window)
    if found:
        return normalise(found[-1])
    inside = last_boxed(solution_str[-_COMPAT_BOX_WINDOW_CHARS:])
    return INVALID if inside is None else normalise(inside)
