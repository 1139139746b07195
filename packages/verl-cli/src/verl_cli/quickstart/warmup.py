"""Supervised fine-tuning of the tiny model on answered problems, with the same engine that PPO trains with."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from verl_data import PackedBatch, render_prompt
from verl_engine import EngineConfig, FsdpConfig, FsdpEngine, ModelConfig, OptimConfig

from verl_cli.columns import loss_denominators
from verl_cli.losses import SftLoss


def warm_up(
    model: Path,
    out: Path,
    pairs: Sequence[dict[str, Any]],
    tokenizer: Any,
    *,
    steps: int,
    rows_per_step: int,
    lr: float,
    seed: int,
    progress: Callable[[int, float], None],
) -> None:
    """Train `model` for `steps` optimiser steps on prompt/response pairs and write the result to `out`.

    `progress(step, loss)` is called after every step.
    """
    engine = FsdpEngine(
        EngineConfig(
            model=ModelConfig(path=str(model), enable_gradient_checkpointing=False),
            optim=OptimConfig(lr=lr, lr_scheduler_type="linear", total_training_steps=steps),
            fsdp=FsdpConfig(),
            head="lm",
            max_tokens_per_micro_batch=None,
            max_sequences_per_micro_batch=None,
        )
    )
    sequences = [answered(pair, tokenizer) for pair in pairs]
    batch = PackedBatch.from_sequences(
        tokens={"input_ids": [ids for ids, _ in sequences], "sampled_mask": [mask for _, mask in sequences]}
    )
    batch = batch.with_columns(tokens={"loss_mask": batch["sampled_mask"]})
    for step, rows in enumerate(_draws(len(batch), rows_per_step, steps, seed), start=1):
        share = batch.select(rows)
        metrics = engine.train_batch(share, SftLoss(), loss_denominators(share))
        progress(step, metrics["loss"][0])
    engine.export(out)


def answered(pair: dict[str, Any], tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of a prompt with its answer and end-of-sequence, and the mask of the answer."""
    prompt = render_prompt(tokenizer, pair["prompt"])
    response = [*tokenizer.encode(pair["response"], add_special_tokens=False), tokenizer.eos_token_id]
    mask = np.arange(len(prompt) + len(response)) >= len(prompt)
    return np.array([*prompt, *response], dtype=np.int64), mask


def _draws(count: int, size: int, steps: int, seed: int) -> Iterator[np.ndarray]:
    """Rows of each step: pass after pass over all rows, each in a new order."""
    generator = np.random.default_rng(seed)
    rows = np.concatenate([generator.permutation(count) for _ in range(-(-steps * size // count))])
    return (rows[step * size : (step + 1) * size] for step in range(steps))
