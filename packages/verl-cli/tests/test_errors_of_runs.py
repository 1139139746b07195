"""Runs that fail: what the command tells of data, rewards, and what is not known."""

import json
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from endings import ending, process, train
from verl_cli.commands.guard import guarded
from verl_cli.commands.train import run_training
from verl_cli.config import resolve
from verl_cli.errors import UserError
from verl_cli.failures import Place, place_of, record_failure
from verl_cli.phases import Phase, Step, run_phases
from verl_cli.ppo import PPO

Overrides = Callable[..., list[str]]


def test_a_tokenizer_without_a_chat_template(
    overrides: Overrides, assets: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(assets / "model", bare, ignore=shutil.ignore_patterns("chat_template.jinja"))
    message = train(overrides(actor_rollout_ref__model__path=bare), capsys)
    assert str(bare) in message
    assert "chat_template.jinja" in message
    assert "data.prompt_format=rendered" in message


def test_the_quickstarts_model_refuses_characters_that_it_does_not_know(
    overrides: Overrides, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Its tokenizer would leave them out without a word."""
    rows = tmp_path / "rows.jsonl"
    row: dict[str, Any] = {"data_source": "x", "reward_model": {"ground_truth": "2"}}
    contents = ["1+1="] * 8 + ["What is 1+1?"]
    lines = [json.dumps({**row, "prompt": [{"role": "user", "content": content}]}) for content in contents]
    rows.write_text("\n".join(lines))
    message = train(overrides(data__train_files=rows, data__max_prompt_length=8), capsys)
    assert 'knows the characters 0123456789+= and not "W".' in message
    assert "row 8" in message


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("def compute_score(:", r"raised SyntaxError .*reward\.py:1: `def compute_score\(:`"),
        (
            "def other(**row): return 1.0",
            r"'compute_score' is not defined in .*reward\.py\. Callable names there: other",
        ),
        (
            "def compute_score(text): return 1.0",
            r"compute_score \(.*reward\.py:1\) takes \(text\), but it is called as",
        ),
        (
            "import sys; sys.exit(3)",
            r"raised SystemExit while it was loaded: 3, at .*reward\.py:1 in <module>: `import",
        ),
        (
            "def compute_score(**row):\n  pass",
            r"compute_score \(.*reward\.py:1\) failed on the response to row 0 of the data files .*returned 'None'",
        ),
        (
            "def compute_score(**row): return {'score': 1, 'timeout': 2}",
            r"reward\.py:1\) failed on the response to row 0 .* an entry 'timeout', which a run reports itself: give",
        ),
        ("def compute_score(**row): return {'acc': 1}", r"returned a mapping without 'score' \(it has 'acc'\)"),
        ("async def compute_score(**row):\n  exit(3)", r"raised SystemExit: 3, at .*reward\.py:2 in compute_score"),
    ],
)
def test_a_reward_function_that_fails(
    overrides: Overrides, capsys: pytest.CaptureFixture[str], tmp_path: Path, body: str, said: str
) -> None:
    (tmp_path / "reward.py").write_text(body)
    keys = {"reward__custom_reward_function__path": tmp_path / "reward.py"}
    assert re.search(said, train(overrides(**keys), capsys))
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_reward_function_that_raises_keyboard_interrupt_itself(
    overrides: Overrides, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "reward.py").write_text("def compute_score(**row):\n    raise KeyboardInterrupt\n")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    try:
        keys = {"reward__custom_reward_function__path": tmp_path / "reward.py", "reward__num_workers": 0}
        message = train(overrides(**keys), capsys)
    finally:
        signal.signal(signal.SIGINT, before)
    assert "Nobody interrupted the program" in message
    assert f"{tmp_path}/reward.py, line 2, in compute_score: `raise KeyboardInterrupt`" in message


# What is not known


def test_an_unknown_failure_is_kept(overrides: Overrides, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config, run_dir = resolve(overrides()).config, tmp_path / "run"

    def step() -> None:
        def work(_: Step) -> None:
            print(1 / 0)

        try:
            run_phases([Phase("adv", work)], Step(number=9, epoch=0, prompts=[]))
        except BaseException as error:
            record_failure(run_dir, error, config=config)
            raise

    message = ending(step, capsys)
    log = run_dir / "error.log"
    assert message.startswith(
        "error: An unexpected error in the phase adv (advantages) of step 9: ZeroDivisionError: division by zero. It "
        f"was raised at {__file__}, line "
    )
    assert "`print(1 / 0)`" in message
    assert str(log) in message
    text = log.read_text()
    for part in (
        "Traceback (most recent call last)",
        "ZeroDivisionError: division by zero",
        f"torch {torch.__version__.partition('+')[0]}",
        "transformers ",
        "verl-cli ",
        "step: 9",
        "phase: adv",
        f"configuration: {run_dir / 'config.yaml'}",
        "train_batch_size: 8",
        f"command: {sys.orig_argv[0]}",
    ):
        assert part in text, part
    ending(step, capsys)
    assert log.read_text().startswith(text)
    assert log.read_text().count("Traceback (most recent call last)") == 2


def test_known_failures_and_interrupts_leave_no_log(overrides: Overrides, tmp_path: Path) -> None:
    config = resolve(overrides()).config
    for error in (MemoryError(), KeyboardInterrupt(), UserError("x"), SystemExit(3)):
        record_failure(tmp_path / "run", error, config=config, step=2)
        assert place_of(error) == Place(None, 2, config)
    assert not (tmp_path / "run").exists()


def test_a_log_that_cannot_be_written_leaves_the_traceback(overrides: Overrides, tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    error = ZeroDivisionError("division by zero")
    record_failure(tmp_path / "run", error, config=resolve(overrides()).config)
    assert place_of(error).log is None
    with pytest.raises(ZeroDivisionError):
        guarded(lambda: (_ for _ in ()).throw(error))


def test_without_a_run_the_traceback_goes_to_stderr() -> None:
    done = process("guarded(lambda: 1 / 0)")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last)")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_a_run_that_fails_for_an_unknown_reason(
    overrides: Overrides,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log stays, whatever becomes of the rest of the folder."""
    monkeypatch.setattr(PPO, "reward", lambda self, step: 1 / 0)
    with pytest.raises(SystemExit) as stopped:
        run_training(overrides())
    assert stopped.value.code == 1
    message = capsys.readouterr().err
    assert "error: An unexpected error in the phase reward (scoring responses) of step 1: " in message
    assert "ZeroDivisionError" in (tmp_path / "run" / "error.log").read_text()
