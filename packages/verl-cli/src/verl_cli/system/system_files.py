"""Files of the system and of other programs, which may be missing or not ours to read: then they are empty."""

import os
import pwd
from collections.abc import Mapping
from pathlib import Path


def text_of(file: Path) -> str:
    """The text of a file, "" if it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def entries_of(folder: Path) -> list[Path]:
    """What lies in a folder, in order; nothing if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def user_name(uid: int) -> str:
    """The name of a user, or the number where it has none (as often in a container)."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def home_folder(environ: Mapping[str, str]) -> Path:
    """The user's own folder; `/` for a user that the system does not know."""
    if environ.get("HOME"):
        return Path(environ["HOME"])
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        return Path("/")
