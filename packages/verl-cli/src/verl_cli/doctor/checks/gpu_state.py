"""What others do with the GPUs, whether they are sound, and whether torch computes on them."""

from collections.abc import Iterator, Sequence

from verl_cli.doctor.facts.deep import DeepFacts
from verl_cli.doctor.facts.gpus import Gpu, GpuProcess
from verl_cli.doctor.finding import Finding, note, ok, problem

#: Less than this is a context, a desktop, or what the driver keeps for itself.
_NOTABLE_MIB = 1024


def judge_occupied(gpus: Sequence[Gpu], processes: Sequence[GpuProcess]) -> Finding:
    """Memory that others hold; nothing is done about it."""
    name = "GPU memory in use"
    held: dict[int, str] = {}
    for gpu in gpus:
        owners = [_told(process) for process in processes if process.gpu_uuid == gpu.uuid]
        if owners or (gpu.used_mib or 0) >= _NOTABLE_MIB:
            of = f" of {gpu.memory_mib:,}" if gpu.memory_mib else ""
            by = ", ".join(owners) or "processes that cannot be seen from here"
            held[gpu.index] = f"GPU {gpu.index}: {gpu.used_mib or 0:,}{of} MiB by {by}"
    if not held:
        return ok(name, "none")
    free = [str(gpu.index) for gpu in gpus if gpu.index not in held]
    choose = f", or use the others: CUDA_VISIBLE_DEVICES={','.join(free)}" if free else ""
    return note(
        name,
        "; ".join(held.values()),
        f"Nothing was ended. Wait for them, end those that are yours{choose}; or lower actor_rollout_ref.rollout"
        f".gpu_memory_utilization to what is free.",
    )


def _told(process: GpuProcess) -> str:
    about = [process.name.rpartition("/")[2], process.user, f"{process.used_mib:,} MiB" if process.used_mib else None]
    return f"pid {process.pid} ({', '.join(part for part in about if part)})"


def judge_mode(gpus: Sequence[Gpu], mig_instances: Sequence[str]) -> Iterator[Finding]:
    """MIG and memory errors."""
    split = [gpu.index for gpu in gpus if gpu.mig]
    if split:
        yield note(
            "MIG",
            f"{_numbered(split)} split into instances ({len(mig_instances)} in all); instances do not reach each "
            f"other through NCCL's peer-to-peer transports, and a process sees one",
            "Name one instance: CUDA_VISIBLE_DEVICES=MIG-... (`nvidia-smi -L`), and run with one rank.",
        )
    broken = [gpu for gpu in gpus if gpu.uncorrected_errors]
    if broken:
        counts = ", ".join(f"GPU {gpu.index}: {gpu.uncorrected_errors}" for gpu in broken)
        yield problem(
            "GPU memory errors",
            f"errors that could not be corrected since the driver was loaded: {counts}",
            "Results of these GPUs cannot be trusted and runs on them may stop: leave them out with "
            "CUDA_VISIBLE_DEVICES, and tell their administrator.",
        )
    unchecked = [gpu.index for gpu in gpus if gpu.ecc is False]
    if unchecked:
        yield note(
            "ECC",
            f"{_numbered(unchecked)} without error correction: a flipped bit goes unnoticed",
            "An administrator turns it on with `nvidia-smi -e 1` and a restart; long runs are safer with it.",
        )


def _numbered(indices: list[int]) -> str:
    return f"GPU{'s' if len(indices) > 1 else ''} {', '.join(map(str, indices))}"


def judge_deep(deep: DeepFacts, *, gpus_expected: bool) -> Finding:
    """What torch did when it was tried."""
    name = "torch at work"
    if deep.failure is not None:
        return problem(
            name,
            f"torch cannot be imported: {deep.failure}",
            "Install torch again: `pip install --force-reinstall torch`.",
        )
    if deep.wrong:
        return problem(
            name,
            f"a product of two matrices came out wrong on {', '.join(deep.wrong)}",
            "Leave these GPUs out with CUDA_VISIBLE_DEVICES, and tell their administrator.",
        )
    if gpus_expected and (deep.error is not None or not deep.devices):
        done = f"after {', '.join(deep.devices)}" if deep.devices else "computes on no GPU"
        return problem(
            name,
            f"torch {deep.version} {done}: {deep.error or 'it is built for the CPU only'}",
            "See the findings on the GPU driver and CUDA_VISIBLE_DEVICES above; on machines with NVSwitch the service "
            "nvidia-fabricmanager must run and be of the driver's version.",
        )
    if not deep.devices:
        return ok(name, f"torch {deep.version} can be imported and sees no GPU")
    return ok(name, f"torch {deep.version} multiplied matrices correctly on {', '.join(deep.devices)}")
