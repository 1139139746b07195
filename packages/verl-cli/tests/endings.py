"""How a command ends that goes wrong: the one paragraph, and the process."""

import subprocess
import sys
from collections.abc import Callable

import pytest
from verl_cli.commands.guard import guarded
from verl_cli.config import resolve


def ending(run: Callable[[], object], capsys: pytest.CaptureFixture[str], code: int = 1) -> str:
    """The paragraph that a command ends with."""
    with pytest.raises(SystemExit) as stopped:
        guarded(lambda: (run(), None)[1])
    assert stopped.value.code == code
    err = capsys.readouterr().err
    assert "Traceback" not in err
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert err.endswith(errors[0] + "\n")
    return errors[0]


def process(program: str, *arguments: str, limit: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program in which `guarded` ends what goes wrong."""
    code = f"from verl_cli.commands.guard import guarded\n{program}"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False, preexec_fn=limit
    )


def train(overrides: list[str], capsys: pytest.CaptureFixture[str], code: int = 1) -> str:
    return ending(lambda: _train(overrides), capsys, code)


def _train(overrides: list[str]) -> None:
    from verl_cli.build import build
    from verl_cli.trainer import fit

    fit(build(resolve(overrides).config))
