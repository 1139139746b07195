"""Signals and broken pipes: what a command says, leaves and exits with."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from endings import ending, process, signalled
from verl_cli.commands.guard import guarded

Overrides = Callable[..., list[str]]


def test_sigterm_in_the_middle_of_a_checkpoint(overrides: Overrides, tmp_path: Path) -> None:
    """Slurm sends it at the end of the time limit."""
    program = (
        "import sys, time\n"
        "from verl_engine import FsdpEngine\n"
        "def export(self, directory):\n"
        "    directory.mkdir()\n"
        "    (directory / 'half').touch()\n"
        "    for _ in range(3000): time.sleep(0.1)\n"
        "FsdpEngine.export = export\n"
        "from verl_cli.main import main\n"
        "sys.argv[0] = 'verl-cli'\n"
        "main()\n"
    )
    command = overrides(trainer__total_training_steps=2, trainer__save_freq=1)
    run_dir = tmp_path / "run"
    code, errors = signalled(
        ["-c", program, "train", *command],
        lambda: bool(list(run_dir.glob(".global_step_*/*/huggingface/half"))),
        signal.SIGTERM,
        signal.SIGTERM,
    )
    assert code == 143, errors
    assert "Traceback" not in errors
    assert re.search(r"^error: Interrupted after step 1 of 2", errors, re.MULTILINE)
    assert not list(run_dir.glob(".global_step_*"))
    assert not list(run_dir.glob("global_step_*"))


def notice_ctrl_c() -> None:
    """A background job of a shell ignores it, and what it starts does too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize(("number", "word"), [(signal.SIGTERM, "Ended by SIGTERM"), (signal.SIGINT, "Interrupted")])
def test_signals_outside_a_run(number: signal.Signals, word: str) -> None:
    done = process(
        f"import os, time\ndef run():\n    os.kill(os.getpid(), {int(number)})\n    time.sleep(60)\nguarded(run)\n",
        limit=notice_ctrl_c,
    )
    assert (done.returncode, done.stderr) == (
        128 + number,
        f"error: {word}. Files that were already written are whole.\n",
    )


def test_ignored_signals_stay_ignored_and_handlers_are_given_back() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        guarded(lambda: os.kill(os.getpid(), signal.SIGTERM))
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        guarded(lambda: None)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_forked_child_ends_by_the_signal_itself() -> None:
    done = process(
        "import os, signal, time\n"
        "def run():\n"
        "    reader, writer = os.pipe()\n"
        "    if (child := os.fork()) == 0:\n"
        "        os.write(writer, b'!')\n"  # a fork drops what comes before
        "        for _ in range(600): time.sleep(0.1)\n"  # a signal just before a sleep does not end it
        "        os._exit(1)\n"
        "    os.read(reader, 1)\n"
        "    os.kill(child, signal.SIGTERM)\n"
        "    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "guarded(run)\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "-15\n", "")


@pytest.mark.parametrize("lines", [1, 10**6])
def test_an_output_that_nobody_reads_ends_quietly(lines: int) -> None:
    """`verl-cli ... | head`: as if SIGPIPE had ended it, which is what a shell expects."""
    program = (
        "from verl_cli.commands.guard import guarded\n"
        f"guarded(lambda: [input(), [print('line') for _ in range({lines})]])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdin and running.stdout and running.stderr
        running.stdout.close()
        running.stdin.write(b"\n")
        running.stdin.close()
        errors = running.stderr.read()
    assert (running.returncode, errors) == (141, b"")


def test_another_broken_pipe_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        reader, writer = os.pipe()
        os.close(reader)
        try:
            os.write(writer, b"x")
        finally:
            os.close(writer)

    assert "A connection failed: BrokenPipeError" in ending(run, capsys)
