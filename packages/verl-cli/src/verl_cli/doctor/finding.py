"""What `verl-cli doctor` says about one thing it looked at."""

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; `remedy` says what to do, and is there exactly where the state is not ok.

    note: a run works, and this is worth knowing. problem: a run fails, hangs or is much slower than it should be.
    """

    name: str
    state: State
    seen: str
    remedy: str | None = None

    def __post_init__(self) -> None:
        """Raise ValueError where a finding that is not ok leaves the reader alone."""
        if (self.state == "ok") != (self.remedy is None):
            raise ValueError(f"The finding {self.name!r} is {self.state}, and its remedy is {self.remedy!r}.")


def ok(name: str, seen: str) -> Finding:
    """All is well."""
    return Finding(name, "ok", seen)


def note(name: str, seen: str, remedy: str) -> Finding:
    """A run works, and this is worth knowing."""
    return Finding(name, "note", seen, remedy)


def problem(name: str, seen: str, remedy: str) -> Finding:
    """A run fails, hangs or is much slower than it should be."""
    return Finding(name, "problem", seen, remedy)
