"""Whether torch really computes on the GPUs: the one question that needs torch, asked in a process of its own."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from verl_cli.doctor.facts.deadline import ask

#: The first import of torch from a cold disk takes most of it.
_SECONDS = 90.0
_MARK = "doctor:"
_PROGRAM = f"""
import json, torch
devices, error = [], None
if torch.backends.cuda.is_built():
    try:
        torch.cuda.init()
        for index in range(torch.cuda.device_count()):
            ones = torch.ones(64, 64, device=f"cuda:{{index}}")
            devices.append([torch.cuda.get_device_name(index), float((ones @ ones).sum())])
    except (RuntimeError, AssertionError) as failure:
        error = str(failure).strip().splitlines()[0]
print({_MARK!r} + json.dumps(dict(version=torch.__version__, devices=devices, error=error)))
"""
#: A product of two 64 x 64 matrices of ones, summed.
_SUM = 64.0**3


@dataclass(frozen=True)
class DeepFacts:
    """What torch did: `failure` is why it did not even start, `error` what it said when CUDA was initialised."""

    version: str | None = None
    devices: tuple[str, ...] = ()
    #: Devices whose product came out wrong.
    wrong: tuple[str, ...] = ()
    error: str | None = None
    failure: str | None = None


def gather_deep(environ: Mapping[str, str]) -> DeepFacts:
    """Import torch in another process and multiply two small matrices on each GPU that it sees."""
    answer = ask([sys.executable, "-c", _PROGRAM], environ=environ, seconds=_SECONDS)
    line = next((line for line in answer.text.splitlines() if line.startswith(_MARK)), None)
    if line is None:
        last = next((line for line in reversed(answer.text.splitlines()) if line.strip()), "")
        return DeepFacts(failure=last if answer.failure and "exit code" in answer.failure and last else answer.failure)
    told = json.loads(line.removeprefix(_MARK))
    return DeepFacts(
        told["version"],
        tuple(name for name, _ in told["devices"]),
        tuple(f"cuda:{index} ({name})" for index, (name, value) in enumerate(told["devices"]) if value != _SUM),
        told["error"],
    )
