"""Batch sizes, steps and schedules as numbers with units: pure functions of the configuration and the data's size."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from verl_data import pack


class MicroBatch(NamedTuple):
    """The size of one forward and backward pass."""

    sequences: int
    tokens: int
    targets: int
    """Tokens that the model is asked about: those of the responses."""


class Wave(NamedTuple):
    """Sequences that the rollout decodes together."""

    sequences: int
    prompts: int
    """Different prompts among them: each is computed once."""
    prompt_tokens: int
    """Tokens of the longest prompt, to which the others are padded."""
    tokens: int
    """Tokens of a sequence, padding included, when its last token is generated."""
    padded: bool
    """Whether prompts differ in length."""


@dataclass(frozen=True)
class Cut:
    """What bounds a micro-batch: its tokens or its sequences."""

    tokens: int | None
    sequences: int | None

    @classmethod
    def of(cls, dynamic: bool, sequences: int | None, tokens: int) -> "Cut":
        """By a number of sequences where one is given, by tokens otherwise."""
        by_tokens = dynamic or sequences is None
        return cls(tokens if by_tokens else None, None if by_tokens else sequences)

    def most_tokens(self, longest: int) -> int:
        """Tokens that a micro-batch can have when no sequence is longer than `longest` tokens."""
        if self.tokens is not None:
            return self.tokens
        assert self.sequences is not None
        return self.sequences * longest

    def worst(self, sequences: int, longest: int) -> int | None:
        """Micro-batches of `sequences` sequences that all have `longest` tokens; None if not even one fits."""
        each = self.sequences if self.tokens is None else self.tokens // longest
        return -(-sequences // each) if each else None


@dataclass(frozen=True)
class MicroBatches:
    """How the sequences of one mini-batch (or, for the reference, of the whole batch) become micro-batches."""

    cut_by: str
    """tokens or sequences."""
    limit: int
    """Most of them in a micro-batch."""
    most_tokens: int
    """Most tokens of a micro-batch: the limit, or so many sequences of the longest kind."""
    worst: int | None
    """Their number when prompts and responses are all as long as allowed; None when one such sequence does not fit."""
    typical: int | None
    """Their number with the data's own prompts, responses as long as allowed; None where prompts are not known."""


@dataclass(frozen=True)
class Updates:
    """The optimiser steps of one role."""

    role: str
    prompts_per_mini_batch: int
    sequences_per_mini_batch: int
    mini_batches: int
    """Of a training step; a last one that is not full counts."""
    passes: int
    """Over the same rollouts."""
    first_training_step: int
    """After the steps in which only the critic is trained."""
    steps_per_training_step: int
    steps_in_run: int | None
    """None where the length of the run is not known."""
    learning_rate: float
    """At its peak."""
    lr_schedule: str
    """What the rate does after its warm-up, over the optimiser steps of the run."""
    warmup_steps: int | None
    """Optimiser steps of linear warm-up."""
    micro_batches: MicroBatches


@dataclass(frozen=True)
class Schedule:
    """How long a run takes, in training steps."""

    rows: int
    """Training rows in use."""
    rows_are_exact: bool
    """False where only some rows were looked at, so that the number that a filter drops is an estimate."""
    rows_left_out: int
    """Of each epoch: they fill no batch."""
    steps_per_epoch: int
    steps: int
    epochs: float
    validations: list[int]
    """Steps after which validation runs; 0 is before the first."""
    checkpoints: list[int]


@dataclass(frozen=True)
class DynamicSampling:
    """How far a step goes to fill its batch with prompts whose responses differ."""

    metric: str
    """By what responses are compared."""
    most_batches: int | None
    """Batches of prompts that are drawn for one step at most; None where the rows in use are not known."""
    most_prompts: int | None
    most_sequences: int | None


def rank_problem(prompts: int, n: int, ranks: int, key: str) -> str | None:
    """Why a mini-batch cannot be divided over the ranks, if it cannot: a rank without a sequence would never work."""
    if prompts * n >= ranks:
        return None
    return (
        f"A mini-batch of {key}={prompts} prompts x actor_rollout_ref.rollout.n={n} has {prompts}*{n} < {ranks} "
        f"sequences, fewer than there are ranks. Raise {key}, or use fewer ranks (trainer.nnodes, "
        f"trainer.n_gpus_per_node)."
    )


def per_rank(sequences: int, ranks: int) -> tuple[int, int]:
    """The fewest and the most sequences of a rank when `sequences` are dealt out; none is added or dropped."""
    return sequences // ranks, -(-sequences // ranks)


def steps_with(frequency: int, steps: int, *, first: bool = False) -> list[int]:
    """The steps after which something happens: every `frequency` steps, after the last, and at 0 if `first`."""
    every = range(frequency, steps, frequency) if frequency > 0 else ()
    return [*([0] if first else []), *every, *([steps] if steps > 0 else [])]


def mini_batches(lengths: Sequence[int], prompts: int, prompts_per_mini_batch: int, n: int) -> list[list[int]]:
    """The prompt lengths of each mini-batch's sequences in a step of `prompts` prompts, repeats side by side.

    `lengths` are those of the data's prompts, repeated where they are fewer than `prompts`.
    """
    of_step = [lengths[i % len(lengths)] for i in range(prompts)]
    return [
        [length for length in of_step[start : start + prompts_per_mini_batch] for _ in range(n)]
        for start in range(0, prompts, prompts_per_mini_batch)
    ]


def micro_batches(prompt_tokens: Sequence[int], response_tokens: int, cut: Cut) -> list[MicroBatch]:
    """Cut sequences with these prompts and responses of `response_tokens` tokens as the engine does."""
    lengths = np.asarray(prompt_tokens, dtype=np.int64) + response_tokens
    if cut.tokens is not None and lengths.max() > cut.tokens:
        return []
    rows = pack(lengths, max_tokens=cut.tokens, max_sequences=cut.sequences)
    return [MicroBatch(len(part), int(lengths[part].sum()), len(part) * response_tokens) for part in rows]


def waves(
    prompt_tokens: Sequence[int], n: int, response_tokens: int, max_num_seqs: int, context: int | None
) -> list[Wave]:
    """Cut the sequences of a step, n of each prompt, into what is decoded together: by the length of the prompt."""
    rows = [length for length in sorted(prompt_tokens) for _ in range(n)]
    found = []
    for start in range(0, len(rows), max_num_seqs):
        part = rows[start : start + max_num_seqs]
        # The last token that is sampled is not computed any more.
        longest = part[-1] + response_tokens - 1
        prompts = -(-len(part) // n)
        found.append(
            Wave(
                sequences=len(part),
                prompts=prompts,
                prompt_tokens=part[-1],
                tokens=longest if context is None else min(longest, context),
                padded=part[0] != part[-1],
            )
        )
    return found
