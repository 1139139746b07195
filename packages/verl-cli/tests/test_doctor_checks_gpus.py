"""What doctor finds wrong with GPUs and their driver."""

from collections.abc import Callable
from dataclasses import replace

from made_up_facts import H200, OTHER_H200, Case, check_finding, each_gpu, environ, findings, gpus, packages
from verl_cli.doctor import Facts
from verl_cli.doctor.facts import DeepFacts, GpuProcess, TorchBuild

CASES: list[Case] = [
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
]


@findings(CASES)
def test_finding(make: Callable[[Facts], Facts], name: str, state: str, seen: list[str], remedy: list[str]) -> None:
    check_finding(make, name, state, seen, remedy)
