"""From prompts to requests, from completions to the packed batch, and from the batch to text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from verl_data import PackedBatch, Prompt
from verl_rollout import Completion, Request

from verl_cli.phases import Step


def training_requests(step: Step, n: int) -> list[Request]:
    """Repeat every prompt n times, repeats side by side: the only place where prompts are repeated."""
    return [
        Request(prompt_ids=prompt.prompt_ids, key=(step.number, index, repeat))
        for index, prompt in enumerate(step.prompts)
        for repeat in range(n)
    ]


def rollout_batch(prompts: Sequence[Prompt], completions: Sequence[Completion]) -> PackedBatch:
    """Pack prompts and responses; row i * n + j is response j of prompt i."""
    n = len(completions) // len(prompts)
    rows = [(index // n, completion) for index, completion in enumerate(completions)]
    prompt_lengths = [len(completion.request.prompt_ids) for completion in completions]

    def with_prompt(values: np.ndarray, prompt_length: int) -> np.ndarray:
        return np.concatenate([np.zeros(prompt_length, dtype=values.dtype), values])

    sampled = [
        with_prompt(np.ones(len(c.token_ids), dtype=bool), length)
        for (_, c), length in zip(rows, prompt_lengths, strict=True)
    ]
    return PackedBatch.from_sequences(
        tokens={
            "input_ids": [np.concatenate([np.asarray(c.request.prompt_ids, np.int64), c.token_ids]) for _, c in rows],
            "sampled_mask": sampled,
            "loss_mask": sampled,
            "rollout_logprobs": [
                with_prompt(c.logprobs, length) for (_, c), length in zip(rows, prompt_lengths, strict=True)
            ],
            "weight_version": [
                with_prompt(np.full(len(c.token_ids), c.weight_version, np.int32), length)
                for (_, c), length in zip(rows, prompt_lengths, strict=True)
            ],
        },
        sequences={
            "group": np.array([group for group, _ in rows], dtype=np.int64),
            "finish_reason": [c.finish_reason for _, c in rows],
            "data_source": [prompts[group].data_source for group, _ in rows],
        },
    )


def response_texts(batch: PackedBatch, tokenizer: Any) -> list[str]:
    """Decode the sampled tokens of every sequence, special tokens left out."""
    responses = [
        ids[mask] for ids, mask in zip(batch.per_sequence("input_ids"), batch.per_sequence("sampled_mask"), strict=True)
    ]
    texts: list[str] = tokenizer.batch_decode(responses, skip_special_tokens=True)
    return texts
