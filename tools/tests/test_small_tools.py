"""The small tools of .ci/run, each run as a process on files of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parent.parent
START = "python3 -m venv .uv && .uv/bin/pip install -q uv && .uv/bin/uv run"


def run(root: Path, name: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of a tool in a repository of its own."""
    (root / "tools").mkdir(exist_ok=True)
    for file in (name, "workspace.py"):
        shutil.copy(TOOLS / file, root / "tools")
    command = [sys.executable, str(root / "tools" / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **variables})


def readme(root: Path, text: str) -> None:
    (root / "README.md").write_text(text, "utf-8")


def test_readme_command_prints_the_line_of_the_fenced_block(tmp_path: Path) -> None:
    readme(
        tmp_path,
        f"# verl\n\n<!-- quickstart-command -->\n```bash\n{START} verl-cli quickstart\n```\n\ntext\n\n"
        f"<!-- test-command -->\n\n```\n{START} pytest\n```\n",
    )
    assert run(tmp_path, "readme_command", "test").stdout == f"{START} pytest\n"
    assert run(tmp_path, "readme_command", "quickstart").stdout == f"{START} verl-cli quickstart\n"


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("", "once, before a fenced block of one line"),
        (f"<!-- test-command -->\n```\n{START} pytest\nrm -r .\n```\n", "one line"),
        (f"<!-- test-command -->\n```\n{START} pytest\n```\n" * 2, "once"),
        ("<!-- test-command -->\n```\npytest\n```\n", "must begin with"),
    ],
)
def test_readme_command_refuses_what_readers_could_not_run(tmp_path: Path, block: str, message: str) -> None:
    readme(tmp_path, f"# verl\n\n{block}")
    done = run(tmp_path, "readme_command", "test")
    assert done.returncode == 1
    assert message in done.stderr


@pytest.mark.parametrize(
    ("before", "after", "arguments", "status"),
    [
        (0.1, 0.36, (), 0),
        (0.1, 0.34, (), 1),
        (0.1, 0.14, ("--min-gain=-1", "--max-gain=0.05"), 0),
        (0.1, 0.16, ("--min-gain=-1", "--max-gain=0.05"), 1),
        (0.1, 0.9, ("--max-seconds=150",), 0),
        (0.1, 0.9, ("--max-seconds=119",), 1),
    ],
)
def test_check_quickstart_holds_the_gain_and_the_time(
    tmp_path: Path, before: float, after: float, arguments: tuple[str, ...], status: int
) -> None:
    summary = {"val_accuracy_before": before, "val_accuracy_after": after, "seconds": 120.0, "seed": 1}
    (tmp_path / "summary.json").write_text(json.dumps(summary), "utf-8")
    (tmp_path / "report.html").touch()
    assert run(tmp_path, "check_quickstart", str(tmp_path), *arguments).returncode == status


def test_check_quickstart_asks_for_the_report(tmp_path: Path) -> None:
    summary = {"val_accuracy_before": 0.0, "val_accuracy_after": 1.0, "seconds": 1.0, "seed": 1}
    (tmp_path / "summary.json").write_text(json.dumps(summary), "utf-8")
    done = run(tmp_path, "check_quickstart", str(tmp_path))
    assert done.returncode == 1
    assert "report.html" in done.stderr


def test_check_tree_finds_index_hosts_and_a_tracked_lock_file(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    (tmp_path / "setup.txt").write_text("pip install torch\n", "utf-8")
    clean = run(tmp_path, "check_tree", UV_DEFAULT_INDEX="https://user:secret@mirror.example.org:8080/simple")
    assert clean.returncode == 0, clean.stdout
    (tmp_path / "setup.txt").write_text("pip install torch\n# from http://mirror.example.org/simple\n", "utf-8")
    found = run(tmp_path, "check_tree", UV_DEFAULT_INDEX="https://user:secret@mirror.example.org:8080/simple")
    assert found.returncode == 1
    assert "setup.txt:2 names the package index mirror.example.org" in found.stdout
    assert "secret" not in found.stdout
    (tmp_path / "setup.txt").unlink()
    (tmp_path / "uv.lock").write_text('source = { registry = "https://lock.example.org/simple" }\n', "utf-8")
    tracked = run(tmp_path, "check_tree")
    assert tracked.returncode == 1
    assert "uv.lock is tracked" in tracked.stdout
    (tmp_path / ".gitignore").write_text("uv.lock\n", "utf-8")
    assert run(tmp_path, "check_tree").returncode == 0
    (tmp_path / "notes.md").write_text("see lock.example.org\n", "utf-8")
    assert "notes.md:1 names" in run(tmp_path, "check_tree").stdout


@pytest.mark.parametrize(("days", "status"), [(0, 1), (4, 1), (6, 0)])
def test_update_constraints_wants_a_day_that_mirrors_have_reached(tmp_path: Path, days: int, status: int) -> None:
    day = datetime.now(UTC) - timedelta(days=days)
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "nothing"\nversion = "1"\nrequires-python = ">=3.11"\n'
        f'[tool.uv]\npackage = false\nexclude-newer = "{day:%Y-%m-%dT%H:%M:%SZ}"\n',
        "utf-8",
    )
    done = run(tmp_path, "update_constraints", UV_OFFLINE="1")
    assert done.returncode == status, done.stderr
    assert ("mirrors may" in done.stderr) is (status == 1)
    assert (tmp_path / "constraints.txt").exists() is (status == 0)
