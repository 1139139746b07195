"""How a command ends that goes wrong: the one paragraph, and the process."""

import signal
import subprocess
import sys
import time
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


def signalled(
    command: list[str],
    when: Callable[[], bool],
    *numbers: signal.Signals,
    before: Callable[[], object] | None = None,
) -> tuple[int, str]:
    """Run Python with `command`, send it signals as soon as `when` holds, and wait; the exit code and standard error.

    `before` is called in the process before the program is.
    """
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=before
    ) as running:
        try:
            while running.poll() is None and not when():
                time.sleep(0.05)
            for number in numbers:
                running.send_signal(number)
            _, errors = running.communicate(timeout=120)
        finally:
            running.kill()
    return running.returncode, errors


def train(overrides: list[str], capsys: pytest.CaptureFixture[str], code: int = 1) -> str:
    return ending(lambda: _train(overrides), capsys, code)


def _train(overrides: list[str]) -> None:
    from verl_cli.build import build
    from verl_cli.trainer import fit

    fit(build(resolve(overrides).config))
