"""The device that a run would compute on, found without torch."""

import importlib.util
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_cli.plan.placement import Device
from verl_cli.system.cgroup import read_cgroup_limits
from verl_cli.system.resources import visible_devices

_SMI_SECONDS = 10.0
_MIB = 1 << 20


@dataclass(frozen=True)
class DeviceInfo:
    """What is known of the device."""

    kind: Device
    name: str
    memory_bytes: int | None
    """All of its memory; of a CPU, what this process may use of the machine's."""
    used_bytes: int | None
    """Of a GPU: what other processes hold."""
    why: str
    """Why this device."""
    problem: str | None = None


@dataclass(frozen=True)
class Gpu:
    """A line of nvidia-smi."""

    index: str
    uuid: str
    name: str
    memory_bytes: int | None
    used_bytes: int | None


def find_device(wanted: str | None) -> DeviceInfo:
    """The device of `trainer.device`: null takes a GPU where there is one that torch can use."""
    if wanted == "cpu":
        return _cpu("trainer.device=cpu")
    found = first_visible(list_gpus(), os.environ)
    if found is not None and _torch_has_cuda():
        why = f"trainer.device={wanted}" if wanted else "a GPU is there (trainer.device is unset)"
        return DeviceInfo("cuda", found.name, found.memory_bytes, found.used_bytes, why)
    reason = (
        "nvidia-smi finds no GPU that this process may use" if found is None else "this torch is built without CUDA"
    )
    if wanted is None:
        return _cpu(f"{reason} (trainer.device is unset)")
    problem = (
        f"trainer.device=cuda, but {reason}. Set trainer.device=cpu, or use a machine whose GPU and driver this torch "
        f"build supports."
    )
    return DeviceInfo("cuda", "unknown GPU", None, None, "trainer.device=cuda", problem)


def list_gpus() -> list[Gpu]:
    """The GPUs of this machine; none where there is no working nvidia-smi."""
    fields = "index,uuid,name,memory.total,memory.used"
    try:
        asked = subprocess.run(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_SMI_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_smi(asked.stdout)


def parse_smi(text: str) -> list[Gpu]:
    """Parse index, UUID, name, and memory and use of it in MiB, a GPU a line."""
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5:
            memory, used = (int(cell) * _MIB if cell.isdecimal() else None for cell in cells[3:])
            gpus.append(Gpu(cells[0], cells[1], cells[2], memory, used))
    return gpus


def first_visible(gpus: list[Gpu], environ: Mapping[str, str]) -> Gpu | None:
    """The GPU that a process with this environment calls the first."""
    names = visible_devices(environ)
    if names is None:
        return gpus[0] if gpus else None
    if not names:
        return None
    if names[0].startswith("MIG-"):  # a slice, whose memory nvidia-smi's query of GPUs does not tell
        return Gpu("", names[0], "MIG slice", None, None) if gpus else None
    return next((gpu for gpu in gpus if gpu.index == names[0] or gpu.uuid.startswith(names[0])), None)


def _torch_has_cuda() -> bool:
    """Whether the installed torch is built for CUDA, from the file in which it says so."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    version = Path(spec.origin).with_name("version.py")
    text = version.read_text("utf-8") if version.is_file() else ""
    return re.search(r"^cuda\b[^=]*=\s*['\"]", text, re.MULTILINE) is not None


def _cpu(why: str) -> DeviceInfo:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    allowed = read_cgroup_limits().memory_bytes
    memory = machine if allowed is None else min(machine, allowed)
    return DeviceInfo("cpu", "CPU", memory, None, why)
