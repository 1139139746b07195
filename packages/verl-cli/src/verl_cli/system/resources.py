"""Which GPUs and CPU cores a run may use, and whether what it asks for can be placed: numbers and environment only."""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_cli.system.cgroup import read_cgroup_limits

#: Slurm's allotment of CPUs on this node, the narrower first: of one task, then of the whole job.
_SLURM_CPUS = ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE")
#: Ray counts resources in ten-thousandths; so do we, which keeps the arithmetic exact.
_UNITS = 10_000


def visible_devices(environ: Mapping[str, str]) -> list[str] | None:
    """The devices that CUDA_VISIBLE_DEVICES names, as text: numbers, or identifiers (GPU-..., MIG-...).

    None: it is not set, and every device is visible. As CUDA reads it: the list ends before the first entry that names
    no device (-1, or NoDevFiles, which Slurm sets where a job has no GPU) or is of another kind than the first; a
    device named twice hides all of them.
    """
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    devices: list[str] = []
    for entry in (part.strip() for part in text.split(",")):
        kind = device_kind(entry)
        if kind is None or (devices and kind != device_kind(devices[0])):
            break
        devices.append(entry)
    return devices if len(set(devices)) == len(devices) else []


def device_kind(entry: str) -> str | None:
    """How an entry of CUDA_VISIBLE_DEVICES names a device: "number", "GPU-", "MIG-", or None if it names none."""
    if entry.isascii() and entry.isdigit():
        return "number"
    return next((prefix for prefix in ("GPU-", "MIG-") if entry.startswith(prefix)), None)


def cpu_limit(environ: Mapping[str, str], *, explicit: int | None = None) -> int | None:
    """The CPU cores that Ray may count on this node: `explicit` if given, else Slurm's allotment, else None.

    None leaves the choice to Ray, which takes every core of the host. Raises ValueError for a count below 1 and for an
    allotment that is not a number.
    """
    if explicit is not None:
        if explicit < 1:
            raise ValueError(f"A run needs at least one CPU core, and {explicit} were asked for.")
        return explicit
    source = cpu_limit_source(environ)
    if source is None:
        return None
    text = environ[source].strip()
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError(
            f"{source}={text!r} is not a number of CPU cores. Slurm sets it for a job; unset it, or set it to the "
            f"number of cores that the job may use."
        )
    return int(text)


def cpu_limit_source(environ: Mapping[str, str]) -> str | None:
    """The variable of Slurm that `cpu_limit` reads, or None outside a job."""
    return next((name for name in _SLURM_CPUS if environ.get(name)), None)


@dataclass(frozen=True)
class CpuShare:
    """The CPU cores of the host, and how many this process may use of them."""

    host: int
    #: Cores that the scheduler may put this process on (taskset, cpusets).
    affinity: int
    #: CPU time per second that its control group allows, in cores (docker --cpus, Kubernetes limits); None: no limit.
    quota: float | None = None

    @property
    def cores(self) -> int:
        """Whole cores that this process can keep busy, at least one."""
        return self.affinity if self.quota is None else max(1, min(self.affinity, int(self.quota)))


def cpu_share(root: Path = Path("/")) -> CpuShare:
    """What the system lets this process use; `root` as in `read_cgroup_limits`."""
    host = os.cpu_count() or 1
    # macOS has no affinity.
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else host
    return CpuShare(host, affinity, read_cgroup_limits(root).cpu_cores)


@dataclass(frozen=True)
class Unplaceable:
    """Bundles (their positions in the request) that no node can hold, and why in one sentence."""

    bundles: tuple[int, ...]
    reason: str

    def __str__(self) -> str:
        return self.reason


def unplaceable(bundles: Sequence[Mapping[str, float]], nodes: Sequence[Mapping[str, float]]) -> list[Unplaceable]:
    """What keeps `bundles` from being placed on `nodes`; an empty list if each finds its place.

    Both map a resource (CPU, GPU, ...) to an amount; a resource that is not named is 0. A bundle lies on one node, so
    each is compared with each node, not with totals. Those that fit alone are then placed together by first-fit
    decreasing (largest share of a total first, the first node that holds it). That is exact for equal bundles; unequal
    ones it may refuse although a cleverer packing exists, which a scheduler as greedy as Ray's would not find either.
    Raises ValueError for an amount that is negative or not finite.
    """
    needs = [_in_units(bundle) for bundle in bundles]
    holds = [_in_units(node) for node in nodes]
    equal: dict[tuple[tuple[str, int], ...], list[int]] = defaultdict(list)
    for position, need in enumerate(needs):
        equal[tuple(sorted(need.items()))].append(position)
    problems = []
    for content, positions in equal.items():
        reason = _why_no_node(dict(content), holds)
        if reason is not None:
            verb = "needs" if len(positions) == 1 else "need"
            problems.append(Unplaceable(tuple(positions), f"{_named(positions, len(needs))} {verb} {reason}"))
    alone = {position for problem in problems for position in problem.bundles}
    others = {position: need for position, need in enumerate(needs) if position not in alone}
    homeless = _first_fit_decreasing(others, holds)
    if homeless:
        problems.append(Unplaceable(tuple(homeless), _why_not_together(homeless, others, holds)))
    return problems


def _in_units(amounts: Mapping[str, float]) -> dict[str, int]:
    for name, amount in amounts.items():
        if not 0 <= amount < float("inf"):
            raise ValueError(f"The amount of {name} must be a number of at least 0, and is {amount}.")
    return {name: units for name, amount in amounts.items() if (units := round(amount * _UNITS))}


def _fits(need: Mapping[str, int], free: Mapping[str, int]) -> bool:
    return all(units <= free.get(name, 0) for name, units in need.items())


def _why_no_node(need: Mapping[str, int], holds: Sequence[Mapping[str, int]]) -> str | None:
    """What a bundle needs that no node has, even when it is the only one; None if it fits."""
    if any(_fits(need, node) for node in holds) or not need:
        return None
    if not holds:
        return f"{_amounts(need)}, and there is no node."
    short = []
    for name, units in need.items():
        largest = max(node.get(name, 0) for node in holds)
        if units > largest:
            short.append(f"{_amounts({name: units})}, and the largest node has {_amount(largest)}")
    if short:
        return f"{'; '.join(short)}."
    return f"{_amounts(need)} on one node, and no node has all of them: {_distinct(holds)}."


def _first_fit_decreasing(needs: Mapping[int, Mapping[str, int]], holds: Sequence[Mapping[str, int]]) -> list[int]:
    """The positions that find no place, in order."""
    total: dict[str, int] = defaultdict(int)
    for node in holds:
        for name, units in node.items():
            total[name] += units

    def size(position: int) -> tuple[float, list[tuple[str, int]]]:
        # Ties are broken by content, so that the order of the request does not matter.
        need = needs[position]
        return max((units / total[name] for name, units in need.items()), default=0.0), sorted(need.items())

    free = [dict(node) for node in holds]
    homeless = []
    for position in sorted(needs, key=size, reverse=True):
        need = needs[position]
        place = next((node for node in free if _fits(need, node)), None)
        if place is not None:
            for name, units in need.items():
                place[name] -= units
        elif need:
            homeless.append(position)
    return sorted(homeless)


def _why_not_together(
    homeless: Sequence[int], needs: Mapping[int, Mapping[str, int]], holds: Sequence[Mapping[str, int]]
) -> str:
    """Why bundles that fit alone find no place beside the others."""
    short = []
    for name in sorted({name for need in needs.values() for name in need}):
        needed, there = sum(need.get(name, 0) for need in needs.values()), [node.get(name, 0) for node in holds]
        if needed > sum(there):
            short.append(
                f"{_amounts({name: needed})}, and all nodes together have {_amount(sum(there))} "
                f"(the largest {_amount(max(there))})"
            )
    who = f"{_named(homeless, len(needs))} of {len(needs)} {'finds' if len(homeless) == 1 else 'find'} no place"
    if short:
        return f"{who}: together all need {'; '.join(short)}."
    return (
        f"{who}: a bundle lies on one node, and no node has "
        f"{_amounts(needs[homeless[0]])} left beside the others, although the totals would suffice."
    )


def _named(positions: Sequence[int], count: int) -> str:
    if count == 1:
        return "The bundle"
    shown = ", ".join(str(position) for position in positions[:4]) + (", ..." if len(positions) > 4 else "")
    return f"Bundle {shown}" if len(positions) == 1 else f"{len(positions)} bundles ({shown})"


def _amount(units: int) -> str:
    return str(units // _UNITS if units % _UNITS == 0 else units / _UNITS)


def _amounts(need: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {_amount(units)}" for name, units in sorted(need.items()))


def _distinct(holds: Sequence[Mapping[str, int]]) -> str:
    kinds = dict.fromkeys("{" + _amounts(node) + "}" for node in holds)
    return ", ".join(list(kinds)[:4]) + (", ..." if len(kinds) > 4 else "")
