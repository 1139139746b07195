r"""Mathematics: the last box of the response compared with the ground truth by value (Math-Verify, extra ``math``).

What is decided here and not left to Math-Verify:

- The answer is the last ``\boxed`` or ``\fbox``, its braces balanced. A response without one has no answer: fragments
  of running text are never graded.
- Integers, decimals, fractions and mixed numbers are compared exactly, before anything else; ``4 10/3`` is no number.
- A percent sign may be left out: 28 is right where 28% is expected, and 0.28 too.
- ``{,}`` and the thin spaces of LaTeX before three digits separate thousands: ``1\,000`` is 1000. Numbers with a blank
  between them are none, and not their product.
- Everything else is parsed as one LaTeX expression, after plain-text mathematics (``pi/2``, ``exp(16)``, ``-2*pi``) is
  rewritten as LaTeX. Numbers that are equal only by Math-Verify's absolute tolerance are not equal.
- Words are compared as text, not as products of their letters.

Math-Verify's own time limits use SIGALRM, which works in main threads only; they are off. The limits of
`verl_algos.rewards.RewardRunner` count instead, and an answer of more than 2,000 characters is none.
"""

import logging
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from verl_algos.rewards import boxed, plain_math, truths
from verl_algos.rewards.extras import require
from verl_algos.rewards.rationals import ImproperError, exact_number

_PURPOSE = "The reward rule for mathematics (verl_algos.rewards.math_reward)"
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]{3,}")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\{([^{}\\]*)\}")
_THOUSANDS = re.compile(r"(?<=[0-9])(?:\{,\}|,?\\!|\\[,:;]|[\u2009\u202f])(?=[0-9]{3}(?![0-9]))")
_NUMBERS = re.compile(r"[-+]?[0-9.,]++(?:(?:\s|\\[,:;!]|~|\\ )++[0-9.,]++)++")
_PERCENT = re.compile(r"\s*(?:\\?%|\\text\{\s*percent\s*\}|percent)$", re.IGNORECASE)
_RELATIVE_TOLERANCE = 1e-6  # of numbers of which one is a decimal that was not compared exactly


def compute_score(
    solution_str: str, ground_truth: Any, format_score: float = 0.0, compat: bool = False
) -> dict[str, Any]:
    r"""Score 1 if the last box equals the ground truth, `format_score` if it holds something else, 0 without a box.

    Args:
        solution_str: the response alone.
        ground_truth: text, a number, or a list of texts of which any is right; in a box or ``$`` or not.
        format_score: for a wrong answer in a box.
        compat: as the original: `verl_algos.rewards.boxed` (normalised text, no Math-Verify).

    Returns:
        ``score``, ``acc`` (1 if right), ``pred`` (the content of the box, None without one).

    Raises:
        MissingExtraError: Math-Verify is needed and not installed.
        TypeError: the ground truth is neither text nor a number, nor a list of them.
        ValueError: it is empty, or cannot be parsed.
    """
    if compat:
        return boxed.compute_score(solution_str, ground_truth, format_score, compat=True)
    golds = ground_truth if isinstance(ground_truth, list | tuple) else [ground_truth]
    if not golds:
        raise ValueError("The ground truth of a mathematics row is an empty list: give one right answer at least.")
    golds = [truths.text_of(gold, "mathematics") for gold in golds]
    pred = boxed.last_boxed(solution_str)
    right = pred is not None and any(is_equal(pred, gold) for gold in golds)
    score = 1.0 if right else 0.0 if pred is None else format_score
    return {"score": score, "acc": float(right), "pred": pred}


def is_equal(answer: str, ground_truth: Any) -> bool:
    r"""Whether an answer that has been extracted (``5``, ``\frac12``, ``$x<3$``) equals the ground truth.

    The order matters: an interval may answer an inequality, not the other way round.

    Raises:
        MissingExtraError: Math-Verify is needed and not installed.
        TypeError: the ground truth is neither text nor a number.
        ValueError: it is empty, or cannot be parsed.
    """
    gold, pred = _bare(truths.text_of(ground_truth, "mathematics")), _bare(answer)
    if not gold:
        raise ValueError("The ground truth of a mathematics row is empty.")
    if not pred or len(pred) > boxed.MAX_ANSWER_CHARS:
        return False
    if gold == pred:
        return True
    gold, gold_percent = _without_percent(gold)
    pred, pred_percent = _without_percent(pred)
    try:
        gold_number = exact_number(gold)
        pred_number = exact_number(pred)
    except ImproperError:
        return False
    if gold_number is not None and pred_number is not None:
        equal = gold_number == pred_number
        if gold_percent != pred_percent:
            equal = equal or (gold_number == 100 * pred_number if gold_percent else pred_number == 100 * gold_number)
        return equal
    if _NUMBERS.fullmatch(gold) or _NUMBERS.fullmatch(pred):
        return False
    gold_words, pred_words = _words(gold), _words(pred)
    if gold_words is not None or pred_words is not None:
        return gold_words == pred_words
    return _verify(gold, pred)


def _bare(text: str) -> str:
    """Without a box, math delimiters, a full stop and white space around it, nor thousands separators of LaTeX."""
    text = boxed.unboxed(text)
    for opening, closing in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        stripped = text.removesuffix(".").rstrip()
        if stripped.startswith(opening) and stripped.endswith(closing) and len(stripped) > len(opening + closing):
            text = stripped[len(opening) : -len(closing)].strip()
    return _THOUSANDS.sub("", text.removesuffix(".").strip())


def _without_percent(text: str) -> tuple[str, bool]:
    match = _PERCENT.search(text)
    return (text, False) if match is None else (text[: match.start()], True)


def _words(text: str) -> str | None:
    """The words that `text` consists of, in lower case; None if it is something else."""
    text = " ".join(_TEXT.sub(r" \1 ", text).split())
    return text.casefold() if _WORDS.fullmatch(text) and not plain_math.is_expression(text) else None


def _verify(gold: str, pred: str) -> bool:
    math_verify = _math_verify()
    gold_parsed, pred_parsed = _parse(gold), _parse(pred)
    if not gold_parsed:
        raise ValueError(f"The ground truth of a mathematics row cannot be parsed: {gold[:200]!r}.")
    if not pred_parsed:
        return False
    right = math_verify.verify(gold=list(gold_parsed), target=list(pred_parsed), timeout_seconds=None)
    return bool(right) and _close(gold_parsed[0], pred_parsed[0])


@lru_cache(maxsize=4096)  # the ground truth of a group is the same n times
def _parse(text: str) -> tuple[Any, ...]:
    """The expression that `text` is, if it is one, and its text."""
    math_verify = _math_verify()
    parsed = math_verify.parse(
        f"${plain_math.to_latex(text)}$",
        extraction_config=[math_verify.LatexExtractionConfig()],
        parsing_timeout=None,
    )
    sympy = require("sympy", "math", _PURPOSE)
    # 1:00 and 12:00 are read as divisions by 0, which would all be equal.
    return tuple(entry for entry in parsed if entry not in (sympy.zoo, sympy.nan))


def _close(gold: Any, pred: Any) -> bool:
    """Whether two expressions that Math-Verify calls equal are so by relative tolerance, exact ones exactly."""
    sympy = require("sympy", "math", _PURPOSE)
    if isinstance(gold, sympy.Equality) and isinstance(pred, sympy.Equality):
        return _close(gold.rhs, pred.rhs) if gold.lhs == pred.lhs else True
    if isinstance(gold, sympy.FiniteSet | sympy.Tuple) and type(gold) is type(pred) and len(gold) == len(pred):
        return _all_close(gold.args, pred.args)
    if not all(isinstance(side, sympy.Expr) and side.is_number and side.is_finite for side in (gold, pred)):
        return True  # what has no value is not compared by value
    exact = not (gold.has(sympy.Float) or pred.has(sympy.Float))
    left, right = gold.doit(), pred.doit()
    if exact and left.is_Rational and right.is_Rational:
        return bool(left == right)
    digits = 40
    larger = max(abs(left.evalf(digits)), abs(right.evalf(digits)))
    difference = abs((left - right).evalf(digits))
    return bool(difference <= larger * (10.0 ** (8 - digits) if exact else _RELATIVE_TOLERANCE))


def _all_close(golds: Sequence[Any], preds: Sequence[Any]) -> bool:
    """Whether every gold has a close partner of its own; Math-Verify has paired them already, in any order."""
    left = list(preds)
    for gold in golds:
        partner = next((index for index, pred in enumerate(left) if _close(gold, pred)), None)
        if partner is None:
            return False
        del left[partner]
    return True


@lru_cache(maxsize=1)
def _math_verify() -> Any:
    module = require("math_verify", "math", _PURPOSE)
    for name in ("parser", "grader"):  # which would say in every process that the time limits are off
        logging.getLogger(f"math_verify.{name}").setLevel(logging.ERROR)
    return module
