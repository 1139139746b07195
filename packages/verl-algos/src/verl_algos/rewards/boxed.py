r"""The answer in the last ``\boxed{...}`` or ``\fbox{...}`` of a response, compared as text.

Equality is that of the original's MATH rule: both sides are rewritten by the normalisation of Hendrycks et al. 2021
("Measuring Mathematical Problem Solving With the MATH Dataset") and must then be the same text. It needs no computer
algebra and never hangs; `verl_algos.rewards.math_reward` compares by value.
"""

from typing import Any

from verl_algos.rewards import hendrycks, truths

_COMMANDS = ("\\boxed", "\\fbox")

#: An answer beyond this many characters is not an answer: what a response that repeats itself may put into a box.
MAX_ANSWER_CHARS = 2000


def last_boxed(text: str) -> str | None:
    r"""The content of the last box, None if there is none or it is not closed; linear in the length of `text`.

    ``\boxed 7`` without braces holds what follows up to the next ``$`` or the end of the line.
    """
    start, command = max((text.rfind(command), command) for command in _COMMANDS)
    if start < 0:
        return None
    begin = start + len(command)
    while begin < len(text) and text[begin] == " ":
        begin += 1
    if text[begin : begin + 1] == "{":
        end = _closing_brace(text, begin)
        return None if end is None else text[begin + 1 : end].strip() or None
    if begin == start + len(command):  # \boxedx is another command
        return None
    return text[begin:].partition("$")[0].partition("\n")[0].strip() or None


def _closing_brace(text: str, begin: int) -> int | None:
    depth, position = 0, begin
    end = min(len(text), begin + MAX_ANSWER_CHARS + 2)
    while position < end:
        character = text[position]
        if character == "\\":  # \{ and \} do not count
            position += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return position
        position += 1
    return None


def is_equal(answer: str, ground_truth: str, compat: bool = False) -> bool:
    r"""Whether an answer that has been extracted is the ground truth, as normalised text.

    Texts of which nothing is left, such as ``\text{ yes}`` and ``\text{ no}``, are equal with `compat` alone.
    """
    if answer == ground_truth:
        return True
    try:
        normalised = hendrycks.normalise(answer)
        return normalised == hendrycks.normalise(ground_truth) and (normalised != "" or compat)
    except hendrycks.MalformedError:
        return False


def compute_score(
    solution_str: str, ground_truth: Any, format_score: float = 0.0, compat: bool = False
) -> dict[str, Any]:
    r"""Score 1 if the last box holds the ground truth, `format_score` if it holds something else, 0 without a box.

    Args:
        solution_str: the response alone: a box in the prompt earns nothing.
        ground_truth: the answer, itself in a box or not.
        format_score: for a wrong answer in a box.
        compat: as the original's MATH rule: ``\fbox`` is not taken (it is found, and fails to be unwrapped).

    Returns:
        ``score``, ``acc`` (1 if right), ``pred`` (the content of the box, None without one).

    Raises:
        TypeError: the ground truth is neither text nor a number.
        ValueError: it is empty.
    """
    truth = unboxed(truths.text_of(ground_truth, "boxed"))
    pred = last_boxed(solution_str)
    if compat and "\\boxed" not in solution_str:
        pred = None
    right = pred is not None and is_equal(pred, truth, compat)
    score = 1.0 if right else 0.0 if pred is None else format_score
    return {"score": score, "acc": float(right), "pred": pred}


def unboxed(truth: str) -> str:
    """The content of the last box of a ground truth, or the whole of it without white space and ``$`` around it."""
    inside = last_boxed(truth)
    return truth.strip() if inside is None else inside
