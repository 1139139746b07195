"""Decimal numbers as people and models write them: ``-1,234.50``, ``$42``, ``.5``."""

import re
from collections import deque
from decimal import Decimal

_DASHES = "-\u2010\u2011\u2212\u2013\ufe63\uff0d"  # hyphens, the minus of mathematics, and what is typed for it
_CURRENCY = r"(?:\\?\$|[\u00a3\u00a5\u20a9\u20ac\u20b9])"
# A comma separates thousands only between groups of three digits, so that "1,23" stays two numbers. A minus after a
# digit or letter is a hyphen or a subtraction. Nothing here can match the empty string or backtrack over more than
# one group, so searching is linear in the length of the text.
NUMBER = (
    rf"(?P<sign>(?<![0-9A-Za-z])[{_DASHES}+])?"
    rf"(?:{_CURRENCY}\x20?(?P<inner>[{_DASHES}])?)?"
    r"(?P<digits>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
)
_NUMBER = re.compile(NUMBER)
_DIGITS = "0123456789"
#: Characters before the digits that belong to a number: a sign, ``\$``, a space and a sign.
_PREFIX_CHARS = 5
#: Digits, commas and full stops without a blank that are looked through: what repeats itself for longer says no number.
_MOST_CHARS = 10_000


def last_number(text: str) -> Decimal | None:
    """The last number in `text`; None if there is none, or it is more than 10,000 characters long.

    Found from the end: what stands before it costs nothing.
    """
    end = max(map(text.rfind, _DIGITS)) + 1
    start = len(text[:end].rstrip(_DIGITS + ",."))
    if end - start > _MOST_CHARS:
        return None
    last = deque(_NUMBER.finditer(text, max(start - _PREFIX_CHARS, 0), end), maxlen=1)
    return value_of(last[0]) if last else None


def parse_number(text: str) -> Decimal | None:
    """The number that `text` is, apart from white space around it and a final full stop; None if it is not one."""
    match = _NUMBER.fullmatch(text.strip().removesuffix("."))
    return None if match is None else value_of(match)


def value_of(match: re.Match[str]) -> Decimal:
    """The number that a pattern with `NUMBER` in it has matched."""
    value = Decimal(match["digits"].replace(",", ""))
    negative = (match["sign"] not in (None, "+")) != (match["inner"] is not None)
    return value.copy_negate() if negative else value


def canonical(value: Decimal) -> str:
    """The one way to write a number, so that equal predictions are equal text: ``42.0`` as ``42``."""
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").removesuffix(".")
    return "0" if text == "-0" else text
