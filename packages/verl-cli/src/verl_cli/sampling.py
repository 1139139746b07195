"""From prompts to requests, from completions to the packed batch, and from the batch to text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from verl_data import PackedBatch, Prompt
from verl_rollout import Completion, Request

from verl_cli.phases import Step


def training_requests(step: Step, n: int) -> list[Request]:
    """Repeat every prompt n times, repeats side by side: the only place where prompts are repeated.

    Prompts that a step draws later have keys of their own: they go on counting where the earlier ones ended.
    """
    return [
        Request(prompt_ids=prompt.prompt_ids, key=(step.number, index, repeat))
        for index, prompt in enumerate(step.prompts, step.first_prompt)
        for repeat in range(n)
    ]


def rollout_batch(prompts: Sequence[Prompt], completions: Sequence[Completion]) -> PackedBatch:
    """Pack prompts and responses; row i * n + j is response j of prompt i."""
    n = len(completions) // len(prompts)
    groups = [index // n for index in range(len(completions))]
    sampled = [_after_prompt(c, np.ones(len(c.token_ids), dtype=bool)) for c in completions]
    versions = [np.full(len(c.token_ids), c.weight_version, dtype=np.int32) for c in completions]
    return PackedBatch.from_sequences(
        tokens={
            "input_ids": [
                np.concatenate([np.asarray(c.request.prompt_ids, np.int64), c.token_ids]) for c in completions
            ],
            "sampled_mask": sampled,
            "loss_mask": sampled,
            "rollout_logprobs": [_after_prompt(c, c.logprobs) for c in completions],
            "weight_version": [_after_prompt(c, of_tokens) for c, of_tokens in zip(completions, versions, strict=True)],
        },
        sequences={
            "group": np.array(groups, dtype=np.int64),
            "finish_reason": [c.finish_reason for c in completions],
            "data_source": [prompts[group].data_source for group in groups],
        },
    )


def _after_prompt(completion: Completion, values: np.ndarray) -> np.ndarray:
    """A token column of one sequence: `values` on the response, 0 on the prompt."""
    return np.concatenate([np.zeros(len(completion.request.prompt_ids), dtype=values.dtype), values])


def response_texts(batch: PackedBatch, tokenizer: Any) -> list[str]:
    """Decode the sampled tokens of every sequence, special tokens left out."""
    responses = [
        ids[mask] for ids, mask in zip(batch.per_sequence("input_ids"), batch.per_sequence("sampled_mask"), strict=True)
    ]
    texts: list[str] = tokenizer.batch_decode(responses, skip_special_tokens=True)
    return texts


def response_tokens(batch: PackedBatch) -> list[int]:
    """The number of sampled tokens of every sequence."""
    return [int(mask.sum()) for mask in batch.per_sequence("sampled_mask")]
