"""Decimal numbers as people and models write them: ``-1,234.50``, ``$42``, ``.5``."""

import re
from decimal import Decimal

# A comma separates thousands only between groups of three digits, so that "1,23" stays two numbers. A minus after a
# digit or letter is a hyphen or a subtraction. Nothing here can match the empty string or backtrack over more than
# one group, so searching is linear in the length of the text.
_NUMBER = re.compile(
    r"(?P<sign>(?<![0-9A-Za-z])[-+\u2212])?"
    r"(?:\$\x20?(?P<inner>[-\u2212])?)?"
    r"(?P<digits>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
)


def find_numbers(text: str) -> list[Decimal]:
    """Every number in `text`, in order."""
    return [_value(match) for match in _NUMBER.finditer(text)]


def number_at(text: str, position: int) -> Decimal | None:
    """The number that starts exactly at `position`, whatever follows it; None if there is none."""
    match = _NUMBER.match(text, position)
    return None if match is None else _value(match)


def parse_number(text: str) -> Decimal | None:
    """The number that `text` is, apart from white space around it and a final full stop; None if it is not one."""
    match = _NUMBER.fullmatch(text.strip().removesuffix("."))
    return None if match is None else _value(match)


def _value(match: re.Match[str]) -> Decimal:
    value = Decimal(match["digits"].replace(",", ""))
    negative = (match["sign"] in ("-", "\u2212")) != (match["inner"] is not None)
    return value.copy_negate() if negative else value


def canonical(value: Decimal) -> str:
    """The one way to write a number, so that equal predictions are equal text: ``42.0`` as ``42``."""
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").removesuffix(".")
    return "0" if text == "-0" else text
