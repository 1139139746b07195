"""Can torch use the GPUs that are there?"""

from collections.abc import Iterator, Mapping, Sequence

from verl_cli.doctor.checks.gpu_state import judge_deep, judge_mode, judge_occupied
from verl_cli.doctor.facts.deep import DeepFacts
from verl_cli.doctor.facts.gpus import Gpu, GpuFacts
from verl_cli.doctor.facts.packages import TorchBuild
from verl_cli.doctor.finding import Finding, note, ok, problem
from verl_cli.system.resources import device_kind, visible_devices

#: The oldest driver (major) for each major version of CUDA: NVIDIA, "CUDA Compatibility", minor version compatibility.
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}
#: CUDA 13 no longer compiles for GPUs before Turing.
OLDEST_CAPABILITY_OF_CUDA_13 = (7, 5)
#: Ampere: the first with bfloat16, in which models are trained on GPUs unless told otherwise.
OLDEST_CAPABILITY_WITH_BF16 = (8, 0)


def judge_gpus(
    facts: GpuFacts, torch: TorchBuild | None, environ: Mapping[str, str], deep: DeepFacts | None = None
) -> Iterator[Finding]:
    """The driver, the GPUs, and which of them a run sees; of those, what others hold and whether they are sound."""
    usable = usable_gpus(facts, environ)
    yield judge_driver(facts, torch)
    if facts.gpus:
        yield judge_devices(facts.gpus, usable, torch)
    yield judge_visible(facts, environ)
    if usable:
        yield judge_occupied(usable, facts.processes)
    yield from judge_mode(usable, facts.mig_instances)
    if deep is not None:
        expected = bool(usable) or (bool(facts.device_files) and visible_devices(environ) != [])
        yield judge_deep(deep, gpus_expected=expected)


def usable_gpus(facts: GpuFacts, environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs that a run sees, each once; with MIG every GPU that is split, as an instance does not tell its GPU."""
    visible = visible_devices(environ)
    if visible is None:
        return facts.gpus
    chosen: list[Gpu] = []
    for entry in visible:
        if not _exists(entry, facts):
            break
        kind = device_kind(entry)
        chosen += (
            [facts.gpus[int(entry)]]
            if kind == "number"
            else [gpu for gpu in facts.gpus if (gpu.uuid.startswith(entry) if kind == "GPU-" else gpu.mig)]
        )
    return tuple(dict.fromkeys(chosen))


def judge_driver(facts: GpuFacts, torch: TorchBuild | None) -> Finding:
    """There is a driver, and it is new enough for the CUDA that torch was built with."""
    if facts.failure is not None and not (facts.device_files or facts.driver):
        return note(
            "GPU driver",
            f"{facts.failure}; no driver is loaded here",
            "Runs use the CPU. If this machine has a GPU, install its driver; in a container, `docker run --gpus all`.",
        )
    if facts.failure is not None:
        return problem(
            "GPU driver",
            facts.failure,
            "If the driver was updated, restart the machine (or reload its kernel modules). In a container, use an "
            "image and runtime whose driver files are the host's (`docker run --gpus all`). A GPU that does not answer "
            "needs its administrator. Runs with trainer.device=cpu work meanwhile.",
        )
    if not facts.has_nvidia_smi:
        if facts.device_files:
            driver = f" (driver {facts.driver})" if facts.driver else ""
            return note(
                "GPU driver",
                f"{', '.join(facts.device_files)}{driver}, and no nvidia-smi to ask",
                "In a container, start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility; `verl-cli doctor --deep` "
                "shows whether torch can use the GPU.",
            )
        return ok("GPU driver", "no NVIDIA GPU: runs use the CPU")
    if not facts.gpus:
        return note(
            "GPU driver",
            "nvidia-smi lists no GPU",
            "Runs use the CPU. If you expect a GPU, ask for it where the job or container is started "
            "(`sbatch --gpus=1`, `docker run --gpus all`).",
        )
    cuda = torch.cuda if torch else None
    needed = OLDEST_DRIVER.get(int(cuda.partition(".")[0])) if cuda else None
    major = int(facts.driver.partition(".")[0]) if facts.driver and facts.driver[0].isdigit() else None
    if needed is not None and major is not None and major < needed:
        older = [version for version, driver in OLDEST_DRIVER.items() if driver <= major]
        build = f" or a torch built for CUDA {max(older)} (https://pytorch.org/get-started)" if older else ""
        return problem(
            "GPU driver",
            f"driver {facts.driver}, and torch is built for CUDA {cuda}, which needs {needed} or newer",
            f"Install a newer driver{build}. On data-centre GPUs NVIDIA's package cuda-compat serves too; `verl-cli "
            f"doctor --deep` then shows whether it does.",
        )
    return ok("GPU driver", f"driver {facts.driver}" + (f", torch is built for CUDA {cuda}" if cuda else ""))


def judge_devices(gpus: Sequence[Gpu], usable: Sequence[Gpu], torch: TorchBuild | None) -> Finding:
    """The GPUs that a run sees are of kinds that this torch has code for."""
    kinds: dict[str, int] = {}
    for gpu in gpus:
        kind = gpu.name + (f", {gpu.memory_mib / 1024:.0f} GiB" if gpu.memory_mib else "")
        kinds[kind] = kinds.get(kind, 0) + 1
    seen = "; ".join(f"{count} x {kind}" for kind, count in kinds.items())
    if not usable or torch is None or torch.rocm is not None:
        return ok("GPUs", seen)
    if torch.cuda is None:
        return problem(
            "GPUs",
            f"{seen}; torch {torch.version} is built for the CPU only and does not see them",
            "Install a torch with CUDA (https://pytorch.org/get-started); if you mean to use the CPU, set "
            "CUDA_VISIBLE_DEVICES= (empty).",
        )
    oldest = min((gpu.compute_capability for gpu in usable if gpu.compute_capability), default=None)
    told = f"{seen}; compute capability {oldest[0]}.{oldest[1]}" if oldest else seen
    if oldest and int(torch.cuda.partition(".")[0]) >= 13 and oldest < OLDEST_CAPABILITY_OF_CUDA_13:
        return problem(
            "GPUs",
            f"{told}, for which a torch built for CUDA {torch.cuda} has no code",
            "Hide this GPU with CUDA_VISIBLE_DEVICES, or install a torch built for CUDA 12.",
        )
    if oldest and oldest < OLDEST_CAPABILITY_WITH_BF16:
        return note(
            "GPUs", f"{told}, without bfloat16", "Train in float32 there, or choose a GPU of capability 8.0 or newer."
        )
    return ok("GPUs", told)


def judge_visible(facts: GpuFacts, environ: Mapping[str, str]) -> Finding:
    """Which GPUs a run may use, and why."""
    name, count = "usable GPUs", len(facts.gpus)
    text, visible = environ.get("CUDA_VISIBLE_DEVICES"), visible_devices(environ)
    allotted = environ.get("SLURM_GPUS_ON_NODE", "")
    if not facts.gpus:
        return ok(name, "none" + (f" (CUDA_VISIBLE_DEVICES={text})" if text is not None else ""))
    if text is None or visible is None:
        if allotted.isdigit() and 0 < int(allotted) < count:
            return note(
                name,
                f"{count} of {count}, although Slurm allotted {allotted} (SLURM_GPUS_ON_NODE) and hides none",
                "Start inside the job step (`srun`), which sets CUDA_VISIBLE_DEVICES, or set it to your GPUs.",
            )
        return ok(name, f"{count} of {count} (CUDA_VISIBLE_DEVICES is not set)")
    given = [part.strip() for part in text.split(",")]
    if not visible and device_kind(given[0]) is not None:
        return problem(
            name,
            f"none: CUDA_VISIBLE_DEVICES={text} names a device twice, and CUDA then shows none",
            "Name each device once.",
        )
    unknown = [entry for entry in visible if not _exists(entry, facts)]
    if unknown:
        there = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in facts.gpus)
        return problem(
            name,
            f"CUDA_VISIBLE_DEVICES={text} names {', '.join(unknown)}, and this machine has {there}; CUDA stops at the "
            f"first name that it does not know",
            "Correct or unset CUDA_VISIBLE_DEVICES.",
        )
    if not visible:
        return note(
            name,
            f"none of {count}: CUDA_VISIBLE_DEVICES={text!r} names no device",
            "Runs use the CPU. In Slurm, ask for GPUs (`--gpus=1`); otherwise unset CUDA_VISIBLE_DEVICES.",
        )
    if len(visible) < len(given):
        return problem(
            name,
            f"{len(visible)} of {count}: CUDA_VISIBLE_DEVICES={text} is read up to {given[len(visible)]!r}, which "
            f"names no device or is of another kind than the first",
            "Correct CUDA_VISIBLE_DEVICES: numbers, or identifiers as `nvidia-smi -L` shows them, one kind throughout.",
        )
    seen = f"{len(visible)} of {count} (CUDA_VISIBLE_DEVICES={text})"
    mixed = len({gpu.name for gpu in facts.gpus}) > 1
    numbers = device_kind(visible[0]) == "number"
    if mixed and numbers and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return note(
            name,
            f"{seen}; the GPUs are of different kinds, and CUDA counts the fastest first, unlike nvidia-smi",
            "Set CUDA_DEVICE_ORDER=PCI_BUS_ID, so that numbers mean what nvidia-smi shows.",
        )
    return ok(name, seen)


def _exists(entry: str, facts: GpuFacts) -> bool:
    kind = device_kind(entry)
    if kind == "number":
        return int(entry) < len(facts.gpus)
    if kind == "GPU-":  # CUDA takes the beginning of an identifier, too
        return any(gpu.uuid.startswith(entry) for gpu in facts.gpus)
    if not any(gpu.mig for gpu in facts.gpus):
        return False
    # Older drivers name an instance by its GPU (MIG-GPU-<uuid>/<gi>/<ci>) and do not list that form.
    listed = any(instance.startswith(entry) for instance in facts.mig_instances)
    return listed or not facts.mig_instances or entry.startswith("MIG-GPU-")
