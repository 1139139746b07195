"""What the tools know of the workspace: its folder, its packages and where uv is."""

from __future__ import annotations

import os
import shutil
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent


class ToolError(Exception):
    """What went wrong, with what, and what to do, in one paragraph."""


@dataclass(frozen=True)
class Package:
    """One package of the workspace, as its pyproject.toml declares it."""

    name: str
    version: str
    folder: Path
    import_names: tuple[str, ...]
    # Required packages of the workspace, each with the range that is asked for.
    siblings: dict[str, Requirement]
    extras: tuple[str, ...]


def root_settings() -> dict[str, Any]:
    """The `tool` table of the workspace's pyproject.toml."""
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]
    return settings


def read_packages() -> dict[str, Package]:
    """Every package of the workspace by distribution name, in the order of the names."""
    projects = {path.parent: tomllib.loads(path.read_text("utf-8")) for path in ROOT.glob("packages/*/pyproject.toml")}
    names = {content["project"]["name"] for content in projects.values()}
    packages = {}
    for folder, content in sorted(projects.items()):
        project = content["project"]
        required = [Requirement(line) for line in project["dependencies"]]
        wheel_folders = content["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        packages[project["name"]] = Package(
            name=project["name"],
            version=project["version"],
            folder=folder,
            import_names=tuple(Path(path).name for path in wheel_folders),
            extras=tuple(project.get("optional-dependencies", ())),
            siblings={requirement.name: requirement for requirement in required if requirement.name in names},
        )
    return packages


def find_uv() -> str:
    """Path of uv: beside the running interpreter, or on PATH."""
    beside = Path(sys.executable).parent / ("uv.exe" if os.name == "nt" else "uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        install = f"{sys.executable} -m pip install uv"
        raise ToolError(f"uv is neither beside {sys.executable} nor on PATH; install it: {install}")
    return found
