r"""Exact rational numbers as people and models write them in mathematics.

``-1,234.50``, ``1.5e3``, ``1/2``, ``\frac{1}{2}``, ``\frac12``, ``2 1/2``, ``2\frac{1}{2}``.
"""

import re
from fractions import Fraction

_INTEGER = r"[0-9]{1,400}"
_DECIMAL = re.compile(
    rf"(?:[0-9]{{1,3}}(?:,[0-9]{{3}})+|{_INTEGER})(?:\.[0-9]{{0,400}})?(?:[eE][-+]?[0-9]{{1,3}})?|\.{_INTEGER}"
)
_SLASH = rf"({_INTEGER})\s*/\s*({_INTEGER})"
_BRACED = rf"\\[dtc]?frac\s*\{{\s*({_INTEGER})\s*\}}\s*\{{\s*({_INTEGER})\s*\}}"
_BARE = r"\\[dtc]?frac\s*([0-9])\s*([0-9])"
_FRACTION = re.compile(rf"{_SLASH}|{_BRACED}|{_BARE}")
_MIXED = re.compile(rf"({_INTEGER})(?:\s+(?:and\s+)?{_SLASH}|\s*{_BRACED}|\s*{_BARE})")


class ImproperError(ValueError):
    """An integer followed by a fraction of at least 1, as in ``4 10/3``, which is no number."""


def exact_number(text: str) -> Fraction | None:
    """The number that `text` is, white space around it apart; None if it is something else.

    Raises:
        ImproperError: it looks like a mixed number but its fraction is not a proper one.
    """
    text = text.strip()
    sign = 1
    if text[:1] in ("-", "+", "\u2212"):
        sign = 1 if text[0] == "+" else -1
        text = text[1:].lstrip()
    if (match := _DECIMAL.fullmatch(text)) is not None:
        return sign * Fraction(text.replace(",", "").removesuffix("."))
    if (match := _FRACTION.fullmatch(text)) is not None:
        numerator, denominator = _parts(match, 0)
        return sign * Fraction(numerator, denominator) if denominator else None
    if (match := _MIXED.fullmatch(text)) is not None:
        numerator, denominator = _parts(match, 1)
        if not 0 < numerator < denominator:
            raise ImproperError(f"{text[:80]!r} is an integer beside a fraction that is not between 0 and 1.")
        return sign * (int(match[1]) + Fraction(numerator, denominator))
    return None


def _parts(match: re.Match[str], skip: int) -> tuple[int, int]:
    numerator, denominator = (int(group) for group in match.groups()[skip:] if group is not None)
    return numerator, denominator
