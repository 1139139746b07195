"""What every `RolloutEngine` does, as checks that raise AssertionError.

A backend's test runs each with a function that makes its engine from a model folder::

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_conforms(check: Check, tmp_path: Path) -> None:
        check(lambda folder: MyRollout(folder), tmp_path)

The function must make the engine in float32, and each check builds its own tiny model.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from verl_rollout.interface import Completion, Request, RolloutEngine, Sampling
from verl_rollout.testing.model import build_tiny_model
from verl_rollout.testing.weights import ModuleSource, TensorSource
from verl_rollout.weights import InProcessEndpoint, WeightSender

MakeEngine = Callable[[Path], RolloutEngine]
Check = Callable[[MakeEngine, Path], None]

_PROMPTS = ([5, 6, 7], [9], [3, 4, 5, 6, 7, 8, 9, 10], [12, 11], [0, 1, 2, 0])
_REQUESTS = [Request(prompt_ids=prompt, key=(1, row, 0)) for row, prompt in enumerate(_PROMPTS)]
_SAMPLING = Sampling(max_tokens=12, seed=3)
_GREEDY = Sampling(max_tokens=12, temperature=0)


def one_completion_per_request(make: MakeEngine, folder: Path) -> None:
    """Completions stand in the order of the requests, and none is repeated; no request gives no completion."""
    engine = make(build_tiny_model(folder))
    completions = engine.generate(_REQUESTS, _SAMPLING)
    assert [completion.request for completion in completions] == _REQUESTS
    assert engine.generate([], _SAMPLING) == []


def completions_are_well_formed(make: MakeEngine, folder: Path) -> None:
    """Ids are int64, log-probs float32 and at most 0, one each per token; the reason says how it ended."""
    engine = make(build_tiny_model(folder))
    for completion in engine.generate([Request([5, 6], (row,)) for row in range(64)], _SAMPLING):
        assert completion.token_ids.dtype == np.int64 and completion.logprobs.dtype == np.float32
        assert completion.token_ids.shape == completion.logprobs.shape
        assert 1 <= len(completion.token_ids) <= _SAMPLING.max_tokens
        assert (completion.logprobs <= 0).all() and completion.weight_version == engine.version == 0
        assert 1 not in completion.token_ids[:-1]
        assert completion.finish_reason == ("stop" if completion.token_ids[-1] == 1 else "length")
        if completion.finish_reason == "length":
            assert len(completion.token_ids) == _SAMPLING.max_tokens


def logprobs_are_the_models(make: MakeEngine, folder: Path) -> None:
    """Log-probs equal those of a full forward under softmax(logits / temperature), whatever top-k and top-p cut."""
    engine = make(build_tiny_model(folder))
    model = _model(folder)
    for sampling, temperature in (
        (_SAMPLING, 1.0),
        (Sampling(max_tokens=12, temperature=0.5), 0.5),
        (Sampling(max_tokens=12, temperature=1.5, top_k=5, top_p=0.9), 1.5),
        (_GREEDY, 1.0),
    ):
        for completion in engine.generate(_REQUESTS, sampling):
            expected = _forward_logprobs(model, completion, temperature)
            # The model runs on the CPU; on an H200 the engine's float32 differs from it by up to 1.3e-5.
            np.testing.assert_allclose(completion.logprobs, expected, rtol=0, atol=3e-5)


def greedy_takes_the_likeliest(make: MakeEngine, folder: Path) -> None:
    """At temperature 0 every token is the argmax of a full forward."""
    engine = make(build_tiny_model(folder))
    model = _model(folder)
    for completion in engine.generate(_REQUESTS, _GREEDY):
        assert completion.token_ids.tolist() == _forward_logits(model, completion).argmax(-1).tolist()


def responses_do_not_depend_on_the_batch(make: MakeEngine, folder: Path) -> None:
    """The same seed and key give the same response alone, in any batch and in any order."""
    engine = make(build_tiny_model(folder))
    together = engine.generate(_REQUESTS, _SAMPLING)
    reverse = engine.generate(_REQUESTS[::-1], _SAMPLING)[::-1]
    alone = [engine.generate([request], _SAMPLING)[0] for request in _REQUESTS]
    assert _ids(together) == _ids(reverse) == _ids(alone)


def keys_and_seeds_name_the_randomness(make: MakeEngine, folder: Path) -> None:
    """Repeats of a prompt differ by their keys, and a run with another seed differs in all of them."""
    engine = make(build_tiny_model(folder))
    requests = [Request([5, 6, 7], (0, 0, repeat)) for repeat in range(16)]
    first = _ids(engine.generate(requests, Sampling(max_tokens=12, seed=42)))
    second = _ids(engine.generate(requests, Sampling(max_tokens=12, seed=43)))
    assert len({tuple(ids) for ids in first}) == len(requests)
    assert all(one != other for one, other in zip(first, second, strict=True))


def no_global_generator_is_used(make: MakeEngine, folder: Path) -> None:
    """Generation neither reads nor moves torch's and numpy's global generators."""
    engine = make(build_tiny_model(folder))
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]
    engine.generate(_REQUESTS, _SAMPLING)
    after = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]
    assert torch.equal(before[0], after[0]) and before[1] == after[1]


def stop_ids_end_responses(make: MakeEngine, folder: Path) -> None:
    """A stop id is kept as the last token; ignore_eos runs on through end-of-sequence ids, not through stop ids."""
    engine = make(build_tiny_model(folder))
    (free,) = engine.generate([_REQUESTS[0]], Sampling(max_tokens=12, seed=3, ignore_eos=True))
    assert len(free.token_ids) == 12 and free.finish_reason == "length"
    stop = int(free.token_ids[4])
    (stopped,) = engine.generate(
        [_REQUESTS[0]], Sampling(max_tokens=12, seed=3, ignore_eos=True, stop_token_ids=(stop,))
    )
    end = free.token_ids.tolist().index(stop) + 1
    assert stopped.token_ids.tolist() == free.token_ids[:end].tolist() and stopped.finish_reason == "stop"


def the_context_limit_counts_the_prompt(make: MakeEngine, folder: Path) -> None:
    """A full context ends a response with "length"; a prompt that fills it is refused."""
    engine = make(build_tiny_model(folder, max_position_embeddings=8))
    sampling = Sampling(max_tokens=8, ignore_eos=True)
    completions = engine.generate([Request([5] * length, (length,)) for length in (2, 3, 4)], sampling)
    assert [len(completion.token_ids) for completion in completions] == [6, 5, 4]
    assert {completion.finish_reason for completion in completions} == {"length"}
    _raises(ValueError, lambda: engine.generate([Request([5], (0,)), Request([5] * 8, (1,))], sampling), "8 tokens")


def prompts_outside_the_vocabulary_are_refused(make: MakeEngine, folder: Path) -> None:
    """An id that the model has no embedding for is an error that names the request."""
    engine = make(build_tiny_model(folder, characters="abc"))
    _raises(ValueError, lambda: engine.generate([Request([5], (7, 8))], _SAMPLING), "(7, 8)")


def streams_give_the_same_completions(make: MakeEngine, folder: Path) -> None:
    """Streaming hands over the completions of `generate`, each once."""
    engine = make(build_tiny_model(folder))

    async def collect() -> list[Completion]:
        return [completion async for completion in engine.stream(_REQUESTS, _SAMPLING)]

    streamed = {completion.request.key: completion.token_ids.tolist() for completion in asyncio.run(collect())}
    generated = {c.request.key: c.token_ids.tolist() for c in engine.generate(_REQUESTS, _SAMPLING)}
    assert streamed == generated


def updates_replace_every_weight(make: MakeEngine, folder: Path) -> None:
    """After an update, generation equals that of an engine made from the new weights, prompts seen before included."""
    for tied in (True, False):
        engine = make(build_tiny_model(folder / f"old-{tied}", tie_word_embeddings=tied))
        new_folder = build_tiny_model(folder / f"new-{tied}", seed=1, tie_word_embeddings=tied)
        model = _model(new_folder)
        old = engine.generate(_REQUESTS, _GREEDY)
        report = engine.update_weights(ModuleSource(model), 1)
        new = engine.generate(_REQUESTS, _GREEDY)
        assert engine.version == report.version == 1 and report.changed and report.seconds >= 0
        assert report.tensors == len(dict(model.named_parameters()))
        assert report.bytes_received == 4 * sum(parameter.numel() for parameter in model.parameters())
        assert {completion.weight_version for completion in new} == {1}
        assert _ids(new) != _ids(old) and _ids(new) == _ids(make(new_folder).generate(_REQUESTS, _GREEDY))
        again = engine.update_weights(ModuleSource(model), 2)
        assert not again.changed and again.checksum == report.checksum


def both_halves_work_apart(make: MakeEngine, folder: Path) -> None:
    """A sender's offer is received at the endpoint, under the version that both sides name, and once."""
    engine = make(build_tiny_model(folder))
    endpoint = InProcessEndpoint()
    sender = WeightSender(ModuleSource(_model(folder)), endpoint)
    sender.send(4)
    assert engine.receive_weights(endpoint, 4).version == 4
    _raises(RuntimeError, lambda: engine.receive_weights(endpoint, 5), "no weights")
    sender.send(5)
    _raises(RuntimeError, lambda: engine.receive_weights(endpoint, 6), "version 5")


def versions_only_grow(make: MakeEngine, folder: Path) -> None:
    """An older or equal version is refused, and changes nothing."""
    engine = make(build_tiny_model(folder / "old"))
    source = ModuleSource(_model(build_tiny_model(folder / "new", seed=1)))
    _raises(ValueError, lambda: engine.update_weights(source, 0), "version 0")
    engine.update_weights(source, 7)
    for version in (3, 7):
        _raises(ValueError, partial(engine.update_weights, source, version), f"version {version}")
    assert engine.version == 7 and len(engine.generate(_REQUESTS, _GREEDY)) == len(_REQUESTS)


def unmatched_weights_are_refused_before_any_write(make: MakeEngine, folder: Path) -> None:
    """Names and shapes must match; the error lists those that do not, and the old weights still generate."""
    engine = make(build_tiny_model(folder / "old", tie_word_embeddings=False))
    tensors = dict(_model(build_tiny_model(folder / "new", seed=1, tie_word_embeddings=False)).named_parameters())
    before = _ids(engine.generate(_REQUESTS, _GREEDY))
    embedding = tensors["model.embed_tokens.weight"]
    prefixed = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    headless = {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"}
    resized = {**tensors, "model.embed_tokens.weight": embedding[1:]}
    for source, named in (
        (prefixed, ("language_model.model.embed_tokens.weight", "only the rollout has model.embed_tokens.weight")),
        (headless, ("only the rollout has lm_head.weight",)),
        (resized, (str(tuple(embedding.shape)), str(tuple(embedding[1:].shape)))),
    ):
        _raises(ValueError, partial(engine.update_weights, TensorSource(source), 1), *named)
    assert engine.version == 0 and _ids(engine.generate(_REQUESTS, _GREEDY)) == before


def tied_weights_are_sent_once(make: MakeEngine, folder: Path) -> None:
    """A tied head follows the embedding; a trainer that sends both holds another architecture, which is an error."""
    engine = make(build_tiny_model(folder / "old"))
    tensors = dict(_model(build_tiny_model(folder / "new", seed=1)).named_parameters())
    both = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}
    _raises(ValueError, lambda: engine.update_weights(TensorSource(both), 1), "lm_head.weight", "tied")
    assert engine.update_weights(TensorSource(tensors), 1).tensors == len(tensors)


def a_broken_update_stops_generation(make: MakeEngine, folder: Path) -> None:
    """After an update that failed half-way the engine refuses to generate, also after sleep, until one succeeds."""
    engine = make(build_tiny_model(folder / "old"))
    new_folder = build_tiny_model(folder / "new", seed=1)
    source = ModuleSource(_model(new_folder))

    class Broken(TensorSource):
        def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
            yield from list(super().__iter__())[:3]
            raise ConnectionError("the trainer died")

    class Short(TensorSource):
        def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
            yield from list(super().__iter__())[:3]

    for broken, error in ((Broken, ConnectionError), (Short, RuntimeError)):
        _raises(error, partial(engine.update_weights, broken(dict(source)), engine.version + 1))
        _raises(RuntimeError, lambda: engine.generate(_REQUESTS, _GREEDY), "did not succeed")
        engine.sleep(1)
        engine.wake()
        _raises(RuntimeError, lambda: engine.generate(_REQUESTS, _GREEDY), "did not succeed")
        report = engine.update_weights(source, engine.version + 1)
        assert report.changed
    assert _ids(engine.generate(_REQUESTS, _GREEDY)) == _ids(make(new_folder).generate(_REQUESTS, _GREEDY))


def sleep_keeps_or_drops_the_weights(make: MakeEngine, folder: Path) -> None:
    """Level 1 wakes with the latest weights, never with older ones; level 2 generates only after the next update."""
    engine = make(build_tiny_model(folder / "old"))
    source = ModuleSource(_model(build_tiny_model(folder / "new", seed=1)))
    engine.update_weights(source, 1)
    new = _ids(engine.generate(_REQUESTS, _GREEDY))
    engine.sleep(1)
    _raises(RuntimeError, lambda: engine.generate(_REQUESTS, _GREEDY), "sleeps")
    _raises(RuntimeError, lambda: engine.update_weights(source, 2), "sleeps")
    engine.wake()
    assert engine.version == 1 and _ids(engine.generate(_REQUESTS, _GREEDY)) == new
    engine.sleep(2)
    engine.wake()
    _raises(RuntimeError, lambda: engine.generate(_REQUESTS, _GREEDY), "dropped")
    report = engine.update_weights(source, 2)
    assert not report.changed and _ids(engine.generate(_REQUESTS, _GREEDY)) == new


CHECKS: tuple[Check, ...] = (
    one_completion_per_request,
    completions_are_well_formed,
    logprobs_are_the_models,
    greedy_takes_the_likeliest,
    responses_do_not_depend_on_the_batch,
    keys_and_seeds_name_the_randomness,
    no_global_generator_is_used,
    stop_ids_end_responses,
    the_context_limit_counts_the_prompt,
    prompts_outside_the_vocabulary_are_refused,
    streams_give_the_same_completions,
    updates_replace_every_weight,
    both_halves_work_apart,
    versions_only_grow,
    unmatched_weights_are_refused_before_any_write,
    tied_weights_are_sent_once,
    a_broken_update_stops_generation,
    sleep_keeps_or_drops_the_weights,
)


def _ids(completions: Sequence[Completion]) -> list[list[int]]:
    return [completion.token_ids.tolist() for completion in completions]


def _model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


@torch.no_grad()
def _forward_logits(model: Any, completion: Completion) -> torch.Tensor:
    """(R, V) logits of the response's positions from one unpadded forward without a cache."""
    ids = torch.tensor([*completion.request.prompt_ids, *completion.token_ids])[None]
    logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0, len(completion.request.prompt_ids) - 1 : -1]
    return logits


def _forward_logprobs(model: Any, completion: Completion, temperature: float) -> np.ndarray:
    logprobs = (_forward_logits(model, completion) / temperature).log_softmax(-1)
    return logprobs[torch.arange(len(logprobs)), torch.from_numpy(completion.token_ids)].numpy()


def _raises(error: type[Exception], call: Callable[[], object], *parts: str) -> None:
    """Assert that `call` raises `error` with a message that holds all of `parts`."""
    try:
        call()
    except error as raised:
        for part in parts:
            assert part in str(raised), f"the error should say {part!r}, but says: {raised}"
        return
    raise AssertionError(f"{error.__name__} was expected, and nothing was raised")
