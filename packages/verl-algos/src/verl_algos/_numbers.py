"""Numbers that a caller sets, such as thresholds, coefficients and temperatures; nothing here imports torch."""

import math
from numbers import Integral, Rational, Real
from typing import TypeGuard

#: Numbers other than 0 are of a size between these: columns are computed in float32, and the quotients and products of
#: a number beyond would be 0 or infinite there. No loss has a use for one.
SMALLEST, LARGEST = 1e-30, 1e30


def in_words(minimum: float, maximum: float = math.inf, above_minimum: bool = False) -> str:
    """A range in words: ``within [0, 1]``, ``above 1``, ``at least 0``."""
    if math.isinf(minimum):
        return "a finite number"
    if math.isinf(maximum):
        return f"above {minimum:g}" if above_minimum else f"at least {minimum:g}"
    return f"within {'(' if above_minimum else '['}{minimum:g}, {maximum:g}]"


def in_range(value: object, minimum: float, maximum: float = math.inf, above_minimum: bool = False) -> bool:
    """Whether `value` is a number (text and flags are none) of a size that can be computed with, in the range."""
    if not is_number(value):
        return False
    return (value > minimum if above_minimum else value >= minimum) and value <= maximum


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is 0 or a number of a size within `SMALLEST` and `LARGEST`; text, flags, NaN and infinity are not."""
    if not is_real(value):
        return False
    size = abs(value if isinstance(value, int) else float(value))  # float16 does not hold the limits
    return size == 0 or SMALLEST <= size <= LARGEST


def is_real(value: object) -> TypeGuard[float]:
    """Whether it is an integer or a floating-point number of whatever size, Python's or NumPy's."""
    if isinstance(value, Rational):  # a Fraction is one, too, which torch does not take
        return isinstance(value, Integral) and not isinstance(value, bool)
    return isinstance(value, Real)


def checked(
    name: str,
    value: object,
    meaning: str,
    minimum: float = -math.inf,
    maximum: float = math.inf,
    above_minimum: bool = False,
) -> float:
    """`value` as a float (a whole number as it is).

    Raises:
        ValueError: it is no number, or out of range.
    """
    if in_range(value, minimum, maximum, above_minimum):
        return value if isinstance(value, int) else float(value)  # type: ignore[arg-type]
    raise ValueError(f"{name}={value} must be {in_words(minimum, maximum, above_minimum)}: {meaning}.{_why(value)}")


def _why(value: object) -> str:
    if not is_real(value):
        return f" It is a {type(value).__name__}, not a number."
    if math.isfinite(value) and not is_number(value):
        return f" Numbers other than 0 are of a size between {SMALLEST:g} and {LARGEST:g}: others vanish in float32."
    return ""
