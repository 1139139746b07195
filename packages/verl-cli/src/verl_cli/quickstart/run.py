"""The quickstart from its first file to its last line."""

import os
import shlex
import shutil
import sys
import time
from pathlib import Path

import torch
import typer
from transformers import AutoTokenizer
from verl_data import read_rows
from verl_data.processors.arithmetic import prepare_addition

from verl_cli.build import build, quiet_transformers
from verl_cli.config import resolve, text_override
from verl_cli.errors import InterruptedRunError, UserError
from verl_cli.quickstart.model import write_model
from verl_cli.quickstart.warmup import warm_up
from verl_cli.report import write_report
from verl_cli.run.run_dir import RunDir
from verl_cli.trainer import fit

#: Problems that neither warm-up nor PPO sees.
HELD_OUT = 250
#: Optimiser steps of the supervised warm-up.
WARM_UP_STEPS = 200
#: PPO. Every number that is not here has the default of `verl-cli train`.
PPO = [
    "data.train_batch_size=256",
    "data.max_prompt_length=8",
    "data.max_response_length=3",
    "actor_rollout_ref.model.enable_gradient_checkpointing=false",
    "actor_rollout_ref.actor.ppo_mini_batch_size=128",
    "actor_rollout_ref.actor.optim.lr=5e-4",
    "actor_rollout_ref.actor.optim.lr_scheduler_type=linear",
    "critic.optim.lr=2e-3",
    "trainer.critic_warmup=3",
    "trainer.total_training_steps=43",
    "trainer.test_freq=10",
    "trainer.project_name=quickstart",
    "trainer.experiment_name=addition",
    "trainer.device=cpu",
]


def run_quickstart(run_dir: Path | None, *, seed: int, constant_reward: bool) -> None:
    """Make data and model, warm the model up, train it with PPO and say what came of it."""
    start = time.monotonic()
    torch.set_num_threads(1)  # tensors this small gain nothing from a second thread, and wait for it on a busy machine
    folder = (run_dir or Path("runs") / time.strftime("quickstart-%Y%m%d-%H%M%S")).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(
            f"{folder} is not an empty folder, and the quickstart overwrites nothing: name another with --run-dir."
        )
    try:
        warmed = _prepare(folder, seed)
        summary = fit(build(resolve(_overrides(folder, warmed, seed, constant_reward)).config))
    except KeyboardInterrupt as interrupt:
        raise InterruptedRunError(
            f"Interrupted. Files that the quickstart already wrote to {folder} are whole."
        ) from interrupt
    summary = {**summary, "seconds": round(time.monotonic() - start, 1)}
    RunDir(folder).write_summary(summary)
    write_report(folder)
    again = [
        *(*_program(), "train", "--config", str(folder / "config.yaml"), "actor_rollout_ref.actor.optim.lr=1e-3"),
        text_override("trainer.default_local_dir", f"{folder}-2"),
    ]
    typer.echo(
        f"Accuracy on {HELD_OUT} held-out problems: {summary['val_accuracy_before']:.2f} before PPO, "
        f"{summary['val_accuracy_after']:.2f} after it ({summary['seconds']:.0f} s in all).\n"
        f"Report: {folder / 'report.html'}\n"
        f"Next, the same PPO with twice the learning rate: {shlex.join(again)}"
    )


def _program() -> list[str]:
    """How this program was called: through uv, by its name where the shell finds it, or by its path."""
    if uv := os.environ.get("UV"):  # `uv run` says where it is
        return (
            [os.path.relpath(uv), "run", "--no-dev", "verl-cli"]
            if Path(uv).is_relative_to(Path.cwd())
            else ["uv", "run", "--no-dev", "verl-cli"]
        )
    return ["verl-cli"] if shutil.which("verl-cli") else [sys.argv[0]]


def _prepare(folder: Path, seed: int) -> Path:
    """Write data, initial model and warmed-up model; return the last."""
    quiet_transformers()
    data, initial, warmed = folder / "data", folder / "models" / "initial", folder / "models" / "warmed_up"
    prepare_addition(data, low=10, high=49, carry_share=0.7, validation=HELD_OUT, seed=seed)
    write_model(initial, seed=seed)
    typer.echo(f"1/3 {folder}: two-digit additions, {HELD_OUT} of them held out, and a model of random weights")
    begun = shown = time.monotonic()

    def progress(step: int, loss: float) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown > 2 or step == WARM_UP_STEPS:
            shown = now
            left = (now - begun) / step * (WARM_UP_STEPS - step)
            typer.echo(f"2/3 supervised warm-up: step {step} of {WARM_UP_STEPS}, loss {loss:.3f}, {left:.0f} s left")

    rows = list(read_rows(data / "train.parquet"))
    warm_up(
        initial,
        warmed,
        rows,
        AutoTokenizer.from_pretrained(initial),
        seed=seed,
        steps=WARM_UP_STEPS,
        rows_per_step=128,
        lr=3e-3,
        forgotten_carries=0.7,
        progress=progress,
    )
    typer.echo("3/3 PPO")
    return warmed


def _overrides(folder: Path, model: Path, seed: int, constant_reward: bool) -> list[str]:
    overrides = [
        *PPO,
        text_override("data.train_files", folder.absolute() / "data" / "train.parquet"),
        text_override("data.val_files", folder.absolute() / "data" / "validation.parquet"),
        f"data.seed={seed}",
        text_override("actor_rollout_ref.model.path", model.absolute()),
        f"actor_rollout_ref.rollout.seed={seed}",
        f"trainer.seed={seed}",
        text_override("trainer.default_local_dir", folder.absolute()),
    ]
    if constant_reward:
        overrides += [
            "reward.custom_reward_function.path=pkg://verl_cli.quickstart.rewards",
            "reward.custom_reward_function.name=constant_reward",
        ]
    return overrides
