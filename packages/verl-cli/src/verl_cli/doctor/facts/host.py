"""Processor, memory and limits of this machine and this process."""

import locale
import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

from verl_cli.system.cgroup import read_cgroup_limits
from verl_cli.system.resources import CpuShare, cpu_share
from verl_cli.system.system_files import text_of


@dataclass(frozen=True)
class Limit:
    """A limit on this process; None is unlimited. A user may raise the soft one up to the hard one."""

    soft: int | None
    hard: int | None


@dataclass(frozen=True)
class SharedMemory:
    """The file system behind /dev/shm, in bytes."""

    total: int
    free: int


@dataclass(frozen=True)
class HostFacts:
    """None: the system does not tell, or has no such thing."""

    cpu: CpuShare
    #: Processes that ran or waited to run, averaged over the last minute.
    load: float | None = None
    memory_bytes: int | None = None
    available_bytes: int | None = None
    #: The limit of the control group (a container, a Slurm job).
    memory_limit_bytes: int | None = None
    shared_memory: SharedMemory | None = None
    open_files: Limit = Limit(None, None)
    #: Bytes that may be locked in memory, as InfiniBand does.
    locked_memory: Limit = Limit(None, None)
    processes: Limit = Limit(None, None)
    preferred_encoding: str = "utf-8"
    output_encoding: str = "utf-8"


def gather_host(root: Path = Path("/")) -> HostFacts:
    """Ask the system; `root` is the folder that holds `proc`, `dev` and the mount points."""
    memory = _memory(root / "proc/meminfo")
    return HostFacts(
        cpu=cpu_share(root),
        load=_load(),
        memory_bytes=memory.get("MemTotal"),
        available_bytes=memory.get("MemAvailable"),
        memory_limit_bytes=read_cgroup_limits(root).memory_bytes,
        shared_memory=_shared_memory(root / "dev/shm"),
        open_files=_limit(resource.RLIMIT_NOFILE),
        locked_memory=_limit(resource.RLIMIT_MEMLOCK),
        processes=_limit(resource.RLIMIT_NPROC),
        preferred_encoding=locale.getpreferredencoding(False),
        output_encoding=sys.stdout.encoding or "ascii",
    )


def _load() -> float | None:
    try:
        return os.getloadavg()[0]
    except OSError:
        return None


def _memory(file: Path) -> dict[str, int]:
    """/proc/meminfo in bytes; empty on a system without it."""
    cells = [line.replace(":", " ").split() for line in text_of(file).splitlines()]
    return {cell[0]: int(cell[1]) * 1024 for cell in cells if len(cell) >= 2 and cell[1].isdigit()}


def _shared_memory(folder: Path) -> SharedMemory | None:
    try:
        system = os.statvfs(folder)
    except OSError:
        return None
    return SharedMemory(system.f_blocks * system.f_frsize, system.f_bavail * system.f_frsize)


def _limit(kind: int) -> Limit:
    soft, hard = (None if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(kind))
    return Limit(soft, hard)
