"""Made-up facts: a machine without fault, how each of its parts becomes another, and how a finding is checked."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from verl_cli.doctor import Facts, Finding, judge
from verl_cli.doctor.facts import (
    Distribution,
    Gpu,
    GpuFacts,
    HostFacts,
    NetworkFacts,
    PackageFacts,
    Place,
    RayFacts,
    RaySession,
    Setting,
    SharedMemory,
    TorchBuild,
)
from verl_cli.system.resources import CpuShare

GIB = 2**30
H200 = Gpu(0, "GPU-aa00", "NVIDIA H200", 143_771, 0, False, True, 0, (9, 0))
OTHER_H200 = replace(H200, index=1, uuid="GPU-bb11")
SESSION = RaySession("/tmp/ray/session_2026-11-29_21-13-00_123456_77", "ada", 3 * GIB, idle_seconds=86_400)

OURS = {name: Distribution("0.1.0") for name in ("verl-cli", "verl-algos", "verl-data", "verl-engine", "verl-rollout")}
HEALTHY = Facts(
    environ={"OMP_NUM_THREADS": "1"},
    packages=PackageFacts(
        python=(3, 12, 3),
        requires_python="<3.14,>=3.11",
        distributions=OURS
        | {
            "torch": Distribution("2.13.0"),
            "transformers": Distribution("5.24.0", ("tokenizers<0.24.0,>=0.23.1",)),
            "tokenizers": Distribution("0.23.1"),
            "vllm": Distribution("0.33.0", ("torch==2.13.0",)),
            "ray": Distribution("2.60.0"),
            "wandb": Distribution("0.31.0"),
        },
        torch=TorchBuild("2.13.0+cu130", "13.0"),
        verl_folder="/site/verl",
    ),
    gpus=GpuFacts((H200, OTHER_H200), "580.159.04", has_nvidia_smi=True, device_files=("/dev/nvidia0", "/dev/nvidia1")),
    network=NetworkFacts(("eth0", "ib0", "lo"), {"mlx5_0": {1: True}, "mlx5_1": {1: True}}, has_verbs=True),
    host=HostFacts(CpuShare(32, 32), 0.5, 256 * GIB, 250 * GIB, shared_memory=SharedMemory(128 * GIB, 128 * GIB)),
    ray=RayFacts("ada"),
    storage=(Place("run directory", "/runs", free_bytes=900 * GIB, free_files=0.9),),
    wandb_login=True,
)


def environ(facts: Facts, **more: str) -> Facts:
    return replace(facts, environ={**facts.environ, **more})


def packages(facts: Facts, versions: Mapping[str, Distribution | None] | None = None, **changes: Any) -> Facts:
    there = {**facts.packages.distributions, **(versions or {})}
    kept = {name: distribution for name, distribution in there.items() if distribution is not None}
    return replace(facts, packages=replace(facts.packages, distributions=kept, **changes))


def gpus(facts: Facts, **changes: Any) -> Facts:
    return replace(facts, gpus=replace(facts.gpus, **changes))


def each_gpu(facts: Facts, **changes: Any) -> Facts:
    return gpus(facts, gpus=tuple(replace(gpu, **changes) for gpu in facts.gpus.gpus))


def host(facts: Facts, **changes: Any) -> Facts:
    return replace(facts, host=replace(facts.host, **changes))


def network(facts: Facts, nccl: Mapping[str, str] | None = None, **changes: Any) -> Facts:
    settings = {name: Setting(value) for name, value in (nccl or {}).items()}
    return replace(facts, network=replace(facts.network, nccl=settings, **changes))


def ray(facts: Facts, **changes: Any) -> Facts:
    return replace(facts, ray=replace(facts.ray, **changes))


def storage(facts: Facts, role: str, **changes: Any) -> Facts:
    return replace(facts, storage=(Place(role, "/place", **{"free_bytes": 900 * GIB, **changes}),))


def found(facts: Facts, name: str) -> Finding:
    [finding] = [finding for finding in judge(facts) if finding.name == name]
    return finding


#: What is wrong, how it is made, name of the finding, state, what its text holds, what its remedy holds.
Case = tuple[str, Callable[[Facts], Facts], str, str, list[str], list[str]]


def findings(cases: list[Case]) -> pytest.MarkDecorator:
    """A test for each case."""
    values = [case[1:] for case in cases]
    return pytest.mark.parametrize(("make", "name", "state", "seen", "remedy"), values, ids=[case[0] for case in cases])


def check_finding(make: Callable[[Facts], Facts], name: str, state: str, seen: list[str], remedy: list[str]) -> None:
    facts = make(HEALTHY)
    finding = found(facts, name)
    assert finding.state == state
    assert [text for text in seen if text not in finding.seen] == [], finding.seen
    assert finding.remedy is not None
    assert [text for text in remedy if text not in finding.remedy] == [], finding.remedy
    assert finding.remedy.endswith(".")
