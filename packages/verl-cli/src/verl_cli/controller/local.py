"""The controller for one device: workers are objects in this process, so that a breakpoint in an engine just works."""

import pickle
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch.distributed as dist
from verl_data import PackedBatch
from verl_engine import TrainEngine
from verl_rollout import RolloutEngine, SyncReport

from verl_cli.controller.interface import RoleSpec, WorkerGroup
from verl_cli.failures import during


class LocalWorkerGroup:
    """One worker in this process."""

    world_size = 1

    def __init__(self, role: str, worker: object, *, through_pickle: bool = False) -> None:
        self.role = role
        self.worker = worker
        self._through_pickle = through_pickle

    def call(self, method: str, share: PackedBatch | Sequence[Any] | None = None, **arguments: Any) -> Any:
        """Call the worker's method; there is one rank, so `share` is not divided."""
        shares = () if share is None else (share,)
        if self._through_pickle:
            shares, arguments = _wire((shares, arguments))
        result = getattr(self.worker, method)(*shares, **arguments)
        return _wire(result) if self._through_pickle else result


class LocalController:
    """Runs every role in this process.

    `through_pickle=True` sends every call and result through pickle, as Ray would: the tests use it to hold that
    nothing works here which could not work there.
    """

    def __init__(self, *, through_pickle: bool = False) -> None:
        self._through_pickle = through_pickle

    def start(self, roles: Mapping[str, RoleSpec]) -> dict[str, WorkerGroup]:
        """Build each role's worker in turn; what one raises has its role noted on it."""
        groups: dict[str, WorkerGroup] = {}
        for role, spec in roles.items():
            with during(f"start_{role}"):
                worker = spec.factory(**spec.arguments)
            groups[role] = LocalWorkerGroup(role, worker, through_pickle=self._through_pickle)
        return groups

    def sync_weights(self, trainer: WorkerGroup, rollout: WorkerGroup, version: int) -> SyncReport:
        """Hand the trainer's weights to the rollout engine beside it."""
        source = cast(TrainEngine, cast(LocalWorkerGroup, trainer).worker).weights()
        return cast(RolloutEngine, cast(LocalWorkerGroup, rollout).worker).update_weights(source, version)

    def shutdown(self) -> None:
        """Leave the process group that the engines of this process share."""
        if dist.is_initialized():
            dist.destroy_process_group()


def _wire(value: Any) -> Any:
    """Pickle and unpickle with arrays out of band, as they travel between processes: they come back read-only."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers])
