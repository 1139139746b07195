"""What `verl-cli doctor` looks at. Nothing here judges, and nothing here changes anything."""

import netrc
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from verl_cli.doctor.facts.deep import DeepFacts, gather_deep
from verl_cli.doctor.facts.gpus import Gpu, GpuFacts, GpuProcess, gather_gpus
from verl_cli.doctor.facts.host import HostFacts, Limit, SharedMemory, gather_host
from verl_cli.doctor.facts.network import NetworkFacts, Setting, gather_network
from verl_cli.doctor.facts.packages import Distribution, PackageFacts, TorchBuild, gather_packages
from verl_cli.doctor.facts.ray_sessions import RayFacts, RayProcess, RaySession, gather_ray
from verl_cli.doctor.facts.storage import Place, gather_storage
from verl_cli.system.system_files import home_folder

__all__ = [
    "DeepFacts",
    "Distribution",
    "Facts",
    "Gpu",
    "GpuFacts",
    "GpuProcess",
    "HostFacts",
    "Limit",
    "NetworkFacts",
    "PackageFacts",
    "Place",
    "RayFacts",
    "RayProcess",
    "RaySession",
    "Setting",
    "SharedMemory",
    "TorchBuild",
    "gather_facts",
]


@dataclass(frozen=True)
class Facts:
    """Everything that is judged."""

    environ: Mapping[str, str]
    packages: PackageFacts
    gpus: GpuFacts
    network: NetworkFacts
    host: HostFacts
    ray: RayFacts
    storage: tuple[Place, ...]
    #: Whether the user's netrc file holds a key of the wandb server.
    wandb_login: bool = False
    #: None: torch was not tried.
    deep: DeepFacts | None = None


def gather_facts(environ: Mapping[str, str] | None = None, *, root: Path = Path("/"), deep: bool = False) -> Facts:
    """Look at this machine. `root` is the folder that holds `proc`, `sys`, `dev` and `etc`.

    `deep` also imports torch in another process and uses each visible GPU for a moment.
    """
    environ = os.environ if environ is None else environ
    working_folder = Path.cwd()
    return Facts(
        environ=dict(environ),
        packages=gather_packages(working_folder),
        gpus=gather_gpus(environ, root),
        network=gather_network(environ, root),
        host=gather_host(root),
        ray=gather_ray(environ, root),
        storage=gather_storage(environ, working_folder),
        wandb_login=_has_wandb_login(environ),
        deep=gather_deep(environ) if deep else None,
    )


def _has_wandb_login(environ: Mapping[str, str]) -> bool:
    file = environ.get("NETRC") or str(home_folder(environ) / ".netrc")
    try:
        server = urlsplit(environ.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname
        return netrc.netrc(file).authenticators(server or "") is not None
    except (OSError, ValueError, netrc.NetrcParseError):  # no file, no address, or not in their form
        return False
