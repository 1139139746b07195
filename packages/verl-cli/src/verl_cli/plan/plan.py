"""What a plan says, as plain values."""

from dataclasses import asdict, dataclass, field
from typing import Any

from verl_cli.plan.arithmetic import DynamicSampling, MicroBatches, Schedule, Updates
from verl_cli.plan.checks import Disk
from verl_cli.plan.data import Source
from verl_cli.plan.device import DeviceInfo
from verl_cli.plan.phases import MemoryPlan
from verl_cli.plan.placement import Role
from verl_cli.plan.sample import Sample


@dataclass(frozen=True)
class PromptLengths:
    """Tokens of the prompts that were looked at and that the run can use."""

    total: int
    """Rows of the training files."""
    looked_at: int
    usable: int
    shortest: int
    median: int
    longest: int


@dataclass(frozen=True)
class BatchPlan:
    """How one training step's prompts become optimiser steps."""

    prompts: int
    n: int
    """Responses of each prompt."""
    sequences: int
    greedy: int
    """Responses that are generated beside these sequences, only to compare with."""
    longest_sequence: int
    """Most tokens of prompt and response."""
    ranks: int
    sequences_per_rank: tuple[int, int]
    """The fewest and the most of a rank."""
    lengths: PromptLengths | None
    updates: list[Updates]
    reference: MicroBatches | None


@dataclass
class Plan:
    """A run before it starts. What could not be found out is None, and `problems` says why."""

    device: DeviceInfo
    roles: list[Role]
    batch: BatchPlan
    run_dir: str
    problems: list[str] = field(default_factory=list)
    """Everything that keeps the run from working, a paragraph each."""
    warnings: list[str] = field(default_factory=list)
    """What the user should look at; it does not keep the run from starting."""
    notices: list[str] = field(default_factory=list)
    dynamic_sampling: DynamicSampling | None = None
    """None where every prompt is trained on."""
    schedule: Schedule | None = None
    mix: list[Source] = field(default_factory=list)
    """The entries of data.train_files, where data.train_weights mixes them."""
    order_by: str | None = None
    """By what the rows of an epoch are ordered."""
    start_step: int = 0
    """Training steps that an earlier start of the run has done."""
    memory: MemoryPlan | None = None
    memory_unknown: str | None = None
    """Why there is no memory plan."""
    disk: Disk | None = None
    algorithm: str = ""
    """What the run maximises."""
    reward: str = ""
    """What scores the responses; empty where it cannot be loaded."""
    sample: Sample | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON holds it; sizes are bytes, batch sizes carry their unit in their name or its description."""
        plain = asdict(self)
        if self.memory is not None:
            for phase, told in zip(self.memory.phases, plain["memory"]["phases"], strict=True):
                told["total"] = phase.held.total
            plain["memory"]["peak_phase"] = self.memory.peak.phase
            plain["memory"]["peak"] = self.memory.peak.held.total
        return {"ok": self.ok, **plain}
