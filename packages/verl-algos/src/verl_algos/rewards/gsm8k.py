r"""GSM8K: the answer is the number after ``####`` (strict) or the last number of the response (flexible).

In strict mode the last ``####`` before a number decides, and the number must be the whole of what is marked:

- Currency, emphasis, code marks and math delimiters may stand around it: ``$42``, ``**42**``, ``\boxed{42}``.
- Behind it, a full stop, a percent sign, a unit, words, a new sentence and an explanation in parentheses are not read:
  ``42 dollars``, ``42%``, ``42. So she is right.``, ``42 (6 * 7)``.
- Digits behind it on the line that are set off by signs alone make it part of something else, which is no answer:
  ``42/7``, ``42 000``, ``42e3``, ``42:30``, ``42^2``, ``42, 43``, ``42 = 6 * 7``.
- So do words that make another number of it: numerals (``42 million``, ``42 dozen``, ``42k``, ``42 and a half``),
  arithmetic (``42 or 43``, ``42 times 3``, ``42 squared``), and a second quantity that is added to the first
  (``42 dollars and 50 cents``, ``42 hours 30 minutes``).
"""

import re
from collections import deque
from decimal import Decimal
from typing import Any, Literal

from verl_algos.rewards.decimals import NUMBER, canonical, last_number, parse_number, value_of

Method = Literal["strict", "flexible"]

# Both are linear: a repetition is never tried again with fewer characters, or is of few.
_OPENING = r"(?:[*_]{1,3}|`|\$(?=[$\s\\*])|\\[(\[]|\\(?:boxed|fbox|text(?:bf)?|math(?:bf|rm))\{)[ ]?"
_MARKED = re.compile(rf"####(?!#)\s*+(?:{_OPENING}){{0,6}}+{NUMBER}")
_GOES_ON = re.compile(
    r"""
    (?=[^\r\n])                            # most answers end here
    (?![*_$%]*+ [^\S\r\n]++ [(\[])           # an explanation in parentheses does not go on
    (?:
        (?: [^\w\r\n.]++ | _++ )*+ \.*+ \d    # signs and blanks, but for the full stop of a sentence, and a digit
      | [eE] [-+\u2212]? \d                   # an exponent
      | [^\S\r\n]*+ [xX] [^\S\r\n]*+ \d      # times
      | [^\S\r\n]*+ (?i:
            (?: hundred | thousand | million | billion | trillion | dozen | lakh | crore ) s? | k | bn | squared | cubed
          | (?: halve | third | fourth | fifth | sixth | seventh | eighth | ninth | tenth ) s
          | (?: hundred | thousand | million ) ths?
        )\b
      | [MB]\b                                # 42M is a number, 42m a length
      | [^\S\r\n]*+ [\u5341\u767e\u5343\u4e07\u842c\u4ebf\u5104]  # Chinese: ten to a hundred million
      | [^\S\r\n]++ (?i: and | or | to | plus | minus | times | over | point | (?:divided[ ]|multiplied[ ])?by )
        [^\S\r\n]++ [$(\\]? \d
      | [^\S\r\n]++ (?i: and [ ] (?:an?|one) [ ] (?:half|third|quarter|fourth|fifth) )\b
      | [^\S\r\n]++ [A-Za-z]++ ,? [^\S\r\n]++ (?i: and | or ) [^\S\r\n]++ [$(\\]? \d
      | [^\S\r\n]++ (?i: (?:dollar|pound|hour|hr|minute|min|year|month|week|day|feet|foot|meter|yard|lb|ft) s? )\b ,?
        [^\S\r\n]++ \d
      | [^\S\r\n]*+ \\ (?:[cdt]?frac|times|cdot|div|sqrt|pi)
      | [^\S\r\n]*+ [\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u209c\u2150-\u218b]  # superscripts, fractions
    )
    """,
    re.VERBOSE,
)

# What the original looks at and for.
_COMPAT_WINDOW_CHARS = 300
_COMPAT_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_COMPAT_FLEXIBLE = re.compile(r"-?[0-9.,]+")


def extract_solution(solution_str: str, method: Method = "strict") -> Decimal | None:
    """The response's answer, None if it has none; the whole response is searched and the last answer counts.

    Args:
        solution_str: the response.
        method: "strict" takes the number after the last ``####`` that a number follows, None if the number goes on
            (see the module); "flexible" the last number anywhere.

    Raises:
        ValueError: the method is neither.
    """
    if method == "strict":
        marked = _last_marked(solution_str)
        return None if marked is None or _GOES_ON.match(solution_str, marked.end()) else value_of(marked)
    if method == "flexible":
        return last_number(solution_str)
    raise _unknown(method)


def compute_score(
    solution_str: str,
    ground_truth: str | int | float,
    method: Method = "strict",
    format_score: float = 0.0,
    compat: bool = False,
) -> dict[str, Any]:
    """Score 1 for the right number, `format_score` for another number where one was expected, 0 otherwise.

    Numbers are compared by value: "42.", "42.0", "$42" and "1,234" equal their number.

    Args:
        solution_str: the response.
        ground_truth: a number, as text or as such.
        method: see `extract_solution`.
        format_score: for a wrong number.
        compat: score exactly as the original does: only the last 300 characters are looked at, the marker is ``####``
            and one space, and the answer without ``,`` and ``$`` must be the same text as the ground truth.

    Returns:
        ``score``; ``acc``, 1 for the right number; ``pred``, the number as text, None if there is none; ``no_marker``,
        1 if no answer could be extracted: a model that never writes ``####`` scores 0 in strict mode whatever it knows.

    Raises:
        ValueError: the ground truth is not a number (without `compat`), or the method is unknown.
    """
    pred: str | None
    if compat:
        pred = _compat_solution(solution_str, method)
        right = pred == str(ground_truth)
    else:
        exact = f"{Decimal(repr(float(ground_truth))):f}" if isinstance(ground_truth, float) else str(ground_truth)
        truth = parse_number(exact)  # a float may be written with an exponent, which no answer is
        if truth is None:
            raise ValueError(f"The ground truth of a GSM8K row must be a number, got {ground_truth!r:.200}.")
        answer = extract_solution(solution_str, method)
        right = answer == truth
        pred = None if answer is None else canonical(answer)
    score = 1.0 if right else 0.0 if pred is None else format_score
    return {"score": score, "acc": float(right), "pred": pred, "no_marker": float(pred is None)}


def _last_marked(text: str) -> re.Match[str] | None:
    place = text.rfind("####")
    if place < 0:
        return None
    if (match := _MARKED.match(text, place)) is not None:
        return match
    last = deque(_MARKED.finditer(text, 0, place), maxlen=1)
    return last[0] if last else None


def _compat_solution(solution_str: str, method: Method) -> str | None:
    window = solution_str[-_COMPAT_WINDOW_CHARS:]
    if method == "strict":
        found = _COMPAT_STRICT.findall(window)
        return found[-1].replace(",", "") if found else None
    if method == "flexible":
        found = _COMPAT_FLEXIBLE.findall(window)
        return next((text for text in reversed(found) if text != "."), found[0] if found else None)
    raise _unknown(method)


def _unknown(method: str) -> ValueError:
    return ValueError(f"Unknown GSM8K method {method!r}: use 'strict' or 'flexible'.")
