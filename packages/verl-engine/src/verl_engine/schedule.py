"""The learning rate as a pure function of the optimiser step."""

import math

from verl_engine.config import OptimConfig


def warmup_steps(config: OptimConfig) -> int:
    """Return the optimiser steps of warm-up: `lr_warmup_steps`, or the ratio of the whole run where that is "
    "negative."""
    if config.lr_warmup_steps >= 0:
        return config.lr_warmup_steps
    if config.lr_warmup_steps_ratio == 0:
        return 0
    return int(config.lr_warmup_steps_ratio * _total(config, f"lr_warmup_steps_ratio={config.lr_warmup_steps_ratio}"))


def lr_multiplier(step: int, config: OptimConfig) -> float:
    """Return the share of `config.lr` that optimiser step `step` uses; steps count from 1.

    Warm-up of w steps is linear, ``step / w``, so that the first step already learns and step w uses the peak rate.
    After it: `constant` 1; `linear` and `cosine` go to `min_lr_ratio`, which the last step of the run uses, and stay
    there. Cosine is ``min + (1 - min) * (1 + cos(2 pi num_cycles progress)) / 2`` (SGDR,
    https://arxiv.org/abs/1608.03983).
    """
    warmup = warmup_steps(config)
    if step < warmup:
        return step / warmup
    kind = config.lr_scheduler_type
    if kind == "constant":
        return 1.0
    if kind not in ("linear", "cosine"):
        raise ValueError(f"Unknown lr_scheduler_type {kind!r}; use constant, linear or cosine.")
    # The peak is used once: by the last warm-up step, or by the first step where there is no warm-up.
    peak = max(warmup, 1)
    decay = _total(config, f"lr_scheduler_type={kind}") - peak
    progress = min(1.0, (step - peak) / decay) if decay > 0 else float(step > peak)
    wave = 0.5 * (1.0 + math.cos(2.0 * math.pi * config.num_cycles * progress))
    share = wave if kind == "cosine" else 1.0 - progress
    return config.min_lr_ratio + (1.0 - config.min_lr_ratio) * share


def _total(config: OptimConfig, reason: str) -> int:
    if config.total_training_steps <= 0:
        raise ValueError(
            f"{reason} needs the length of the run, but total_training_steps is {config.total_training_steps}. "
            "Set total_training_steps to the number of optimiser steps of the whole run."
        )
    return config.total_training_steps
