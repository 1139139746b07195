"""Where in a run something failed, noted on the exception while it passes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl_cli.config import RunConfig

_ATTRIBUTE = "_verl_place"

#: What goes on in the phases whose names alone say too little.
_WORDS = {
    "gen": "generating responses",
    "reward": "scoring responses",
    "filter_groups": "dynamic sampling",
    "old_log_prob": "the actor's log-probs",
    "ref": "the reference's log-probs",
    "values": "the critic's values",
    "adv": "advantages",
    "update_critic": "the critic's update",
    "update_actor": "the actor's update",
    "update_weights": "new weights for the rollout",
    "testing": "validation",
    "save_checkpoint": "writing a checkpoint",
}
_START = "start_"


@dataclass(frozen=True)
class Place:
    """Where a failure happened, as far as it is known."""

    phase: str | None = None
    """A phase of the step, `testing`, `save_checkpoint`, or `start_<role>` while a worker is being built."""
    step: int | None = None
    config: "RunConfig | None" = None
    """The run's resolved configuration: which keys apply depends on it."""
    log: Path | None = None
    """The file that holds the traceback."""

    @property
    def role(self) -> str | None:
        """The role whose worker was being built, if one was."""
        return self.phase.removeprefix(_START) if self.phase and self.phase.startswith(_START) else None

    @property
    def words(self) -> str:
        """The place as the end of a sentence, after a space; empty where nothing is known."""
        if self.phase is None:
            return ""
        if self.role is not None:
            return f" while the {self.role} was being started"
        meaning = f" ({_WORDS[self.phase]})" if self.phase in _WORDS else ""
        return f" in the phase {self.phase}{meaning}" + ("" if self.step is None else f" of step {self.step}")


def place_of(error: BaseException) -> Place:
    """What is noted on `error`, or on what it was raised from."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        place = vars(current).get(_ATTRIBUTE)
        if isinstance(place, Place):
            return place
        current = current.__cause__
    return Place()


def note(error: BaseException, **known: Any) -> None:
    """Add what is known about the place of `error`; what was noted before, further inside, stays."""
    old = place_of(error)
    new = {name: value for name, value in known.items() if getattr(old, name) is None}
    vars(error)[_ATTRIBUTE] = Place(**{**vars(old), **new})


@contextmanager
def during(phase: str, step: int | None = None) -> Iterator[None]:
    """Note the phase (and step) on whatever is raised inside."""
    try:
        yield
    except BaseException as error:
        note(error, phase=phase, step=step)
        raise
