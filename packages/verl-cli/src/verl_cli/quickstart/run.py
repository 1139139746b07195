"""The quickstart from its first file to its last line."""

import json
import time
from pathlib import Path

import typer
from transformers import AutoTokenizer
from verl_data import read_rows
from verl_data.processors.arithmetic import prepare_addition, sft_pairs

from verl_cli.build import build
from verl_cli.config import resolve
from verl_cli.errors import Interrupted, UserError
from verl_cli.quickstart.model import write_model
from verl_cli.quickstart.warmup import warm_up
from verl_cli.trainer import fit

#: The problems: a + b with both operands in this range; so many of them are held out for validation.
LOW, HIGH, HELD_OUT = 10, 39, 300
#: The model, and its supervised warm-up.
MODEL = {"hidden_size": 96, "layers": 2, "heads": 4}
WARM_UP = {"steps": 200, "rows_per_step": 128, "lr": 2e-3}
#: PPO. Every number that is not here has the default of `verl-cli train`.
PPO = [
    "data.train_batch_size=64",
    "data.max_prompt_length=16",
    "data.max_response_length=6",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.rollout.max_num_seqs=512",
    "actor_rollout_ref.model.enable_gradient_checkpointing=false",
    "actor_rollout_ref.actor.ppo_mini_batch_size=32",
    "actor_rollout_ref.actor.optim.lr=5e-4",
    "actor_rollout_ref.actor.optim.lr_scheduler_type=linear",
    "critic.model.enable_gradient_checkpointing=false",
    "critic.optim.lr=2e-3",
    "critic.optim.lr_scheduler_type=linear",
    "trainer.total_training_steps=100",
    "trainer.test_freq=20",
    "trainer.project_name=quickstart",
    "trainer.experiment_name=addition",
    "trainer.device=cpu",
]


def run_quickstart(run_dir: Path | None, *, seed: int, constant_reward: bool) -> None:
    """Make data and model, warm the model up, train it with PPO and say what came of it."""
    start = time.monotonic()
    folder = run_dir or Path("runs") / time.strftime("quickstart-%Y%m%d-%H%M%S")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} is not an empty folder, and the quickstart overwrites nothing: name another with --run-dir.")
    try:
        warmed = _prepare(folder, seed)
        summary = fit(build(resolve(_overrides(folder, warmed, seed, constant_reward)).config))
    except KeyboardInterrupt as interrupt:
        raise Interrupted(f"Interrupted before PPO began; {folder} holds the files finished so far.") from interrupt
    summary = {**summary, "seconds": round(time.monotonic() - start, 1)}
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    typer.echo(
        f"Accuracy on {HELD_OUT} held-out problems: {summary['val_accuracy_before']:.2f} before PPO, "
        f"{summary['val_accuracy_after']:.2f} after it ({summary['seconds']:.0f} s in all).\n"
        f"Report: {folder / 'report.html'}\n"
        f"Next: the same data and model with GRPO: verl-cli train --preset grpo --config {folder / 'config.yaml'} "
        f"trainer.default_local_dir={folder}-grpo"
    )


def _prepare(folder: Path, seed: int) -> Path:
    """Write data, initial model and warmed-up model; return the last."""
    data, initial, warmed = folder / "data", folder / "models" / "initial", folder / "models" / "warmed_up"
    prepare_addition(data, low=LOW, high=HIGH, validation=HELD_OUT, seed=seed)
    write_model(initial, seed=seed, **MODEL)
    typer.echo(f"1/3 {folder}: addition of {LOW}..{HIGH}, {HELD_OUT} problems held out, and a model of random weights")
    shown = time.monotonic()

    def progress(step: int, loss: float) -> None:
        nonlocal shown
        if time.monotonic() - shown > 2 or step == WARM_UP["steps"]:
            shown = time.monotonic()
            typer.echo(f"2/3 supervised warm-up: step {step} of {WARM_UP['steps']}, loss {loss:.3f}")

    pairs = sft_pairs(list(read_rows(data / "train.parquet")))
    warm_up(initial, warmed, pairs, AutoTokenizer.from_pretrained(initial), seed=seed, progress=progress, **WARM_UP)
    typer.echo("3/3 PPO")
    return warmed


def _overrides(folder: Path, model: Path, seed: int, constant_reward: bool) -> list[str]:
    overrides = [
        *PPO,
        f"data.train_files={folder / 'data' / 'train.parquet'}",
        f"data.val_files={folder / 'data' / 'validation.parquet'}",
        f"data.seed={seed}",
        f"actor_rollout_ref.model.path={model}",
        f"actor_rollout_ref.rollout.seed={seed}",
        f"trainer.seed={seed}",
        f"trainer.default_local_dir={folder}",
    ]
    if constant_reward:
        overrides += [
            "reward.custom_reward_function.path=pkg://verl_cli.quickstart.rewards",
            "reward.custom_reward_function.name=constant_reward",
        ]
    return overrides
