"""tools/check_isolated on a tiny workspace of two packages: what it passes and what it must catch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parent.parent
PYPROJECT = """[project]
name = "{name}"
version = "0.1.0"
readme = "README.md"
dependencies = {dependencies}

[build-system]
requires = ["hatchling>=1.27,<2"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["src/{module}"]
"""


def offline(**variables: str) -> dict[str, str]:
    """Environment in which uv takes everything from its cache: these tests ask the network for nothing."""
    return {**os.environ, "UV_OFFLINE": "1", **variables}


def check(root: Path, *names: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "tools" / "check_isolated"), *names]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=offline())


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """verl-data, which needs nothing, and verl-engine, which needs verl-data; the names that check_isolated knows."""
    real = tomllib.loads((TOOLS.parent / "pyproject.toml").read_text("utf-8"))["tool"]
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.uv]\nexclude-newer = "{real["uv"]["exclude-newer"]}"\n'
        '[tool.pytest.ini_options]\naddopts = "-q --import-mode=importlib"\nfilterwarnings = ["error"]\n'
        'markers = ["alone: runs also alone"]\n',
        "utf-8",
    )
    shutil.copy(TOOLS.parent / "constraints.txt", tmp_path)
    (tmp_path / "tools").mkdir()
    for file in ("check_isolated", "workspace.py"):
        shutil.copy(TOOLS / file, tmp_path / "tools")
    for name, dependencies in (("verl-data", "[]"), ("verl-engine", '["verl-data>=0.1,<0.2"]')):
        folder, module = tmp_path / "packages" / name, name.replace("-", "_")
        (folder / "src" / module).mkdir(parents=True)
        (folder / "tests").mkdir()
        (folder / "pyproject.toml").write_text(
            PYPROJECT.format(name=name, module=module, dependencies=dependencies), "utf-8"
        )
        (folder / "README.md").write_text(name, "utf-8")
        (folder / "src" / module / "__init__.py").write_text("", "utf-8")
        (folder / "tests" / "test_it.py").write_text(f"import {module}\n\ndef test_it():\n    pass\n", "utf-8")
    (tmp_path / "packages/verl-engine/src/verl_engine/__init__.py").write_text("import verl_data\n", "utf-8")
    return tmp_path


@pytest.fixture(autouse=True)
def cached(tmp_path: Path) -> None:
    """Skip where uv's cache lacks what a build and a test run need (it has them once uv has made the workspace)."""
    sys.path.insert(0, str(TOOLS))
    try:
        from workspace import find_uv
    finally:
        sys.path.remove(str(TOOLS))
    command = [find_uv(), "pip", "install", "--dry-run", "--target", str(tmp_path / "none"), "--constraint"]
    command += [str(TOOLS.parent / "constraints.txt"), "pytest", "hypothesis", "hatchling"]
    if subprocess.run(command, capture_output=True, check=False, env=offline()).returncode != 0:
        pytest.skip("uv's cache lacks pytest, hypothesis or hatchling")


def test_a_workspace_whose_packages_work_alone_passes(workspace: Path) -> None:
    done = check(workspace)
    assert done.returncode == 0, done.stderr
    assert "verl-engine: imports only what it needs" in done.stdout
    assert "2 of 2 packages work alone" in done.stdout


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("src/verl_data/extra.py", "import verl_engine\n", "verl_data.extra: No module named 'verl_engine'"),
        ("src/verl_data/__init__.py", "import sys\nsys.modules['torch'] = sys\n", "`import verl_data` loads torch"),
        (
            "src/verl_data/extra.py",
            "import os.path\nfrom . import extra\ndef late():\n    from nowhere.at_all import anything\n",
            "nowhere: verl_data/extra.py:4",
        ),
        ("tests/test_it.py", "import warnings\ndef test_it():\n    warnings.warn('old')\n", "UserWarning: old"),
    ],
)
def test_what_does_not_work_alone_fails(workspace: Path, file: str, text: str, message: str) -> None:
    (workspace / "packages/verl-data" / file).write_text(text, "utf-8")
    done = check(workspace, "verl-data")
    assert done.returncode == 1
    assert message in done.stderr
    assert "0 of 1 packages work alone" in done.stdout


def test_of_verl_cli_the_marked_tests_run_unless_all_are_asked_for(workspace: Path) -> None:
    folder = workspace / "packages/verl-cli"
    shutil.copytree(workspace / "packages/verl-data", folder)
    (folder / "src/verl_data").rename(folder / "src/verl_cli")
    (folder / "pyproject.toml").write_text(PYPROJECT.format(name="verl-cli", module="verl_cli", dependencies="[]"))
    (folder / "tests/test_it.py").write_text(
        "import pytest\n\n@pytest.mark.alone\ndef test_marked():\n    pass\n\ndef test_other():\n    assert False\n"
    )
    done = check(workspace, "verl-cli")
    assert done.returncode == 0, done.stderr
    assert "verl-cli: 1 passed" in done.stdout
    done = check(workspace, "verl-cli", "--all")
    assert done.returncode == 1
    assert "test_other" in done.stderr and "1 failed, 1 passed" in done.stderr


def test_a_dependency_that_brings_what_must_not_come_fails(workspace: Path) -> None:
    pyproject = workspace / "packages/verl-data/pyproject.toml"
    torch = workspace / "packages/torch"
    shutil.copytree(workspace / "packages/verl-data", torch)
    (torch / "src/verl_data").rename(torch / "src/torch")
    (torch / "pyproject.toml").write_text(
        PYPROJECT.format(name="torch", module="torch", dependencies="[]").replace("0.1.0", "2.13.0"), "utf-8"
    )
    pyproject.write_text(PYPROJECT.format(name="verl-data", module="verl_data", dependencies='["torch"]'), "utf-8")
    (workspace / "constraints.txt").write_text("", "utf-8")
    done = check(workspace, "verl-data")
    assert done.returncode == 1
    assert "installing verl-data also installs torch" in done.stderr


def test_an_unknown_package_is_refused(workspace: Path) -> None:
    done = check(workspace, "verl-date")
    assert done.returncode == 2
    assert "no package verl-date; the workspace has verl-data, verl-engine" in done.stderr
