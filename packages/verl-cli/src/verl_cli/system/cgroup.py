"""What the control groups of this process allow, read from the kernel's files (versions 1 and 2, and both at once)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from verl_cli.system.system_files import text_of

#: Version 1 says "no limit" by the largest multiple of a page; no machine has as many bytes as this.
_NO_LIMIT_BYTES = 2**60


@dataclass(frozen=True)
class CgroupLimits:
    """Limits on this process; None where there is none, or where the system has no control groups."""

    #: CPU time per second of wall time, in cores.
    cpu_cores: float | None = None
    memory_bytes: int | None = None


def read_cgroup_limits(root: Path = Path("/")) -> CgroupLimits:
    """The tightest limits among the control groups that hold this process: its own and all around it.

    `root` is the folder that holds `proc` and the mount points, `/` on a real machine.
    """
    cores = list(_limits(root, "cpu", _cores_of_v2, _cores_of_v1))
    memory = list(_limits(root, "memory", _memory_of_v2, _memory_of_v1))
    return CgroupLimits(min(cores, default=None), int(min(memory)) if memory else None)


def _limits(
    root: Path, controller: str, v2: Callable[[Path], float | None], v1: Callable[[Path], float | None]
) -> Iterator[float]:
    for unified, folder in _folders(root, controller):
        limit = v2(folder) if unified else v1(folder)
        if limit is not None:
            yield limit


def _folders(root: Path, controller: str) -> Iterator[tuple[bool, Path]]:
    """(is version 2, folder) of the control groups of this process that may limit `controller`, innermost first."""
    own: dict[str, str] = {}
    for line in text_of(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        own |= dict.fromkeys(controllers.split(","), path)  # version 2 has one hierarchy and names no controller: ""
    for line in text_of(root / "proc/self/mountinfo").splitlines():
        mount, _, kind = line.partition(" - ")
        fields, (file_system, *rest) = mount.split(), kind.split() or [""]
        unified = file_system == "cgroup2"
        if not unified and not (file_system == "cgroup" and controller in rest[-1].split(",")):
            continue
        name = "" if unified else controller
        if name not in own:
            continue
        top = root / fields[4].lstrip("/")
        # Inside a container without a namespace of its own, the path is the host's, and the mount shows a part of it.
        shown = PurePosixPath(fields[3])
        inner = PurePosixPath(own[name])
        relative = inner.relative_to(shown) if inner.is_relative_to(shown) else PurePosixPath()
        for part in (relative, *relative.parents) if ".." not in relative.parts else (PurePosixPath(),):
            yield unified, top / part


def _cores_of_v2(folder: Path) -> float | None:
    quota, _, period = text_of(folder / "cpu.max").partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.strip().isdigit() and int(period) else None


def _cores_of_v1(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def _memory_of_v2(folder: Path) -> float | None:
    return _number(folder / "memory.max")


def _memory_of_v1(folder: Path) -> float | None:
    limit = _number(folder / "memory.limit_in_bytes")
    return limit if limit is not None and limit < _NO_LIMIT_BYTES else None


def _number(file: Path) -> int | None:
    text = text_of(file).strip()
    return int(text) if text.removeprefix("-").isdigit() else None
