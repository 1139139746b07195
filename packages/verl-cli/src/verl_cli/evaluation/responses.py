"""Responses to prompts as validation draws them: the one way to ask a model, in training and out of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from verl_data import Prompt
from verl_rollout import Request

from verl_cli.config import RunConfig
from verl_cli.controller import WorkerGroup

#: The step in the key of a response's random stream. Training begins at step 1, so the streams are never the same.
_STEP = 0


@dataclass(frozen=True)
class Response:
    """One response to a prompt."""

    prompt: Prompt
    repeat: int
    """Which of the prompt's n responses it is, from 0."""
    text: str
    """Without special tokens."""
    token_ids: np.ndarray
    """(R,) int64."""
    finish_reason: str
    """`stop`, or `length` for a response that was cut."""


def prompts_per_call(config: RunConfig) -> int:
    """Prompts that `respond` is given at once: enough for the engine to put responses of like lengths together, few
    enough to see progress and to hold the responses in memory.
    """
    rollout = config.actor_rollout_ref.rollout
    return max(1, 4 * rollout.max_num_seqs // rollout.val_kwargs.n)


def respond(config: RunConfig, prompts: Sequence[Prompt], rollout: WorkerGroup, tokenizer: Any) -> list[Response]:
    """Generate `val_kwargs.n` responses for each prompt; those to one prompt stand side by side.

    What is drawn depends on the seed, the prompt's row and the repeat, and so is the same at every validation of the
    same weights, whatever other rows are there.
    """
    options = config.actor_rollout_ref.rollout
    repeated = [(prompt, repeat) for prompt in prompts for repeat in range(options.val_kwargs.n)]
    completions = rollout.call(
        "generate",
        [Request(prompt_ids=prompt.prompt_ids, key=(_STEP, prompt.row, repeat)) for prompt, repeat in repeated],
        sampling=options.validation_sampling(config.data.max_response_length),
    )
    texts = tokenizer.batch_decode([completion.token_ids for completion in completions], skip_special_tokens=True)
    return [
        Response(prompt, repeat, text, completion.token_ids, completion.finish_reason)
        for (prompt, repeat), text, completion in zip(repeated, texts, completions, strict=True)
    ]
