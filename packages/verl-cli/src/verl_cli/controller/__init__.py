"""How the driver reaches the workers."""

from verl_cli.controller.interface import Controller, RoleSpec, WorkerGroup
from verl_cli.controller.local import LocalController

__all__ = ["Controller", "LocalController", "RoleSpec", "WorkerGroup"]
