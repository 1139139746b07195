"""Ways to ask that never take longer than they may: a broken driver or a dead file server does not answer at all."""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """What a command said; `failure` is None if it ended by itself with exit code 0, else one line of why not."""

    text: str = ""
    failure: str | None = None


def ask(command: Sequence[str], *, environ: Mapping[str, str], seconds: float) -> Answer:
    """Run a command, and end it (with what it started) if it takes longer than `seconds`."""
    name = command[0].rpartition("/")[2]
    try:
        process = subprocess.Popen(
            command,
            env=dict(environ) | {"LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Answer(failure=f"{name} cannot be started: {error.strerror}")
    try:
        text, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _end(process)
        return Answer(failure=f"{name} did not answer within {seconds:g} s")
    except BaseException:  # Ctrl-C does not reach it, since it has a session of its own
        _end(process)
        raise
    if process.returncode:
        words = " ".join(text.split()) or "no output"
        return Answer(text, f"{name} failed with exit code {process.returncode}: {words[-300:]}")
    return Answer(text)


def _end(process: "subprocess.Popen[str]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    # A process that hangs inside a driver does not even die: do not wait for it.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=1)


def within(seconds: float, question: Callable[[], T]) -> T | None:
    """The answer of `question`, or None if it is not there within `seconds`; its thread then dies with the program."""
    answers: list[T] = []
    thread = threading.Thread(target=lambda: answers.append(question()), daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else None
