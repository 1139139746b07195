"""Supervised fine-tuning of the tiny model on flawed demonstrations, with the same engine that PPO trains with.

Most demonstrations of a sum with a carry forget the carry, as a careless teacher's would: "27+15=32". The model learns
to add, and to forget as well; what is right is left for PPO to find out from the reward alone.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from verl_data import PackedBatch, render_prompt
from verl_data.processors.arithmetic import carries
from verl_engine import EngineConfig, FsdpConfig, FsdpEngine, ModelConfig, OptimConfig

from verl_cli.columns import loss_denominators
from verl_cli.losses import SftLoss


def warm_up(
    model: Path,
    out: Path,
    rows: Sequence[dict[str, Any]],
    tokenizer: Any,
    *,
    seed: int,
    steps: int,
    rows_per_step: int,
    lr: float,
    forgotten_carries: float,
    progress: Callable[[int, float], None],
) -> None:
    """Train `model` for `steps` optimiser steps on demonstrations of `rows` (RL rows of additions); write it to `out`.

    `forgotten_carries` is the share of demonstrations of a sum with a carry that leave it out, drawn anew each time;
    `progress(step, loss)` is called after every step.
    """
    engine = FsdpEngine(
        EngineConfig(
            model=ModelConfig(path=str(model), enable_gradient_checkpointing=False),
            optim=OptimConfig(
                lr=lr, lr_scheduler_type="cosine", lr_warmup_steps=steps // 10, total_training_steps=steps
            ),
            fsdp=FsdpConfig(),
            head="lm",
            max_tokens_per_micro_batch=None,
            max_sequences_per_micro_batch=None,
        )
    )
    # Row 2 i is the right demonstration of problem i, row 2 i + 1 the flawed one.
    ids, masks = zip(*(demonstration(row, tokenizer, flaw) for row in rows for flaw in (False, True)), strict=True)
    demonstrations = PackedBatch.from_sequences({"input_ids": ids, "sampled_mask": masks, "loss_mask": masks})
    generator = np.random.default_rng(seed)
    for step in range(1, steps + 1):
        flawed = generator.random(rows_per_step) < forgotten_carries
        batch = demonstrations.select(2 * generator.integers(len(rows), size=rows_per_step) + flawed)
        metrics = engine.train_batch(batch, SftLoss(), loss_denominators(batch))
        progress(step, metrics["loss"].number())
    engine.export(out)


def demonstration(row: dict[str, Any], tokenizer: Any, forget_carry: bool) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of a prompt with its answer and end-of-sequence, and the mask of the answer."""
    a, b = (int(operand) for operand in row["prompt"][0]["content"].rstrip("=").split("+"))
    answer = a + b - 10 * (forget_carry and carries(a, b))
    prompt = render_prompt(tokenizer, row["prompt"])
    response = [*tokenizer.encode(str(answer), add_special_tokens=False), tokenizer.eos_token_id]
    mask = np.arange(len(prompt) + len(response)) >= len(prompt)
    return np.array([*prompt, *response], dtype=np.int64), mask
