"""Cutting a step's batch into mini-batches, and calling an engine on each of them."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from verl_data import PackedBatch
from verl_engine import Loss, Metrics, Output, over_steps

from verl_cli.columns import loss_denominators
from verl_cli.controller import WorkerGroup
from verl_cli.phases import Step


class MiniBatch(NamedTuple):
    """What one optimiser step is taken on."""

    batch: PackedBatch
    rows: np.ndarray
    """(N,) its rows' numbers in the step's batch."""
    number: int
    """Optimiser steps of this role in the step before it."""


def mini_batches(step: Step, prompts_per_mini_batch: int, *, shuffle_seed: int | None) -> list[np.ndarray]:
    """The rows of each mini-batch: all responses of `prompts_per_mini_batch` prompts, in the batch's order or shuffled.

    A pure function of the step, so that the log-prob pass and the update cut alike.
    """
    group = np.asarray(step.batch["group"])
    order = np.unique(group)
    if shuffle_seed is not None:
        order = np.random.default_rng((shuffle_seed, step.number)).permutation(order)
    cuts = range(0, len(order), prompts_per_mini_batch)
    return [np.flatnonzero(np.isin(group, order[start : start + prompts_per_mini_batch])) for start in cuts]


def forward(
    workers: WorkerGroup, batch: PackedBatch, rows: Sequence[np.ndarray], outputs: Sequence[Output]
) -> dict[str, np.ndarray]:
    """Run the engine's forward pass mini-batch by mini-batch; the columns come back in the batch's own order."""
    parts = [batch.select(part) for part in rows]
    done = [part.with_columns(tokens=workers.call("forward", part, outputs=tuple(outputs))) for part in parts]
    back = np.argsort(np.concatenate(list(rows)), kind="stable")
    merged = PackedBatch.concat(done).select(back)
    return {name: merged.tokens[name] for name in outputs}


def train(
    workers: WorkerGroup,
    batch: PackedBatch,
    rows: Sequence[np.ndarray],
    loss: Loss,
    epochs: int,
    prepare: Callable[[MiniBatch], tuple[PackedBatch, Metrics]] = lambda mini_batch: (mini_batch.batch, {}),
) -> dict[str, float]:
    """Take one optimiser step per mini-batch and epoch; metrics, under the role's name, combine as they declare.

    `prepare` gives each mini-batch what is only known at its turn. Its metrics keep their names.
    """
    steps: list[Metrics] = []
    prepared: list[Metrics] = []
    for epoch in range(epochs):
        for index, part in enumerate(rows):
            share, metrics = prepare(MiniBatch(batch.select(part), part, epoch * len(rows) + index))
            prepared.append(metrics)
            steps.append(workers.call("train_batch", share, loss=loss, denominators=loss_denominators(share)))
    return {f"{workers.role}/{name}": value for name, value in over_steps(steps).items()} | over_steps(prepared)
