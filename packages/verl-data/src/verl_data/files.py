"""Paths as users write them, files that appear whole or not at all, and content hashes."""

import errno
import glob
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PathLike = str | os.PathLike[str]


class NoSpaceError(OSError):
    """A full disk, quota or file size limit stopped a file; the message says which and what remains."""


def expand(files: PathLike | Sequence[PathLike]) -> list[Path]:
    """Return the files that a path, a glob or a list of them names; `~` is the home folder, a glob's files are sorted.

    Raises FileNotFoundError for a file that does not exist and for a glob that matches nothing.
    """
    paths: list[Path] = []
    for entry in [files] if isinstance(files, (str, os.PathLike)) else files:
        path = Path(entry).expanduser()
        if path.is_file():
            paths.append(path)
            continue
        if path.is_dir():
            raise FileNotFoundError(f"{path} is a folder; name its files, for example {path / '*.parquet'}.")
        if not glob.has_magic(str(path)):
            raise FileNotFoundError(f"{path.absolute()} does not exist.")
        found = glob.glob(str(path), recursive=True)  # noqa: PTH207 - Path.glob takes no absolute pattern
        matches = [match for match in map(Path, sorted(found)) if match.is_file()]
        if not matches:
            raise FileNotFoundError(f"No file matches {str(path)!r} (working folder {Path.cwd()}).")
        paths += matches
    if not paths:
        raise FileNotFoundError("No data file was named.")
    return paths


@contextmanager
def atomic_file(path: PathLike) -> Iterator[BinaryIO]:
    """Open a hidden temporary file beside `path`, which becomes `path` when the block ends without an error.

    Whoever looks sees the old file or the complete new one, also when the process is killed while writing: what is left
    then is `.NAME.*.tmp`, which no reader takes for data. The folder is made if it is missing.
    """
    target = Path(path).expanduser()
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    temporary = Path(name)
    try:
        with explain_no_space(target), os.fdopen(descriptor, "wb") as file:
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
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
