"""Ids of prompts, which say what sequences belong together; nothing here imports torch."""

from collections.abc import Iterable
from numbers import Integral


def numbered(ids: Iterable[object]) -> list[int]:
    """A number for each id, equal where the ids are equal: 0 for the first, 1 for the next other one, ...

    Raises:
        ValueError: one is neither a whole number nor a string: floating-point ids of one prompt may differ by rounding,
            and NaN differs from itself; flags and None are no ids.
    """
    numbers: dict[object, int] = {}
    return [numbers.setdefault(_checked(one), len(numbers)) for one in ids]


def _checked(one: object) -> object:
    if isinstance(one, bool) or not isinstance(one, Integral | str):
        raise ValueError(
            f"group holds {one!r}, a {type(one).__name__}, but its entries are the ids of prompts and are compared for "
            "equality: use whole numbers or strings."
        )
    return one
