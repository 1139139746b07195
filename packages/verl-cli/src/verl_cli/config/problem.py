"""What a problem of a configuration is."""

from typing import NamedTuple


class Problem(NamedTuple):
    """Something that cannot work."""

    reads: tuple[str, ...]
    """The keys that it is about."""
    text: str
