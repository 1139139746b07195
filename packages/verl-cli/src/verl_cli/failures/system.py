"""What the operating system refuses: a full disk, permissions, too many files, a broken connection."""

import errno
import os
import re
import resource
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from verl_cli.failures.memory import size
from verl_cli.failures.place import Place
from verl_cli.failures.text import message, sentence, shortened

_NEARLY_FULL_BYTES = 64 * 2**20
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_TEXT = re.compile(
    r"No space left on device|os error 28\b|Disk quota exceeded|os error 122\b|StreamWriter failed|"
    r"inline_container\.cc:\d+\] \. unexpected pos"  # what torch.save says when a write has failed
)
_OPEN_FILES = (errno.EMFILE, errno.ENFILE)
_CONNECTION = (
    *(errno.EPIPE, errno.ECONNRESET, errno.ECONNREFUSED, errno.ECONNABORTED, errno.ETIMEDOUT),
    *(errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.ENOTCONN),
)
#: Packages whose exceptions are failed connections and no OSError.
_CLIENTS = frozenset({"httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3"})
_AGAIN = "Correct the path, then start again."
#: What to do about an error number.
_REMEDIES = {
    errno.ENOENT: "There is nothing of that name: correct the path, then start again.",
    errno.ENOTDIR: f"A part of the path is a file, not a folder. {_AGAIN}",
    errno.EISDIR: f"It is a folder where a file is needed. {_AGAIN}",
    errno.EEXIST: "Something of that name is there already: choose another name, or move it away.",
    errno.ENOTEMPTY: "The folder is not empty: choose another name, or empty it.",
    errno.ENAMETOOLONG: "Choose a shorter path, then start again.",
    errno.ELOOP: "Its symbolic links go round in a circle: correct them, then start again.",
    errno.EROFS: "The file system is read-only: choose a folder on another (trainer.default_local_dir for a run).",
    errno.EADDRINUSE: "Another program uses that port: end it or choose another port, then start again.",
    errno.EIO: "The disk or network file system fails: look into the system's log (dmesg), or use another folder.",
    errno.ESTALE: "The network file system has lost the file: start again, or use a folder on a local disk.",
    errno.EAGAIN: "A limit of processes or threads is reached (ulimit -u): end some, or raise it, then start again.",
    errno.ETXTBSY: "Another program writes this file: wait until it has finished, then start again.",
}


def is_full(error: BaseException) -> bool:
    """Whether `error` says that a file system, a quota or a file is full."""
    if isinstance(error, OSError) and isinstance(error.errno, int):
        return error.errno in _FULL
    return _FULL_TEXT.search(message(error)) is not None


def is_out_of_files(error: BaseException) -> bool:
    """Whether `error` says that too many files are open."""
    return isinstance(error, OSError) and error.errno in _OPEN_FILES


def is_connection(error: BaseException) -> bool:
    """Whether `error` is a failed connection of a library that has exceptions of its own for it."""
    return type(error).__module__.partition(".")[0] in _CLIENTS


def space_left(error: BaseException, place: Place) -> str:
    """Facts about the file system that is full, as a sentence."""
    try:
        folders = list(_folders(error, place))
        full_ones = (folder for folder in folders if shutil.disk_usage(folder).free < _NEARLY_FULL_BYTES)
        folder = next(full_ones, folders[0])  # what was incomplete may have been removed, and its room be free again
        usage, status = shutil.disk_usage(folder), os.statvfs(folder)
        mount = next(parent for parent in (folder, *folder.parents) if parent.is_mount())
    except (OSError, IndexError, StopIteration):
        return "Which file system it is cannot be told."
    names = ", and no room for another file name (inodes)" if status.f_files and not status.f_favail else ""
    return f"The file system {mount}, which holds {folder}, has {size(usage.free)} free of {size(usage.total)}{names}."


def full(error: BaseException, place: Place) -> str:
    """The paragraph about a full file system."""
    number = error.errno if isinstance(error, OSError) else None
    named = _name(error)
    what = f"writing {named}" if named else "writing a file"
    reason = {
        errno.EDQUOT: "your disk quota is used up",
        errno.EFBIG: "the file would be larger than this process may write (ulimit -f) or the file system can hold",
    }.get(number or errno.ENOSPC, "no space is left")
    remedy = (
        "Raise that limit (ulimit -f unlimited), then start again."
        if number == errno.EFBIG
        else "Free space there (du -sh finds what is large; trainer.max_actor_ckpt_to_keep and a larger "
        "trainer.save_freq keep fewer checkpoints), or choose a folder on another file system "
        "(trainer.default_local_dir for a run), then start again."
    )
    return f"Disk full{place.words}: {what} failed because {reason}. {space_left(error, place)} {remedy}"


def out_of_files() -> str:
    """The remedy for too many open files, as a sentence."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"This process may hold {limit} files open at once (ulimit -n): raise it, for example with `ulimit -n 65536` "
        "in the shell that starts it, then start again."
    )


def connection_failure(error: BaseException, place: Place) -> str:
    """The paragraph about a failed connection."""
    said = sentence(shortened(f"{type(error).__name__}: {message(error)}"))
    return (
        f"A connection failed{place.words}: {said} Look at the network and at what was connected to, then start again."
    )


def system_failure(error: OSError, place: Place) -> str:
    """The paragraph about any other error of the operating system."""
    number, named = error.errno, _name(error)
    if not isinstance(number, int):  # written by this program or a library, not by the system
        text = sentence(shortened(message(error), 600))
        if isinstance(error, FileNotFoundError) or "does not exist" in text:
            return f"{text} {_AGAIN}"
        return text if len(re.findall(r"\.(?:\s|$)", text)) > 1 else f"{text} Check what it names, then start again."
    reason = error.strerror if isinstance(error.strerror, str) and error.strerror.strip() else message(error)
    about = f"{named}: {reason}" if named else reason
    if number in (errno.EACCES, errno.EPERM):
        remedy = (
            f"{_ownership(error)}Change its permissions, or choose a folder of your own (trainer.default_local_dir for "
            "a run), then start again."
        )
    elif number in _CONNECTION or type(error).__name__ == "gaierror":
        return connection_failure(error, place)
    else:
        remedy = _REMEDIES.get(number, "Put right what it says, then start again.")
    return f"The operating system refused something{place.words}: {sentence(shortened(about, 600))} {remedy}"


def _name(error: BaseException) -> str | None:
    """The file that `error` names."""
    name = error.filename if isinstance(error, OSError) else None
    name = os.fsdecode(name) if isinstance(name, (bytes, os.PathLike)) else name
    return " ".join(name.split()) if isinstance(name, str) and name else None


def _ownership(error: OSError) -> str:
    """Who may do what with the file, or with the nearest folder above it."""
    named = _name(error)
    path = None if named is None else _existing(Path(named))
    if path is None:
        return ""
    try:
        status = path.stat()
    except OSError:
        return ""
    owner, mode = status.st_uid, status.st_mode & 0o7777
    return f"{path} belongs to user {owner} with mode {mode:o}, and you are user {os.getuid()}. "


def _folders(error: BaseException, place: Place) -> Iterator[Path]:
    """Where the file may have been written: a write error often does not name it."""
    named = _name(error)
    run = None if place.config is None else place.config.trainer.default_local_dir
    for candidate in (named,) if named else (run, tempfile.gettempdir(), os.curdir):
        if candidate and (path := _existing(Path(candidate).expanduser())) is not None:
            yield path


def _existing(path: Path) -> Path | None:
    """`path` as an absolute one, or the nearest folder above it that exists."""
    try:
        absolute = path.absolute()
        return next((parent for parent in (absolute, *absolute.parents) if parent.exists()), None)
    except (OSError, ValueError):  # a name that no file system takes
        return None
