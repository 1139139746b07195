"""What CUDA, its driver and NCCL report, and what it usually means."""

import re
from typing import NamedTuple

from verl_cli.failures.place import Place
from verl_cli.failures.text import message, sentence, shortened

_IS_ONE = re.compile(
    r"CUDA error|CUDA driver|NVIDIA driver|CUDA initialization|CUDA unknown error|No CUDA GPUs|NCCL error|cuDNN error|"
    r"CUBLAS_STATUS|cudaError|Torch not compiled with CUDA"
)
_TRACE = "run it again with CUDA_LAUNCH_BLOCKING=1, or with trainer.device=cpu, to see the operation that did it"


class _Fault(NamedTuple):
    pattern: re.Pattern[str]
    advice: str


_FAULTS = (
    _Fault(
        re.compile("device-side assert", re.I),
        "A kernel on the GPU met an impossible index or number, most often a token id outside the vocabulary: check "
        f"that tokenizer, actor and critic belong together; {_TRACE}.",
    ),
    _Fault(
        re.compile("illegal memory access|misaligned address|unspecified launch failure", re.I),
        f"A kernel on the GPU touched memory that is not its own: {_TRACE}, and report it with the versions that "
        "`verl-cli doctor` prints.",
    ),
    _Fault(
        re.compile("no kernel image|not compatible with the current PyTorch|invalid device function", re.I),
        "This torch build has no code for this GPU: install a build for its compute capability (pytorch.org lists "
        "them), or set trainer.device=cpu.",
    ),
    _Fault(
        re.compile("driver version is insufficient|driver on your system is too old|unsupported toolchain", re.I),
        "The NVIDIA driver is older than this torch build needs: update it, install a torch build for an older CUDA, "
        "or set trainer.device=cpu; `verl-cli doctor` shows both versions.",
    ),
    _Fault(
        re.compile(
            "no NVIDIA driver|No CUDA GPUs|no CUDA-capable device|not compiled with CUDA|invalid device ordi", re.I
        ),
        "torch finds no GPU that it can use: look at nvidia-smi and CUDA_VISIBLE_DEVICES, or set trainer.device=cpu.",
    ),
    _Fault(
        re.compile("ECC|hardware|Xid|GPU is lost|fallen off the bus", re.I),
        "The GPU reports a fault of its own: look at `nvidia-smi -q` and dmesg, and use another GPU.",
    ),
    _Fault(
        re.compile("busy or unavailable|exclusive", re.I),
        "Another process holds the GPU for itself: see nvidia-smi, wait for it or choose another GPU with "
        "CUDA_VISIBLE_DEVICES.",
    ),
    _Fault(
        re.compile("NCCL", re.I),
        "GPUs could not talk to each other: NCCL_DEBUG=INFO in the environment names the cause, and `verl-cli doctor` "
        "checks shared memory and network interfaces.",
    ),
)
_OTHER = f"The GPU or its driver failed: {_TRACE}; `verl-cli doctor` checks driver and torch build."


def is_accelerator_failure(error: BaseException) -> bool:
    """Whether CUDA, its driver or NCCL speaks through `error`."""
    if type(error).__name__ == "AcceleratorError":
        return True
    return isinstance(error, (RuntimeError, AssertionError)) and _IS_ONE.search(message(error)) is not None


def accelerator_failure(error: BaseException, place: Place) -> str:
    """The paragraph about it."""
    text = message(error)
    advice = next((fault.advice for fault in _FAULTS if fault.pattern.search(text)), _OTHER)
    said = re.split(r"(?:CUDA kernel errors might|For debugging consider|Compile with|Search for)", text)[0]
    return f"The GPU failed{place.words}: {sentence(shortened(said))} {advice}"
