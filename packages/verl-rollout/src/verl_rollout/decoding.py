"""The decoding loop over a Hugging Face causal language model: sequences generated together, one token a step."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from verl_rollout.errors import NonFiniteLogitsError
from verl_rollout.interface import FinishReason, Request, Sampling
from verl_rollout.sampling import random_streams, sample, uniforms

#: Finished sequences leave the batch when they are at least this share of it: each removal copies the cache once.
_FINISHED_SHARE = 0.25


@dataclass(frozen=True)
class Finished:
    """One response, with the index that its request has in the wave."""

    index: int
    token_ids: np.ndarray
    logprobs: np.ndarray
    finish_reason: FinishReason


class Wave:
    """Requests decoded together, from their prompts to the end of the longest response.

    Prompts are padded on the left, and padding is masked and not counted in the position ids, so that each sequence is
    computed as if alone. Equal prompts are computed once and their keys and values then copied.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        requests: Sequence[Request],
        sampling: Sampling,
        *,
        stop_ids: np.ndarray,
        context_tokens: int | None,
    ) -> None:
        """Prepare the wave; `context_tokens` is the most tokens of prompt and response together."""
        self._model = model
        self._accepted = inspect.signature(model.forward).parameters
        self._device = next(model.parameters()).device
        self._requests = requests
        self._sampling = sampling
        self._stop_ids = stop_ids
        self._context_tokens = context_tokens

        prompt_lengths = np.array([len(request.prompt_ids) for request in requests], dtype=np.int64)
        room = np.full(len(requests), sampling.max_tokens, dtype=np.int64)
        self._limits = room if context_tokens is None else np.minimum(room, context_tokens - prompt_lengths)
        self._streams = random_streams(sampling.seed, [request.key for request in requests])
        self._tokens = np.zeros((len(requests), int(self._limits.max())), dtype=np.int64)
        self._logprobs = np.zeros(self._tokens.shape, dtype=np.float32)

        self._step = 0
        self._prompt_width = int(prompt_lengths.max())
        self._cache: Any = None
        #: Requests in the batch, in the order of its rows, and which of them still generate.
        self._rows = np.arange(len(requests))
        self._alive = np.ones(len(requests), dtype=bool)
        self._prompt_lengths = torch.from_numpy(prompt_lengths).to(self._device)
        pad = torch.from_numpy(self._prompt_width - prompt_lengths).to(self._device)
        columns = torch.arange(self._prompt_width + self._tokens.shape[1], device=self._device)
        self._mask = (columns >= pad[:, None]).long()

    @property
    def done(self) -> bool:
        """Whether every response is finished."""
        return not self._alive.any()

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        """Generate one token for each unfinished response; return those that it finished."""
        logits = self._prompt_logits() if self._step == 0 else self._next_logits()
        numbers = torch.from_numpy(uniforms(self._streams[self._rows], self._step)).to(self._device)
        sampled, sampled_logprobs = sample(logits, self._sampling, numbers)
        tokens, logprobs = sampled.cpu().numpy(), sampled_logprobs.cpu().numpy()
        self._check_finite(logprobs)
        self._tokens[self._rows, self._step] = tokens
        self._logprobs[self._rows, self._step] = logprobs
        self._step += 1

        stopped = np.isin(tokens, self._stop_ids)
        ended = self._alive & (stopped | (self._step >= self._limits[self._rows]))
        finished = [
            Finished(
                int(self._rows[row]),
                self._tokens[self._rows[row], : self._step].copy(),
                self._logprobs[self._rows[row], : self._step].copy(),
                "stop" if stopped[row] else "length",
            )
            for row in np.flatnonzero(ended)
        ]
        self._alive &= ~ended
        self._remove_finished()
        return finished

    def _prompt_logits(self) -> torch.Tensor:
        """(B, V) logits of the first response tokens, from a forward over the distinct prompts."""
        distinct: dict[bytes, int] = {}
        prompts: list[np.ndarray] = []
        first: list[int] = []
        copies = np.empty(len(self._requests), dtype=np.int64)
        for row, request in enumerate(self._requests):
            prompt = np.asarray(request.prompt_ids, dtype=np.int64)
            copies[row] = distinct.setdefault(prompt.tobytes(), len(distinct))
            if copies[row] == len(prompts):
                prompts.append(prompt)
                first.append(row)
        padded = np.zeros((len(prompts), self._prompt_width), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            padded[row, self._prompt_width - len(prompt) :] = prompt
        mask = self._mask[first, : self._prompt_width]
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        logits = self._forward(torch.from_numpy(padded).to(self._device), mask, positions)
        if len(prompts) == len(self._requests):
            return logits
        rows = torch.from_numpy(copies).to(self._device)
        self._cache.reorder_cache(rows)
        return logits[rows]

    def _next_logits(self) -> torch.Tensor:
        """(B, V) logits of the next tokens, from a forward over the last ones."""
        last = torch.from_numpy(self._tokens[self._rows, self._step - 1]).to(self._device)
        positions = self._prompt_lengths + (self._step - 1)
        if self._context_tokens is not None:
            # Only finished rows that are still in the batch ever reach the end of the context.
            positions = positions.clamp(max=self._context_tokens - 1)
        return self._forward(last[:, None], self._mask[:, : self._prompt_width + self._step], positions[:, None])

    def _forward(self, input_ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        # transformers 5.24 calls the cache "cache"; up to 5.23, and in remote code, it is "past_key_values".
        cache_name = "cache" if "cache" in self._accepted else "past_key_values"
        optional = {"position_ids": positions, "logits_to_keep": 1}
        outputs = self._model(
            input_ids=input_ids,
            attention_mask=mask,
            use_cache=True,
            **{cache_name: self._cache},
            **{name: value for name, value in optional.items() if name in self._accepted},
        )
        self._cache = outputs[cache_name]
        logits: torch.Tensor = outputs.logits[:, -1]
        return logits

    def _remove_finished(self) -> None:
        """Take finished responses out of the batch once they are enough to pay for a copy of the cache."""
        finished = len(self._alive) - int(self._alive.sum())
        if self.done or finished < max(1, _FINISHED_SHARE * len(self._alive)):
            return
        kept = torch.from_numpy(np.flatnonzero(self._alive)).to(self._device)
        self._cache.reorder_cache(kept)
        self._mask = self._mask[kept]
        self._prompt_lengths = self._prompt_lengths[kept]
        self._rows = self._rows[self._alive]
        self._alive = self._alive[self._alive]

    def _check_finite(self, logprobs: np.ndarray) -> None:
        broken = self._alive & ~np.isfinite(logprobs)
        if broken.any():
            request = self._requests[self._rows[np.flatnonzero(broken)[0]]]
            raise NonFiniteLogitsError(
                f"The model gives logits that are not finite at response token {self._step} of request {request.key} "
                f"(and of {int(broken.sum()) - 1} others), so no token can be drawn. Its weights hold infinities or "
                f"NaN, usually because training diverged: look at the gradient norm, and go back to an earlier "
                f"checkpoint."
            )


def waves(prompt_lengths: Sequence[int], max_num_seqs: int) -> list[np.ndarray]:
    """Cut requests into waves of at most `max_num_seqs`, of like prompt lengths so that little is padded.

    Returns row indices; equal prompts that stand together stay together.
    """
    order = np.argsort(np.asarray(prompt_lengths), kind="stable")
    return [order[start : start + max_num_seqs] for start in range(0, len(order), max_num_seqs)]
