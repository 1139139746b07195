"""Numbers of other libraries in what reward functions return."""

import contextlib
import math
import numbers
from typing import Any

#: Types whose values never change, mean the same in any process, and are what they say.
PLAIN = frozenset({float, int, bool, str, type(None)})

#: Entries that no reward may report beside "score": ``reward/NAME`` is a count of the run's own, or the reward itself.
RESERVED_NAMES = frozenset({"timeout", "exception", "unparsable", "workers_replaced", "empty_responses", "reward"})

#: The largest finite float32.
FLOAT32_MAX = 3.4028234663852886e38


def unwrap(value: Any) -> Any:
    """Return the plain number in a numpy scalar or in an array or tensor of one element; anything else as it is."""
    if type(value) in (bool, int, float) or not callable(item := getattr(value, "item", None)):
        return value
    inner = value
    with contextlib.suppress(ValueError, RuntimeError, TypeError):  # of more elements, or an `item` of another meaning
        inner = item()
    if isinstance(inner, (bool, int, float)):
        return inner
    return float(inner) if isinstance(inner, numbers.Real) else value  # long double is its own item


def plain(value: Any) -> Any:
    """Return the plain number in a numpy scalar or a 0-d array or tensor; anything else as it is."""
    return unwrap(value) if getattr(value, "shape", None) == () else value


def is_finite(value: object) -> bool:
    """Whether `value` is a real number that float32 holds."""
    if not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(value) and abs(float(value)) <= FLOAT32_MAX
    except OverflowError:  # an integer or fraction beyond float64
        return False


def describe(value: object) -> str:
    """Return the beginning of `value` as text, and its type."""
    try:
        text = repr(str(value)[:80])
    except ValueError:  # Python writes integers of up to 4300 digits
        text = "a number of thousands of digits"
    return f"{text} ({type(value).__name__})"
