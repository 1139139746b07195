"""Whether a process of another one goes on."""

import os
import sys
from pathlib import Path


def goes_on(pid: int) -> bool:
    """Not so a process that has ended but whose new parent has not asked for it yet: its own was killed."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, IndexError):
        return sys.platform != "linux"
