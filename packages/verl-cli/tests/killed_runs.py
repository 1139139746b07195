"""Runs in processes of their own, which may kill themselves in the middle, and what is left of them."""

import json
import multiprocessing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from verl_cli.commands.train import run_training
from verl_cli.run.run_dir import RunDir

# Processes that are forked from one which has torch already: a new one for each run would import it for ten seconds.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["verl_cli.trainer", "verl_cli.build", "transformers.models.qwen2"])

#: Kills its process at the n-th response that it scores, if a file beside it says so.
REWARD = """
import os, signal
from pathlib import Path

calls = 0

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    global calls
    calls += 1
    stop = Path(__file__).with_name("kill_at")
    if stop.exists() and calls == int(stop.read_text()):
        os.kill(os.getpid(), signal.SIGKILL)
    return RESULT
"""


class Runs:
    """Runs of one configuration and one reward, given as the expression that the reward function returns."""

    def __init__(
        self, folder: Path, overrides: Callable[..., list[str]], *, reward: str, keys: Mapping[str, object]
    ) -> None:
        self.folder, self.overrides, self.keys = folder, overrides, keys
        self.kill_at = folder / "kill_at"
        (folder / "reward.py").write_text(REWARD.replace("RESULT", reward))

    def command(self, run_dir: Path, **changes: object) -> list[str]:
        """Seven steps, which are three and a half epochs, each saved, and scored in the trainer's process."""
        return self.overrides(
            **{
                "trainer__total_training_steps": 7,
                "trainer__save_freq": 1,
                "trainer__default_local_dir": run_dir,
                "reward__custom_reward_function__path": self.folder / "reward.py",
                "reward__num_workers": 0,  # it is the trainer that the reward function kills
                **self.keys,
                **changes,
            }
        )

    def start(self, run_dir: Path, *, kill_at: int | None = None, **changes: object) -> Any:
        """Start a process that runs; with `kill_at` it kills itself at that response."""
        self.kill_at.unlink(missing_ok=True)
        if kill_at is not None:
            self.kill_at.write_text(str(kill_at))
        process = FORKS.Process(target=run_training, args=(self.command(run_dir, **changes),))
        process.start()
        return process

    def run(self, run_dir: Path, *, kill_at: int | None = None, **changes: object) -> int:
        """Run to the end, or to the kill; returns the exit code."""
        process = self.start(run_dir, kill_at=kill_at, **changes)
        process.join(120)
        assert process.exitcode is not None
        return int(process.exitcode)


def logged(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl."""
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def rows(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl without what depends on the clock, or on whether there are copies."""
    timed = ("timing", "perf/throughput", "perf/time", "sync/seconds", "checkpoint/")
    return [
        {"step": row["step"], **{k: v for k, v in row["data"].items() if not k.startswith(timed)}}
        for row in logged(run_dir)
    ]


def outcome(run_dir: Path) -> dict[str, Any]:
    """Everything of a finished run that must not depend on how often it was stopped."""
    summary = json.loads((run_dir / "summary.json").read_text())
    last = run_dir / f"global_step_{summary['steps']}"
    state = json.loads((last / "trainer_state.json").read_text())
    return {
        "rows": rows(run_dir),
        "samples": (run_dir / "val_samples.jsonl").read_bytes(),
        "actor": (last / "actor" / "huggingface" / "model.safetensors").read_bytes(),
        "critic": (last / "critic" / "huggingface" / "model.safetensors").read_bytes(),
        "state": {name: state[name] for name in ("step", "kl_coef", "loader", "val_accuracy_before")}
        | {"metrics": {k: v for k, v in state["metrics"].items() if k.startswith(("actor", "critic"))}},
        "accuracy": (summary["val_accuracy_before"], summary["val_accuracy_after"]),
    }


def steps(run_dir: Path) -> list[int]:
    """The steps of the complete checkpoints."""
    return [checkpoint.step for checkpoint in RunDir(run_dir).checkpoints()]


def refusal(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The paragraph that a run is refused with."""
    with pytest.raises(SystemExit) as stopped:
        run_training(command)
    assert stopped.value.code == 1
    message = capsys.readouterr().err
    assert "error: " in message and "Traceback" not in message
    return message


def quiet(runs: Runs, run_dir: Path, **changes: object) -> list[str]:
    """A short run that shows nothing."""
    return runs.command(run_dir, **{"trainer__total_training_steps": 2, "trainer__logger": "[]", **changes})
