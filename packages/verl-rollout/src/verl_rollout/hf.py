"""Generation with Hugging Face transformers: the reference implementation, and the default on a CPU."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import torch

from verl_rollout.decoding import Wave, waves
from verl_rollout.errors import RolloutError
from verl_rollout.interface import Completion, Endpoint, Request, Sampling, SyncReport, WeightSource
from verl_rollout.loading import load_model, parse_device, parse_dtype
from verl_rollout.sync import ModuleWeights
from verl_rollout.weights import InProcessEndpoint, WeightSender


class HfRollout:
    """A `RolloutEngine` that decodes with transformers' model and key-value cache, in the caller's process.

    Args:
        model_path: Hugging Face folder (or hub name); only config and weights are read, no tokenizer.
        device: torch device, such as "cpu" or "cuda:0".
        dtype: name of the weights' type; None takes bfloat16 on an accelerator and float32 on a CPU.
        max_num_seqs: sequences decoded together.
        trust_remote_code: whether to run model code that lies in the folder.
        max_model_len: most tokens of a prompt and its response together; None takes the model's own limit.
        override_config: values that replace those of the folder's config.json; the same as the trainer's, or the two
            compute different functions of the same weights.

    Raises:
        RolloutError: for bad arguments, an absent GPU, and a model folder that is missing, damaged or incomplete.
    """

    def __init__(
        self,
        model_path: str | Path,
        *,
        device: str = "cpu",
        dtype: str | None = None,
        max_num_seqs: int = 256,
        trust_remote_code: bool = False,
        max_model_len: int | None = None,
        override_config: Mapping[str, Any] | None = None,
    ) -> None:
        if max_num_seqs < 1:
            raise RolloutError(f"max_num_seqs is {max_num_seqs}; at least one sequence must be decoded at a time.")
        self._device = parse_device(device)
        self._max_num_seqs = max_num_seqs
        weight_dtype = parse_dtype(dtype, self._device)
        self._model = load_model(model_path, self._device, weight_dtype, trust_remote_code, override_config or {})
        self._context_tokens = _context_tokens(self._model.config, max_model_len)
        self._eos_ids = _eos_ids(self._model)
        self._vocabulary_size: int = self._model.get_input_embeddings().weight.shape[0]
        self._weights = ModuleWeights(self._model)
        self._version = 0
        self._checksum: int | None = None
        self._sleep_level: Literal[0, 1, 2] = 0
        self._unusable: str | None = None
        #: Counts everything that ends a stream in progress: weight updates and sleep.
        self._epoch = 0

    @property
    def version(self) -> int:
        """The version of the weights in use; 0 is the model folder's own."""
        return self._version

    @property
    def context_tokens(self) -> int | None:
        """Most tokens of a prompt and its response together; None where the model has no limit."""
        return self._context_tokens

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        """Generate one completion per request, in the order of the requests."""
        self._check_ready()
        self._check_requests(requests)
        completions = dict(found for step in self._decode(requests, sampling) for found in step)
        return [completions[index] for index in range(len(requests))]

    def stream(self, requests: Sequence[Request], sampling: Sampling) -> AsyncIterator[Completion]:
        """Generate the same completions, each handed over as soon as it is finished.

        Decoding runs on the event loop's thread; other tasks run between its steps. A weight update or sleep in between
        ends the stream with a RuntimeError, so that no response mixes two versions.
        """
        self._check_ready()
        self._check_requests(requests)
        return self._stream(requests, sampling)

    def receive_weights(self, endpoint: Endpoint, version: int) -> SyncReport:
        """Take the weights at `endpoint` and verify them; no cache outlives a call of `generate`, so none is stale.

        Raises:
            RuntimeError: while asleep, if another version is at the endpoint, or if the transfer is incomplete or
                damaged; in the last case the engine refuses to generate until an update succeeds.
            RolloutError: if `version` is not above the present one, or names or shapes differ; nothing was changed
                then.
        """
        started = perf_counter()
        if self._sleep_level:
            raise RuntimeError(
                f"The rollout engine sleeps (level {self._sleep_level}), so it cannot take weights: call wake() "
                f"first. Weights taken before would be lost or replaced by the old ones when it wakes."
            )
        if version <= self._version:
            raise RolloutError(
                f"The rollout engine holds weight version {self._version} and was asked to take version {version}. "
                f"Versions only grow: number the update {self._version + 1} or higher."
            )
        stream = endpoint.take()
        if stream.version != version:
            raise RuntimeError(
                f"The rollout engine expects weight version {version}, but version {stream.version} was sent. Sender "
                f"and receiver must count the same updates: send and receive once for each."
            )
        matched = self._weights.match(stream.metadata())
        held_before = self._checksum
        if held_before is None and self._unusable is None:
            held_before = self._weights.checksum(matched)
        self._epoch += 1
        self._checksum = None
        self._unusable = (
            f"its update to weight version {version} did not succeed, so its weights are a mix of two versions. Send a "
            f"complete update, numbered {version} or higher"
        )
        received = self._weights.receive(stream, matched)
        self._unusable = None
        self._version = version
        self._checksum = received.checksum
        return SyncReport(
            version=version,
            tensors=received.tensors,
            bytes_received=received.bytes_received,
            checksum=received.checksum,
            seconds=perf_counter() - started,
            changed=received.checksum != held_before,
        )

    def update_weights(self, source: WeightSource, version: int) -> SyncReport:
        """Do both halves of a weight update in one process."""
        endpoint = InProcessEndpoint()
        WeightSender(source, endpoint).send(version)
        return self.receive_weights(endpoint, version)

    def sleep(self, level: Literal[1, 2]) -> None:
        """Free the accelerator: level 1 keeps the weights in host memory, level 2 drops them until the next update.

        An engine that sleeps at level 1 may go on to level 2; any other repeat changes nothing.
        """
        if level not in (1, 2):
            raise RolloutError(f"Sleep level {level} does not exist: 1 keeps the weights in host memory, 2 drops them.")
        if level <= self._sleep_level:
            return
        self._epoch += 1
        if level == 1:
            self._weights.move("cpu")
        else:
            if self._checksum is None and self._unusable is None:
                self._checksum = self._weights.checksum()
            self._weights.drop()
            self._unusable = (
                "its weights were dropped by sleep(2). Call wake() and then update_weights, or use sleep(1) instead"
            )
        self._sleep_level = level
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def wake(self) -> None:
        """Make ready to generate again, after level 2 with the next weight update; does nothing when awake."""
        if self._sleep_level == 1:
            self._weights.move(self._device)
        elif self._sleep_level == 2:
            self._weights.allocate(self._device)
        self._sleep_level = 0

    def _decode(self, requests: Sequence[Request], sampling: Sampling) -> Iterator[list[tuple[int, Completion]]]:
        """Yield after each step what it finished, with the index of the request."""
        stop_ids = np.array([*sampling.stop_token_ids, *(() if sampling.ignore_eos else self._eos_ids)], dtype=np.int64)
        for rows in waves([len(request.prompt_ids) for request in requests], self._max_num_seqs):
            wave = Wave(
                self._model,
                [requests[row] for row in rows],
                sampling,
                stop_ids=stop_ids,
                context_tokens=self._context_tokens,
            )
            while not wave.done:
                yield [
                    (
                        int(rows[end.index]),
                        Completion(
                            request=requests[rows[end.index]],
                            token_ids=end.token_ids,
                            logprobs=end.logprobs,
                            finish_reason=end.finish_reason,
                            weight_version=self._version,
                        ),
                    )
                    for end in wave.step()
                ]

    async def _stream(self, requests: Sequence[Request], sampling: Sampling) -> AsyncIterator[Completion]:
        epoch = self._epoch
        steps = self._decode(requests, sampling)
        while (finished := next(steps, None)) is not None:
            for _, completion in finished:
                yield completion
            await asyncio.sleep(0)
            if self._epoch != epoch:
                raise RuntimeError(
                    "The rollout engine's weights were updated, or it was put to sleep, while it was streaming "
                    "responses. Those that are not finished are lost: finish or close every stream before an update."
                )

    def _check_ready(self) -> None:
        if self._sleep_level:
            raise RuntimeError(
                f"The rollout engine sleeps (level {self._sleep_level}) and cannot generate: call wake() first."
            )
        if self._unusable is not None:
            raise RuntimeError(f"The rollout engine cannot generate: {self._unusable}.")

    def _check_requests(self, requests: Sequence[Request]) -> None:
        """Reject prompts that the model cannot take before anything is generated."""
        for request in requests:
            length = len(request.prompt_ids)
            if self._context_tokens is not None and length >= self._context_tokens:
                raise RolloutError(
                    f"The prompt of request {request.key} has {length} tokens, and prompt and response together may "
                    f"have {self._context_tokens}, so no response fits. Filter or truncate long prompts "
                    f"(data.max_prompt_length), or raise max_model_len if the model allows it."
                )
            smallest, largest = min(request.prompt_ids), max(request.prompt_ids)
            if smallest < 0 or largest >= self._vocabulary_size:
                raise RolloutError(
                    f"The prompt of request {request.key} holds token id {smallest if smallest < 0 else largest}, and "
                    f"the model's vocabulary is 0 to {self._vocabulary_size - 1}. Tokenize with the tokenizer of the "
                    f"same model folder."
                )


def _context_tokens(config: Any, max_model_len: int | None) -> int | None:
    own: int | None = getattr(config.get_text_config(), "max_position_embeddings", None)
    if max_model_len is None:
        return own
    if max_model_len < 2 or (own is not None and max_model_len > own):
        raise RolloutError(
            f"max_model_len is {max_model_len}; it counts the tokens of prompt and response together, so it must be "
            f"at least 2{'' if own is None else f' and at most {own}, the positions that this model has'}."
        )
    return max_model_len


def _eos_ids(model: Any) -> tuple[int, ...]:
    """End-of-sequence ids: those of generation_config.json, otherwise those of config.json."""
    for config in (model.generation_config, model.config.get_text_config()):
        ids: int | list[int] | None = getattr(config, "eos_token_id", None)
        if ids is not None:
            return (ids,) if isinstance(ids, int) else tuple(ids)
    return ()
