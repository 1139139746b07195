"""tools/release in a repository of its own: what it writes, and each reason to refuse."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parent.parent
PYPROJECT = """[project]
name = "{name}"
version = "0.1.0"
dependencies = {dependencies}

[tool.hatch.build.targets.wheel]
packages = ["src/{name}"]
"""


def git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=repository, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def release(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(repository / "tools" / "release"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"})


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clean repository with verl-data 0.1.0 and verl-engine, which asks for >=0.1,<0.3 of it."""
    for variable in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Tester")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "tester@example.org")
    root = tmp_path / "repository"
    for name, dependencies in (("verl-data", "[]"), ("verl-engine", '["numpy>=2", "verl-data>=0.1,<0.3"]')):
        folder = root / "packages" / name
        folder.mkdir(parents=True)
        (folder / "pyproject.toml").write_text(PYPROJECT.format(name=name, dependencies=dependencies), "utf-8")
        changelog = (
            f"# Changelog of {name}\n\n## 0.3.0\n- Third.\n\n## 0.2.0\n- Second.\n\n## 0.1.1\n\n## 0.1.0\n- First.\n"
        )
        (folder / "CHANGELOG.md").write_text(changelog, "utf-8")
    (root / "tools").mkdir()
    for name in ("release", "workspace.py"):
        shutil.copy(TOOLS / name, root / "tools")
    (root / ".gitignore").write_text("__pycache__/\n", "utf-8")
    git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "Start")
    return root


def test_release_bumps_commits_and_tags_one_package(repository: Path) -> None:
    done = release(repository, "verl-data", "0.2.0")
    assert done.returncode == 0, done.stderr
    assert 'version = "0.2.0"' in (repository / "packages/verl-data/pyproject.toml").read_text("utf-8")
    assert 'version = "0.1.0"' in (repository / "packages/verl-engine/pyproject.toml").read_text("utf-8")
    assert git(repository, "status", "--porcelain") == ""
    assert git(repository, "log", "-1", "--format=%s") == "Release verl-data 0.2.0"
    assert git(repository, "diff", "--name-only", "HEAD~1") == "packages/verl-data/pyproject.toml"
    assert git(repository, "rev-parse", "verl-data-v0.2.0^{commit}") == git(repository, "rev-parse", "HEAD")
    assert "- Second." in git(repository, "tag", "--list", "--format=%(contents)", "verl-data-v0.2.0")


def test_the_first_version_is_tagged_without_a_bump_and_only_once(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    assert release(repository, "verl-data", "0.1.0").returncode == 0
    assert git(repository, "rev-parse", "HEAD") == git(repository, "rev-parse", "verl-data-v0.1.0^{commit}") == head
    again = release(repository, "verl-data", "0.1.0")
    assert again.returncode == 1
    assert "has been released" in again.stderr


def test_dry_run_changes_nothing(repository: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    done = release(repository, "verl-data", "0.2.0", "--dry-run")
    assert done.returncode == 0
    assert "verl-data 0.1.0 -> 0.2.0, tag verl-data-v0.2.0" in done.stdout
    assert git(repository, "rev-parse", "HEAD") == head
    assert git(repository, "status", "--porcelain") == git(repository, "tag", "--list") == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("verl-date", "0.2.0"), "there is no package verl-date; the workspace has verl-data, verl-engine"),
        (("verl-data", "two"), "'two' is not a version"),
        (("verl-data", "0.2.0-rc1"), "write 0.2.0rc1"),
        (("verl-data", "0.2.0+local"), "not a version in normal form"),
        (("verl-data", "0.0.9"), "would go back"),
        (("verl-data", "0.2.1"), "has no section `## 0.2.1`"),
        (("verl-data", "0.1.1"), "is empty"),
        (
            ("verl-data", "0.3.0"),
            "outside the range of its siblings: packages/verl-engine/pyproject.toml asks for verl-data",
        ),
    ],
)
def test_release_is_refused_before_anything_changes(repository: Path, arguments: tuple[str, str], message: str) -> None:
    head = git(repository, "rev-parse", "HEAD")
    done = release(repository, *arguments)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert git(repository, "rev-parse", "HEAD") == head
    assert git(repository, "status", "--porcelain") == git(repository, "tag", "--list") == ""


def test_release_is_refused_in_a_tree_with_changes(repository: Path) -> None:
    (repository / "note.txt").write_text("draft", "utf-8")
    done = release(repository, "verl-data", "0.2.0")
    assert done.returncode == 1
    assert "not clean" in done.stderr
    assert "note.txt" in done.stderr


def test_a_refused_commit_leaves_the_version_as_it_was(repository: Path) -> None:
    hook = repository / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho the hook says no >&2\nexit 1\n", "utf-8")
    hook.chmod(0o755)
    done = release(repository, "verl-data", "0.2.0")
    assert done.returncode == 1
    assert "the hook says no" in done.stderr
    assert git(repository, "status", "--porcelain") == git(repository, "tag", "--list") == ""
