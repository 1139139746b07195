"""Files as users name them (paths, globs, URLs), files that appear whole or not at all, and content hashes."""

import errno
import glob
import hashlib
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from verl_data.errors import DataError

PathLike = str | os.PathLike[str]
_T = TypeVar("_T")

#: Ends the name of a manifest, which lies beside its data and is none.
MANIFEST_SUFFIX = ".manifest.json"
#: Bytes that are hashed at a time.
HASH_BYTES = 16 << 20

_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*(::|://)")


class NoSpaceError(OSError):
    """A full disk, quota or file size limit stopped a file; the message says which and what remains."""


def is_url(name: PathLike) -> bool:
    """Whether a name is an fsspec URL (s3://..., hdfs://..., simplecache::...) rather than a path."""
    return isinstance(name, str) and _URL.match(name) is not None


def expand(files: PathLike | Sequence[PathLike]) -> list[str]:
    """Return the files that a path, a glob, an fsspec URL or a list of them names: paths, and URLs as they are.

    `~` is the home folder; the files of a glob are sorted.

    Raises FileNotFoundError for a file that does not exist and for a glob that matches nothing; DataError for a URL
    whose file system cannot be opened.
    """
    names: list[str] = []
    for entry in [files] if isinstance(files, (str, os.PathLike)) else files:
        names += _expand_url(entry) if isinstance(entry, str) and is_url(entry) else _expand_path(Path(entry))
    if not names:
        raise FileNotFoundError("No data file was named.")
    return names


def _expand_path(path: Path) -> list[str]:
    path = path.expanduser()
    if path.is_file():
        return [str(path)]
    if path.is_dir():
        raise FileNotFoundError(f"{path} is a folder; name its files, for example {path / '*.parquet'}.")
    if not glob.has_magic(str(path)):
        raise FileNotFoundError(f"{path.absolute()} does not exist.")
    # a folder that exists may have brackets in its name
    pattern = Path(glob.escape(str(path.parent)), path.name) if path.parent.is_dir() else path
    found = glob.glob(str(pattern), recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
    matches = [match for match in sorted(found) if Path(match).is_file() and not match.endswith(MANIFEST_SUFFIX)]
    if not matches:
        raise FileNotFoundError(f"No file matches {str(path)!r} (working folder {Path.cwd()}).")
    return matches


def _expand_url(url: str) -> list[str]:
    system, path = _open_url(url)
    if _remote(url, lambda: system.isfile(path)):
        return [url]
    if not glob.has_magic(path):
        raise FileNotFoundError(f"{url} does not exist, or is no file.")
    found = sorted(_remote(url, lambda: system.glob(path)))
    files = [match for match in found if _remote(url, partial(system.isfile, match))]
    matches = [system.unstrip_protocol(match) for match in files if not match.endswith(MANIFEST_SUFFIX)]
    if not matches:
        raise FileNotFoundError(f"No file matches {url!r}.")
    return matches


@contextmanager
def fetched(name: str) -> Iterator[Path]:
    """Give the file `name` as a local path: itself, or for a URL a temporary copy that lasts as long as the block."""
    if not is_url(name):
        yield Path(name).expanduser()
        return
    system, path = _open_url(name)
    with tempfile.TemporaryDirectory(prefix="verl-data-") as folder:
        copy = Path(folder) / "copy"
        _remote(name, lambda: system.get_file(path, str(copy)))
        yield copy


def put(local: Path, url: str) -> None:
    """Copy a file to a URL; it is uploaded under a hidden name first, so that half of it never passes for all of it."""
    system, path = _open_url(url)
    folder, _, name = path.rpartition("/")
    mark = secrets.token_hex(4)
    new, old = (f"{folder}/.{name}.{mark}.{end}" for end in ("tmp", "old"))
    _remote(url, lambda: system.makedirs(folder, exist_ok=True))
    _remote(url, lambda: system.put_file(str(local), new))
    try:
        try:
            system.mv(new, path)
        except FileExistsError:  # not every file system moves onto a file that is there
            system.mv(path, old)
            try:
                system.mv(new, path)
            except OSError:
                system.mv(old, path)
                raise
            system.rm_file(old)
    except OSError as error:
        if system.exists(new):
            system.rm_file(new)
        raise OSError(error.errno, f"{url}: {type(error).__name__}: {error}") from error


def _open_url(url: str) -> tuple[Any, str]:
    import fsspec

    try:
        system, path = fsspec.url_to_fs(url)
    except (ImportError, ValueError, OSError) as error:
        raise DataError(
            f"{url} cannot be opened ({type(error).__name__}: {error}). Drivers are extras of "
            "verl-data: s3 for s3://, hdfs for hdfs:// (which also needs Hadoop's libhdfs); for any other, install the "
            "package that fsspec names."
        ) from error
    return system, str(path)


def _remote(url: str, call: Callable[[], _T]) -> _T:
    """Call a file system, with the URL in the message of what it raises."""
    try:
        return call()
    except OSError as error:
        raise OSError(error.errno, f"{url}: {type(error).__name__}: {error}") from error


@contextmanager
def atomic_file(path: PathLike) -> Iterator[BinaryIO]:
    """Open a hidden temporary file beside `path`, which becomes `path` when the block ends without an error.

    Whoever looks sees the old file or the complete new one, also when the process is killed while writing: what is left
    then is `.NAME.*.tmp`, which no reader takes for data. The folder is made if it is missing.
    """
    target = Path(path).expanduser()
    target = target.resolve() if target.is_symlink() else target  # the link stays, and leads to the new file
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    os.close(descriptor)
    temporary = Path(name)
    try:
        with explain_no_space(target), temporary.open("w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp makes files that only their owner can read
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def explain_no_space(target: Path) -> Iterator[None]:
    """Say of a full disk, quota or file size limit which file it stopped and that nothing was lost."""
    try:
        yield
    except OSError as error:
        if isinstance(error, NoSpaceError) or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise NoSpaceError(
            error.errno,
            f"No room to write {target} ({os.strerror(error.errno)}). What was written so far has been removed, and a "
            f"file that had this name before is unchanged; free space in {target.parent} or choose another folder",
            str(target),
        ) from error


def sha256(path: PathLike) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    content = hashlib.sha256()
    with Path(path).open("rb") as file:
        # large pieces, as this may be a thread beside others, which it waits for behind each
        while piece := file.read(HASH_BYTES):
            content.update(piece)
    return content.hexdigest()
