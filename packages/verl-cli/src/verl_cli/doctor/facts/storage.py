"""Room and permission where a run writes."""

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from verl_cli.doctor.facts.deadline import within
from verl_cli.system.system_files import home_folder, user_name

_SECONDS = 3.0


@dataclass(frozen=True)
class Place:
    """A folder that a run writes to; numbers are those of its nearest folder that exists."""

    role: str
    path: str
    exists: bool = True
    free_bytes: int | None = None
    #: Share of the file system's files that can still be made; None where the file system does not count them.
    free_files: float | None = None
    #: Why nothing can be written there; None if it can.
    failure: str | None = None


def gather_storage(environ: Mapping[str, str], working_folder: Path) -> tuple[Place, ...]:
    """Look at each folder, and try to write there in a file without a name that is gone at once."""
    home = home_folder(environ)
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    hub = Path(environ.get("HF_HUB_CACHE") or Path(environ.get("HF_HOME") or cache / "huggingface") / "hub")
    temporary = Path(environ.get("TMPDIR") or tempfile.gettempdir())
    user = environ.get("LOGNAME") or environ.get("USER") or user_name(os.getuid())
    places = {
        "run directory": working_folder,
        "temporary files": temporary,
        "Hugging Face cache": hub,
        "Triton cache": Path(environ.get("TRITON_CACHE_DIR") or home / ".triton/cache"),
        "Inductor cache": Path(environ.get("TORCHINDUCTOR_CACHE_DIR") or temporary / f"torchinductor_{user}"),
    }
    return tuple(_look(role, _without_tilde(path, home)) for role, path in places.items())


def _without_tilde(path: Path, home: Path) -> Path:
    return home.joinpath(*path.parts[1:]) if path.parts[:1] == ("~",) else path


def _look(role: str, path: Path) -> Place:
    place = within(_SECONDS, lambda: look_at(role, path))
    return place or Place(role, str(path), failure=f"the file system did not answer within {_SECONDS:g} s")


def look_at(role: str, path: Path) -> Place:
    """What there is to know of one folder."""
    try:
        exists = path.exists()
        folder = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
        system = os.statvfs(folder)
    except OSError as error:
        return Place(role, str(path), False, failure=f"{error.strerror}")
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"verl-cli doctor")
            file.flush()
        failure = None
    except OSError as error:
        failure = f"{error.strerror}: {folder}"
    return Place(
        role,
        str(path),
        exists,
        system.f_bavail * system.f_frsize,
        system.f_favail / system.f_files if system.f_files else None,
        failure,
    )
