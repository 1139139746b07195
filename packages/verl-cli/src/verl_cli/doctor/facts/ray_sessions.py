"""Ray on this machine: its processes, the folders of its sessions, and the cluster that a run would join."""

import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from verl_cli.doctor.facts.deadline import ask, within
from verl_cli.system.system_files import entries_of, text_of, user_name

_SESSION = re.compile(r"session_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\d+_\d+")
#: A session with more files than this is said to be at least as large as those.
_MOST_FILES = 20_000
_CONNECT_SECONDS = 2.0


@dataclass(frozen=True)
class RayProcess:
    """A raylet (one a node and cluster) or a control service (one a cluster); `session` is None where it hides it."""

    pid: int
    user: str
    session: str | None = None


@dataclass(frozen=True)
class RaySession:
    """The folder of a session; `size_bytes` is a lower bound where `complete` is False."""

    path: str
    user: str
    size_bytes: int
    #: Time since anything was last written there.
    idle_seconds: float
    complete: bool = True

    @property
    def name(self) -> str:
        """The name that Ray's processes carry on their command lines."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class RayFacts:
    """`reachable` is None where no TCP address is given; the address is RAY_ADDRESS, or what Ray wrote down last."""

    user: str
    folder: str = "/tmp/ray"
    #: None: this system does not show processes.
    processes: tuple[RayProcess, ...] | None = ()
    sessions: tuple[RaySession, ...] = ()
    address: str | None = None
    reachable: bool | None = None
    #: The address that Ray keeps for `ray.init()` without one.
    last_address: str | None = None
    last_reachable: bool | None = None


def gather_ray(environ: Mapping[str, str], root: Path = Path("/")) -> RayFacts:
    """Look for Ray's processes and folders; `root` is the folder that holds `proc` and Ray's own folder."""
    folder = Path(environ["RAY_TMPDIR"], "ray") if environ.get("RAY_TMPDIR") else Path("/tmp/ray")
    here = root / folder.relative_to(folder.anchor)
    address = environ.get("RAY_ADDRESS") or None
    last = text_of(here / "ray_current_cluster").strip() or None
    return RayFacts(
        user=user_name(os.getuid()),
        folder=str(folder),
        processes=_processes(root, environ),
        sessions=tuple(_sessions(here)),
        address=address,
        reachable=None if address is None else _reachable(address),
        last_address=last,
        last_reachable=None if last is None else _reachable(last),
    )


def _processes(root: Path, environ: Mapping[str, str]) -> tuple[RayProcess, ...] | None:
    if (root / "proc/self").exists():
        return tuple(_processes_of_proc(root / "proc"))
    answer = ask(["ps", "-axww", "-o", "pid=,user=,command="], environ=environ, seconds=5)
    if answer.failure is not None:
        return None
    rows = (line.split(None, 2) for line in answer.text.splitlines())
    return tuple(
        RayProcess(int(row[0]), row[1], _session(row[2])) for row in rows if len(row) == 3 and _is_ray(row[2].split())
    )


def _processes_of_proc(proc: Path) -> Iterator[RayProcess]:
    for entry in sorted(proc.glob("[0-9]*")):
        words = text_of(entry / "cmdline").split("\0")
        if _is_ray(words):
            try:
                uid = entry.stat().st_uid
            except OSError:  # it ended meanwhile
                continue
            yield RayProcess(int(entry.name), user_name(uid), _session(" ".join(words)))


def _is_ray(words: Sequence[str]) -> bool:
    return Path(words[0]).name in {"raylet", "gcs_server"}


def _session(command: str) -> str | None:
    match = _SESSION.search(command)
    return match[0] if match else None


def _sessions(folder: Path) -> Iterator[RaySession]:
    for entry in entries_of(folder):
        if entry.is_symlink() or not _SESSION.fullmatch(entry.name):
            continue
        try:
            uid = entry.stat().st_uid
        except OSError:
            continue
        size, written, complete = _size(entry)
        yield RaySession(str(entry), user_name(uid), size, max(0.0, time.time() - written), complete)


def _size(folder: Path) -> tuple[int, float, bool]:
    """Bytes on the disk, when the last of them was written, and whether everything was counted."""
    size, written, files, complete = 0, 0.0, 0, True

    def unreadable(_: OSError) -> None:
        nonlocal complete
        complete = False

    for parent, _, names in os.walk(folder, onerror=unreadable):
        for name in (".", *names):
            files += 1
            if files > _MOST_FILES:
                return size, written, False
            try:
                # Ten times as fast as Path.lstat.
                status = os.lstat(f"{parent}/{name}")
            except OSError:
                complete = False
                continue
            size += status.st_blocks * 512
            written = max(written, status.st_mtime)
    return size, written, complete


def _reachable(address: str) -> bool | None:
    """Whether something listens there; None if the address is a word of Ray's (auto, local) and no host and port."""
    try:
        parts = urlsplit(address if "://" in address else f"ray://{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return False
    if host is None or port is None:
        # ray://host means port 10001; a plain word is not an address.
        if "://" not in address or host is None:
            return None
        port = {"ray": 10001, "https": 443}.get(parts.scheme, 80)
    target = (host, port)

    def connect() -> bool:
        try:
            with socket.create_connection(target, timeout=_CONNECT_SECONDS):
                return True
        except OSError:
            return False

    # Looking up a name has no time limit of its own.
    return bool(within(_CONNECT_SECONDS + 1, connect))
