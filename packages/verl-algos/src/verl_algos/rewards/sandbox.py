"""Running untrusted code in a process without network, with limits of time, memory and output.

Two ways to isolate without being root, both Linux: namespaces (no network, no other processes, the file system
read-only but for a temporary one in memory), or where a container forbids them, a seccomp filter (no sockets, no calls
that reach other processes; files are what the user's rights allow). Each is tried once and checked by trying to reach
the network. Where neither works nothing is run, unless the caller says ``sandbox="none"``.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

Isolation = Literal["auto", "namespaces", "seccomp", "none"]
Status = Literal["ok", "error", "timeout", "memory", "output"]

_PROGRAM = Path(__file__).with_name("_sandbox_main.py")
_START_SECONDS = 20.0


class SandboxError(RuntimeError):
    """Code cannot be run in isolation here; nothing was run."""


@dataclass(frozen=True)
class Limits:
    """Of each case."""

    cpu_seconds: float = 6.0
    """Computing time, rounded up to whole seconds."""
    wall_seconds: float = 12.0
    """Time on the clock, for code that waits."""
    memory_mb: int = 1024
    """Address space of the process."""
    output_bytes: int = 4_000_000
    """Of stdout, stderr and the returned value together."""
    file_bytes: int = 16_000_000
    """Of each file that is written."""
    processes: int = 64
    """Of this user in all; not enforced for root, whose processes end with the case all the same."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"{name}={value} must be more than 0.")


class CaseResult(NamedTuple):
    """What became of one case."""

    status: Status
    """error: it raised or exited with another code than 0; output: it wrote too much."""
    stdout: str
    stderr: str
    """The end of it."""
    value: str | None
    """JSON of what the called function returned; None for a program."""


def isolation() -> Literal["namespaces", "seccomp"] | None:
    """The way in which code is isolated here; None if there is none. Tried once per process."""
    return _found()[0]


def run(
    code: str,
    cases: Sequence[Mapping[str, Any]],
    *,
    fn_name: str | None = None,
    limits: Limits | None = None,
    sandbox: Isolation = "auto",
) -> list[CaseResult]:
    """Run `code` once per case, each in a process of its own.

    Args:
        code: Python.
        cases: ``{"stdin": text}`` runs it as a program; ``{"args": [...]}`` (JSON) calls `fn_name`, a function of the
            code or a method of its class ``Solution``.
        fn_name: the function that cases with "args" call.
        limits: of each case.
        sandbox: "auto" takes namespaces or seccomp; "none" runs without isolation, with limits only.

    Returns:
        One result per case, in order.

    Raises:
        SandboxError: the code cannot be isolated here.
    """
    limits = limits or Limits()
    way = _way(sandbox)
    request = {
        "isolation": way,
        "code": code,
        "fn_name": fn_name,
        "cases": [dict(case) for case in cases],
        "limits": vars(limits) | {"memory_bytes": limits.memory_mb << 20},
    }
    lines = _serve(request, _START_SECONDS + len(cases) * (limits.wall_seconds + 1))
    if not lines or not lines[0].get("isolated"):
        reason = lines[0].get("reason") if lines else "it died while it started"
        raise SandboxError(f"The sandbox ({way}) could not be set up: {reason}. Nothing was run.")
    results = [CaseResult(line["status"], line["stdout"], line["stderr"], line.get("value")) for line in lines[1:]]
    # The code may have brought the sandbox down with it.
    return results + [CaseResult("error", "", "the sandbox died", None)] * (len(cases) - len(results))


def _way(sandbox: Isolation) -> str:
    if sandbox not in ("auto", "namespaces", "seccomp", "none"):
        raise ValueError(f"sandbox={sandbox!r} is neither auto, namespaces, seccomp nor none.")
    if sandbox != "auto":
        return sandbox
    found, reasons = _found()
    if found is None:
        raise SandboxError(
            f"Code rewards run untrusted code, and this system cannot isolate it from the network ({reasons}). "
            'Allow unprivileged user namespaces or seccomp, or accept the risk with sandbox="none" '
            "(reward_kwargs: {sandbox: none})."
        )
    return found


@cache
def _found() -> tuple[Literal["namespaces", "seccomp"] | None, str]:
    reasons = []
    for way in ("namespaces", "seccomp"):
        limits = vars(Limits()) | {"memory_bytes": 1 << 30}
        lines = _serve({"isolation": way, "code": "", "fn_name": None, "cases": [], "limits": limits}, _START_SECONDS)
        if lines and lines[0].get("isolated"):
            return way, ""
        reasons.append(f"{way}: {lines[0].get('reason') if lines else 'died'}")
    return None, "; ".join(reasons)


def _serve(request: Mapping[str, Any], seconds: float) -> list[dict[str, Any]]:
    """The lines that the program answers; those until `seconds` are over, if it does not end."""
    content = {**request, "caller": os.getpid()}
    environment = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "LANG") if name in os.environ}
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    process = subprocess.Popen(
        [sys.executable, "-I", "-B", str(_PROGRAM)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    try:
        output, _ = process.communicate(json.dumps(content).encode(), timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        process.communicate()
        raise
    lines = []
    for line in output.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:  # cut off
            break
    return lines
