"""Runs untrusted code; started by `verl_algos.rewards.sandbox` as a program of its own, without the package.

Reads one JSON request from stdin, isolates itself, tells how, and then runs each case in a fork of its own. One JSON
line per case goes to the descriptor that was stdout. The expected outputs are never here: what the code prints or
returns is compared by the caller.
"""

import contextlib
import ctypes
import errno
import json
import os
import platform
import resource
import select
import signal
import socket
import struct
import sys
import tempfile
import time
import traceback
from typing import Any, NoReturn

_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = (1 << bit for bit in (17, 27, 28, 29, 30))
_PR_SET_DUMPABLE = 4
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 22, 36, 38
_SYS_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _MOUNT_ATTR_RDONLY = 442, -100, 0x8000, 1

# System calls that seccomp refuses: sockets, and whatever reaches another process or sets up a mount or namespace.
# The numbers from 424 on are the same everywhere; clone3 is left alone, because threads are made with it.
_REFUSED_EVERYWHERE = (424, 425, 429, 434, 438, 442)
_REFUSED = {
    "x86_64": (
        0xC000003E,
        (41, 62, 101, 161, 165, 175, 176, 200, 234, 246, 248, 250, 272, 298, 308, 310, 311, 313, 321, 323),
    ),
    "aarch64": (
        0xC00000B7,
        (198, 129, 117, 51, 40, 105, 106, 130, 131, 104, 217, 219, 97, 241, 268, 270, 271, 273, 280, 282),
    ),
}


def isolate(method: str, caller: int) -> None:
    """Cut this process off from the network; OSError if the system does not let it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if method == "namespaces":
        _enter_namespaces(libc, caller)
        _check_no_network()
    else:
        # Each case filters itself: what starts and ends the cases must be able to.
        if (child := os.fork()) == 0:
            try:
                _filter_system_calls(libc)
                _check_no_network()
            except OSError as error:
                os._exit((error.errno or errno.EPERM) & 0x7F)
            os._exit(0)
        if (number := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) != 0:
            raise OSError(number, f"seccomp: {os.strerror(abs(number))}")


def _end_with(caller: int) -> None:
    """Let this process end with the one that started it, which may be killed while code runs, or before this call."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != caller:
        os._exit(1)


def _enter_namespaces(libc: Any, caller: int) -> None:
    user, group = os.getuid(), os.getgid()
    flags = _CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWUSER | _CLONE_NEWPID | _CLONE_NEWNET
    _called(libc, libc.unshare(flags), "unshare")
    for name, content in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 (before pathlib is needed)
            file.write(content)
    _end_with(caller)  # the kernel forgot it with the rights of before
    reader, writer = os.pipe()
    if (child := os.fork()) != 0:  # the first process of the new namespace; whoever kills this one kills all of it
        os.close(writer)
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    os.close(reader)
    _called(libc, libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    try:
        os.write(writer, b".")
    except BrokenPipeError:  # the other one, whose number is 0 in here, was killed before that
        os._exit(1)
    os.close(writer)
    _called(libc, libc.mount(b"none", b"/", None, (1 << 14) | (1 << 18), None), "mount private")  # MS_REC, MS_PRIVATE
    read_only = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    arguments = (_SYS_MOUNT_SETATTR, _AT_FDCWD, b"/", _AT_RECURSIVE, read_only, ctypes.c_size_t(len(read_only)))
    _called(libc, libc.syscall(*arguments), "mount_setattr")
    for place in (b"/proc", b"/dev/shm", b"/tmp"):
        if os.path.isdir(place):  # noqa: PTH112
            _called(libc, libc.mount(b"tmpfs", place, b"tmpfs", 6, b"size=64m"), "mount tmpfs")  # nosuid, nodev
    tempfile.tempdir = "/tmp"
    _called(libc, libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    header, nothing = struct.pack("Ii", 0x20080522, 0), bytes(24)
    _called(libc, libc.capset(header, nothing), "capset")


def _filter_system_calls(libc: Any) -> None:
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _REFUSED:
        raise OSError(errno.ENOSYS, f"no system call filter for {sys.platform} on {machine}")
    architecture, numbers = _REFUSED[machine]

    def step(code: int, true: int, false: int, value: int) -> bytes:
        return struct.pack("HBBI", code, true, false, value)

    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06
    refuse, allow = 0x00050000 | errno.EPERM, 0x7FFF0000
    steps = [
        step(load, 0, 0, 4),
        step(equal, 1, 0, architecture),
        step(answer, 0, 0, refuse),
        step(load, 0, 0, 0),
        step(at_least, 0, 1, 0x40000000),  # the x32 calls, which have other numbers
        step(answer, 0, 0, refuse),
    ]
    for number in (*numbers, *_REFUSED_EVERYWHERE):
        steps += [step(equal, 0, 1, number), step(answer, 0, 0, refuse)]
    steps.append(step(answer, 0, 0, allow))
    code = ctypes.create_string_buffer(b"".join(steps))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    _called(libc, libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    _called(libc, libc.prctl(_PR_SET_SECCOMP, 2, program, 0, 0), "seccomp")


def _called(libc: Any, result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _check_no_network() -> None:
    for family, address in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as out:
                out.connect((address, 9))
        except OSError:
            continue
        raise OSError(errno.EPERM, "the network can still be reached")


def main() -> None:
    """Serve one request."""
    answers = os.dup(1)
    request = json.load(sys.stdin)
    _end_with(request["caller"])
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 0)
    os.dup2(quiet, 1)
    try:
        if request["isolation"] != "none":
            isolate(request["isolation"], request["caller"])
    except OSError as error:
        _tell(answers, {"isolated": False, "reason": str(error)})
        return
    _tell(answers, {"isolated": True})
    if sys.platform == "linux":  # what the cases leave behind becomes ours
        libc = ctypes.CDLL(None)
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # so that no case can trace this process or write into it
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for case in request["cases"]:
            _tell(answers, _run_case(case, request, folder, answers))


def _tell(answers: int, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(answers, data) :]


def _run_case(case: dict[str, Any], request: dict[str, Any], folder: str, answers: int) -> dict[str, Any]:
    limits = request["limits"]
    with tempfile.TemporaryFile() as stdin:
        stdin.write(case.get("stdin", "").encode())
        stdin.seek(0)
        out, out_writer = os.pipe()
        value, value_writer = os.pipe()
        error, error_writer = os.pipe()
        sandbox = os.getpid()
        child = os.fork()
        if child == 0:
            os.close(answers)
            for number, descriptor in enumerate((stdin.fileno(), out_writer, error_writer)):
                os.dup2(descriptor, number)
            _child(case, request, folder, value_writer, sandbox)
        for writer in (out_writer, value_writer, error_writer):
            os.close(writer)
        deadline = time.monotonic() + limits["wall_seconds"]
        texts, ended = _collect((out, value, error), deadline, limits["output_bytes"])
    if ended == "closed":  # it is ending, or has closed everything and goes on
        while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > deadline:
                ended = "time"
                break
            time.sleep(0.002)
    for end in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            end(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    _end_strays(request["isolation"])
    code = os.waitstatus_to_exitcode(status)
    if ended == "output":
        outcome = "output"
    elif code == -signal.SIGXCPU or (code < 0 and (ended == "time" or _seconds(usage) >= 0.95 * limits["cpu_seconds"])):
        outcome = "timeout"
    elif code == 0:
        outcome = "ok"
    else:
        outcome = "memory" if code == 77 else "error"
    out_text, value_text, error_text = (text.decode("utf-8", "replace") for text in texts)
    result = {"status": outcome, "stdout": out_text, "stderr": error_text[-2000:]}
    return result | ({"value": value_text} if "args" in case else {})


def _seconds(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def _end_strays(method: str) -> None:
    """End what the case started and left behind, also in sessions of their own: all of it became ours."""
    while True:
        if method == "namespaces":
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)  # everything in the namespace but this process
        else:
            for child in _children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:  # noqa: PTH123
            return [int(child) for child in file.read().split()]
    except OSError:  # not Linux
        return []


def _collect(readers: tuple[int, ...], deadline: float, most: int) -> tuple[list[bytes], str]:
    """What comes from each descriptor until all are closed, the time is over, or there is too much of it."""
    texts = {reader: bytearray() for reader in readers}
    still = list(readers)
    ended = "closed"
    while still:
        left = deadline - time.monotonic()
        ready, _, _ = select.select(still, [], [], max(left, 0))
        if not ready:
            ended = "time"
            break
        for reader in ready:
            data = os.read(reader, 65536)
            texts[reader] += data
            if not data:
                still.remove(reader)
        if sum(map(len, texts.values())) > most:
            ended = "output"
            break
    for reader in readers:
        os.close(reader)
    return [bytes(texts[reader]) for reader in readers], ended


def _child(case: dict[str, Any], request: dict[str, Any], folder: str, value_writer: int, sandbox: int) -> NoReturn:
    code = 1
    try:
        _end_with(sandbox)
        os.setsid()
        os.chdir(folder)
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
        _set_limits(request["limits"])
        if request["isolation"] == "seccomp":
            _filter_system_calls(ctypes.CDLL(None, use_errno=True))
        sys.stdin = open(0, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        sys.argv = ["solution.py"]
        sys.setrecursionlimit(100_000)
        code = _execute(case, request, value_writer)
    except MemoryError:
        code = 77
    except SystemExit as error:
        code = 0 if error.code in (None, 0) else 1
    except BaseException:  # noqa: BLE001 (the code is untrusted)
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _set_limits(limits: dict[str, Any]) -> None:
    seconds = int(max(1, -(-limits["cpu_seconds"] // 1)))
    wanted = {
        # The signal of the first says what the process is ended for; the second, a second later, cannot be caught.
        resource.RLIMIT_CPU: (seconds, seconds + 1),
        resource.RLIMIT_AS: (limits["memory_bytes"],) * 2,
        resource.RLIMIT_FSIZE: (limits["file_bytes"],) * 2,
        resource.RLIMIT_NPROC: (limits["processes"],) * 2,
        resource.RLIMIT_NOFILE: (128, 128),
        resource.RLIMIT_CORE: (0, 0),
    }
    for kind, values in wanted.items():
        _, hard = resource.getrlimit(kind)
        soft, most = values if hard == resource.RLIM_INFINITY else (min(value, hard) for value in values)
        with contextlib.suppress(ValueError, OSError):  # macOS has no limit of the address space
            resource.setrlimit(kind, (soft, most))


def _execute(case: dict[str, Any], request: dict[str, Any], value_writer: int) -> int:
    called = "args" in case
    names: dict[str, Any] = {"__name__": "__solution__" if called else "__main__", "__builtins__": __builtins__}
    exec(compile(request["code"], "solution.py", "exec"), names)
    if called:
        name = request["fn_name"]
        owner = names["Solution"]() if "Solution" in names else None
        function = getattr(owner, name) if hasattr(owner, name) else names[name]
        data = json.dumps(function(*case["args"])).encode()
        while data:
            data = data[os.write(value_writer, data) :]
    return 0


if __name__ == "__main__":
    main()
