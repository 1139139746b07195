"""The driver's side of the workers: one way to call them, whatever process or machine they run in."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from verl_data import PackedBatch
from verl_rollout import SyncReport


@dataclass(frozen=True)
class RoleSpec:
    """How a worker makes the object that plays a role: picklable, so that a worker elsewhere can do it as well."""

    factory: Callable[..., object]
    """The engine's class, or a function that builds it."""
    arguments: Mapping[str, Any]


class WorkerGroup(Protocol):
    """All ranks that play one role."""

    role: str
    world_size: int

    def call(self, method: str, share: PackedBatch | Sequence[Any] | None = None, **arguments: Any) -> Any:
        """Call `method` on every rank and return the merged result.

        `share` is divided over the ranks: a `PackedBatch` by balanced work, a list by its elements. What comes back is
        in the order of `share`: token columns and lists are put together, metric terms added up. `arguments` go to
        every rank as they are. Arrays arrive read-only. An exception of a worker is raised here.
        """
        ...


class Controller(Protocol):
    """Starts the workers and moves weights between them."""

    def start(self, roles: Mapping[str, RoleSpec]) -> dict[str, WorkerGroup]:
        """Start one worker group per role."""
        ...

    def sync_weights(self, trainer: WorkerGroup, rollout: WorkerGroup, version: int) -> SyncReport:
        """Bring the rollout's weights to the trainer's, verified."""
        ...

    def shutdown(self) -> None:
        """End the workers."""
        ...
