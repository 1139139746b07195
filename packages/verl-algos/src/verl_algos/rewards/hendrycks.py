r"""The text normalisation of the MATH data set (Hendrycks et al. 2021): equal answers written alike become equal text.

Rewrites layout commands, units, ``x=``, ``\sqrt3``, ``\frac12`` and ``1/2`` into one form each.
"""

import re

_DROPPED = re.compile(r"\n|\\!|\\left|\\right|\^\{\\circ\}|\^\\circ|\\\$")
_UNIT = "\\text{ "
_SQRT = re.compile(r"\\sqrt(?!\{)(.)", re.DOTALL)
_SLASH = re.compile(r"(-?[0-9]+)/(-?[0-9]+)")


class MalformedError(ValueError):
    """The text cannot be normalised."""


def normalise(text: str) -> str:
    r"""Rewrite `text`; idempotent for what it understands.

    Raises:
        MalformedError: there is more than one unit, or ``\sqrt`` or ``\frac`` stands at the end.
    """
    text = text.replace("\\\\", "\\").replace("tfrac", "frac").replace("dfrac", "frac")
    text = _DROPPED.sub("", text)
    text = _without_unit(text)
    text = text.replace("\\%", "").replace(" .", " 0.").replace("{.", "{0.")
    if text.startswith("."):
        text = "0" + text
    left, equals, right = text.partition("=")
    if equals and "=" not in right and len(left) <= 2:  # x=5, k = 5
        text = right
    if text.endswith("\\sqrt"):
        raise MalformedError(f"\\sqrt of nothing in {text[:80]!r}.")
    text = _SQRT.sub(r"\\sqrt{\1}", text.strip()).replace(" ", "")
    text = _braced_fractions(text)
    if text == "0.5":
        return "\\frac{1}{2}"
    if (slash := _SLASH.fullmatch(text)) is not None and all(_plain_integer(part) for part in slash.groups()):
        return f"\\frac{{{slash[1]}}}{{{slash[2]}}}"
    return text


def _plain_integer(text: str) -> bool:
    """Whether the digits are how an integer is written: without leading zeros."""
    digits = text.removeprefix("-")
    return digits == "0" or not digits.startswith("0")


def _without_unit(text: str) -> str:
    before, unit, after = text.partition(_UNIT)
    if unit and _UNIT in after:
        raise MalformedError(f"More than one unit in {text[:80]!r}.")
    return before


def _braced_fractions(text: str) -> str:
    r"""``\frac12`` and ``\frac1{72}`` with braces; as it is where a fraction has no second part."""
    first, *rest = text.split("\\frac")
    parts = [first]
    for part in rest:
        if part.startswith("{"):
            parts.append("\\frac" + part)
            continue
        if len(part) < 2:
            return text
        numerator, denominator, after = part[0], part[1], part[2:]
        parts.append(f"\\frac{{{numerator}}}" + (part[1:] if denominator == "{" else f"{{{denominator}}}{after}"))
    return "".join(parts)
