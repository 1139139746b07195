"""The NVIDIA GPUs of this machine, as their driver tells them."""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_cli.doctor.facts.deadline import ask
from verl_cli.system.system_files import text_of, user_name

#: Without persistence mode the driver initialises every GPU for each question, which takes seconds on eight of them.
_SECONDS = 10.0
_FIELDS = (
    "index",
    "uuid",
    "memory.total",
    "memory.used",
    "driver_version",
    "mig.mode.current",
    "ecc.mode.current",
    "ecc.errors.uncorrected.volatile.total",
    "compute_cap",
    "name",
)
#: What drivers of the last ten years answer; the longer list fails as a whole where one field is not known.
_OLD_FIELDS = ("index", "uuid", "memory.total", "memory.used", "driver_version", "name")


@dataclass(frozen=True)
class Gpu:
    """One GPU. None: the driver does not tell."""

    index: int
    uuid: str
    name: str
    memory_mib: int | None = None
    used_mib: int | None = None
    mig: bool | None = None
    ecc: bool | None = None
    #: Memory errors that could not be corrected since the driver was loaded.
    uncorrected_errors: int | None = None
    compute_capability: tuple[int, int] | None = None


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU; `user` is None where its pid means nothing on this side of a container."""

    pid: int
    gpu_uuid: str
    name: str
    used_mib: int | None = None
    user: str | None = None


@dataclass(frozen=True)
class GpuFacts:
    """What there is to be known without CUDA."""

    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None
    processes: tuple[GpuProcess, ...] = ()
    #: Identifiers of MIG instances.
    mig_instances: tuple[str, ...] = ()
    #: Why nvidia-smi told nothing; None also where there is no nvidia-smi.
    failure: str | None = None
    has_nvidia_smi: bool = False
    #: Device files of GPUs: they show a GPU, or one lent to this container, even where nvidia-smi is missing.
    device_files: tuple[str, ...] = ()


def gather_gpus(environ: Mapping[str, str], root: Path = Path("/")) -> GpuFacts:
    """Ask nvidia-smi, if there is one; `root` is the folder that holds `dev` and `proc`."""
    device_files = tuple(sorted(f"/dev/{file.name}" for file in (root / "dev").glob("nvidia[0-9]*")))
    command = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if command is None:
        return GpuFacts(driver=_loaded_driver(root), device_files=device_files)

    def query(what: str, fields: tuple[str, ...]) -> tuple[list[list[str]], str | None]:
        answer = ask(
            [command, f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"],
            environ=environ,
            seconds=_SECONDS,
        )
        # The name is the last field, and the only one that may hold a comma.
        rows = [[cell.strip() for cell in line.split(",", len(fields) - 1)] for line in answer.text.splitlines()]
        return [row for row in rows if len(row) == len(fields)], answer.failure

    fields: tuple[str, ...] = _FIELDS
    rows, failure = query("gpu", fields)
    if failure is not None and "not a valid field" in failure:
        fields = _OLD_FIELDS
        rows, failure = query("gpu", fields)
    if failure is not None:
        return GpuFacts(driver=_loaded_driver(root), failure=failure, has_nvidia_smi=True, device_files=device_files)
    gpus, drivers = [], []
    for row in rows:
        told = dict(zip(fields, row, strict=True))
        index = _number(told["index"])
        if index is None:
            continue
        drivers.append(told["driver_version"])
        gpus.append(
            Gpu(
                index,
                told["uuid"],
                told["name"],
                _number(told["memory.total"]),
                _number(told["memory.used"]),
                _switch(told.get("mig.mode.current")),
                _switch(told.get("ecc.mode.current")),
                _number(told.get("ecc.errors.uncorrected.volatile.total")),
                _capability(told.get("compute_cap")),
            )
        )
    processes, _ = query("compute-apps", ("gpu_uuid", "pid", "used_memory", "process_name")) if gpus else ([], None)
    mig = ask([command, "-L"], environ=environ, seconds=_SECONDS).text if any(gpu.mig for gpu in gpus) else ""
    return GpuFacts(
        tuple(gpus),
        next(iter(drivers), None),
        tuple(
            GpuProcess(int(pid), uuid, name, _number(used), _owner(root / "proc" / pid))
            for uuid, pid, used, name in processes
            if pid.isdigit()
        ),
        tuple(re.findall(r"UUID: (MIG-[\w/-]+)", mig)),
        None,
        True,
        device_files,
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _switch(text: str | None) -> bool | None:
    return {"enabled": True, "disabled": False}.get((text or "").lower())


def _capability(text: str | None) -> tuple[int, int] | None:
    match = re.fullmatch(r"(\d+)\.(\d+)", text or "")
    return (int(match[1]), int(match[2])) if match else None


def _loaded_driver(root: Path) -> str | None:
    """The version of the kernel module, which does not need nvidia-smi."""
    match = re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text_of(root / "proc/driver/nvidia/version"))
    return match[1] if match else None


def _owner(folder: Path) -> str | None:
    try:
        return user_name(folder.stat().st_uid)
    except OSError:
        return None
