"""A training step as a list of named phases that say which columns they read and write."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from verl_data import PackedBatch, Prompt

from verl_cli.failures import during
from verl_cli.scoring import Scored
from verl_cli.system.stops import raise_if_noted


def _one_batch() -> Sequence[Prompt]:
    raise ValueError("This step was given one batch of prompts and no `draw` to get more. Make the Step with `draw`.")


@dataclass
class Step:
    """What one training step works on; the phases fill it in turn."""

    number: int
    """Counts from 1."""
    epoch: int
    prompts: Sequence[Prompt]
    """Prompt i is that of group i of the batch."""
    first_prompt: int = 0
    """The number of the first prompt among all that are drawn for this step: above 0 where it takes further ones."""
    draw: Callable[[], Sequence[Prompt]] = _one_batch
    """Takes the next batch of prompts from the data."""
    batches_per_epoch: int = 1
    """Batches of prompts in one pass over the data."""
    batch: PackedBatch = field(default_factory=lambda: PackedBatch(np.zeros(1, dtype=np.int64)))
    """Empty until the first phase has generated it."""
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each phase."""
    gen_tokens: int | None = None
    """Response tokens that the phase gen has sampled, where the batch has other rows by now."""
    scored: Scored | None = None
    """The rewards of what was sampled."""


@dataclass(frozen=True)
class Phase:
    """One named part of a step. `timing_s/<name>` is its wall time."""

    name: str
    run: Callable[[Step], None]
    reads: tuple[str, ...] = ()
    """Columns of the batch that must exist before it."""
    writes: tuple[str, ...] = ()
    """Columns that exist after it."""


def check_chain(phases: Sequence[Phase]) -> None:
    """Raise ValueError unless every column that a phase reads is written by an earlier one."""
    written: set[str] = set()
    for phase in phases:
        if missing := [column for column in phase.reads if column not in written]:
            raise ValueError(
                f"The phase {phase.name!r} reads {', '.join(missing)}, which no earlier phase writes "
                f"(phases in order: {', '.join(p.name for p in phases)}). Add the phase that produces it, or move it "
                f"forward."
            )
        written.update(phase.writes)


def run_phases(phases: Sequence[Phase], step: Step) -> None:
    """Run the phases in order, timing each, and hold them to what they declare.

    Whatever a phase raises has the phase's name and the step's number noted on it (`failures.place_of`).
    """
    for phase in phases:
        with during(phase.name, step.number):
            start = time.perf_counter()
            phase.run(step)
            raise_if_noted()  # before the next phase makes use of what an interrupted one left
            step.seconds[phase.name] = time.perf_counter() - start
            if missing := [column for column in phase.writes if column not in step.batch]:
                raise ValueError(f"The phase {phase.name!r} declares that it writes {', '.join(missing)} but did not.")
