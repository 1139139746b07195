"""How the driver reaches the workers."""

from verl_cli.controller.interface import Controller, RoleSpec, WorkerGroup
from verl_cli.controller.local import LocalController, LocalWorkerGroup

__all__ = ["Controller", "LocalController", "LocalWorkerGroup", "RoleSpec", "WorkerGroup"]
