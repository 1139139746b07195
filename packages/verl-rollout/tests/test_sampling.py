import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_rollout import Request, Sampling
from verl_rollout.sampling import keep_likeliest, random_streams, sample, uniforms


def draw(logits: list[float], sampling: Sampling, draws: int) -> tuple[np.ndarray, np.ndarray]:
    streams = random_streams(sampling.seed, [(0, draw) for draw in range(draws)])
    numbers = torch.from_numpy(uniforms(streams, 0))
    tokens, logprobs = sample(torch.tensor(logits).expand(draws, -1), sampling, numbers)
    return tokens.numpy(), logprobs.numpy()


def test_temperature_divides_the_logits_not_the_logprobs() -> None:
    # Bug bank E04: logits [2, 1, 0] at temperature 0.5, token 0.
    tokens, logprobs = draw([2.0, 1.0, 0.0], Sampling(max_tokens=1, temperature=0.5), 50)
    np.testing.assert_allclose(logprobs[tokens == 0], -0.142932, atol=1e-6)


def test_greedy_logprobs_are_those_of_temperature_one() -> None:
    tokens, logprobs = draw([2.0, 1.0, 0.0], Sampling(max_tokens=1, temperature=0), 3)
    assert tokens.tolist() == [0, 0, 0]
    np.testing.assert_allclose(logprobs, -0.407606, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature: float) -> None:
    logits = [1.5, -2.0, 0.3, 0.0, 2.0, -0.7]
    draws = 40_000
    tokens, _ = draw(logits, Sampling(max_tokens=1, temperature=temperature, seed=5), draws)
    weights = [math.exp(logit / temperature) for logit in logits]
    expected = draws * np.array(weights) / sum(weights)
    observed = np.bincount(tokens, minlength=len(logits))
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    assert chi_square < 20.515  # 5 degrees of freedom, p = 0.001


def test_frequencies_follow_the_restricted_softmax() -> None:
    probs = np.array([0.4, 0.3, 0.2, 0.1])
    draws = 40_000
    tokens, logprobs = draw(np.log(probs).tolist(), Sampling(max_tokens=1, top_k=3, top_p=0.7), draws)
    # top-k leaves 4/9, 3/9, 2/9; the first two hold 7/9 >= 0.7 of that.
    observed = np.bincount(tokens, minlength=4)
    assert observed[2:].tolist() == [0, 0]
    assert abs(observed[0] / draws - 4 / 7) < 0.01
    # Log-probs stay those of the whole vocabulary.
    np.testing.assert_allclose(logprobs, np.log(probs)[tokens], atol=1e-6)


def test_consecutive_numbers_of_a_stream_are_uncorrelated() -> None:
    stream = random_streams(0, [(1, 2, 3)])
    numbers = np.array([uniforms(stream, position)[0] for position in range(20_000)])
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03
    histogram = np.histogram(numbers, bins=16, range=(0, 1))[0]
    assert float(((histogram - 1250) ** 2 / 1250).sum()) < 37.70  # 15 degrees of freedom, p = 0.001


def test_a_stream_depends_on_its_own_key_and_seed_only() -> None:
    keys = [(1,), (1, 0), (1, 0, 0), (0, 1), (), (-1, 2**63 - 1, -(2**63))]
    streams = random_streams(42, keys)
    assert len(set(streams.tolist())) == len(keys)
    assert [random_streams(42, [key])[0] for key in keys] == streams.tolist()
    assert not set(streams.tolist()) & set(random_streams(43, keys).tolist())


def test_a_tiny_temperature_is_greedy_and_finite() -> None:
    tokens, logprobs = draw([100.0, 300.0, 299.0], Sampling(max_tokens=1, temperature=1e-38), 20)
    assert set(tokens.tolist()) == {1} and (logprobs == 0).all()


@given(
    probs=st.lists(st.integers(0, 8), min_size=1, max_size=12).filter(any),
    top_k=st.sampled_from([-1, 1, 2, 5, 100]),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 1.0]),
)
@settings(deadline=None)
def test_keep_likeliest_keeps_the_smallest_set(probs: list[int], top_k: int, top_p: float) -> None:
    values = torch.tensor([probs], dtype=torch.float32) / sum(probs)
    kept = keep_likeliest(values.clone(), top_k=top_k, top_p=top_p)[0].tolist()
    # Written from the definition: in order of probability, then of id; exact integers.
    order = sorted(range(len(probs)), key=lambda index: (-probs[index], index))
    order = order if top_k == -1 else order[:top_k]
    mass = sum(probs[index] for index in order)
    expected: set[int] = set()
    held = 0
    for index in order:
        if top_p < 1 and held > top_p * mass * (1 + 1e-6):
            break
        if not (top_p < 1 and expected and abs(held - top_p * mass) <= 1e-6 * mass):
            expected.add(index)
            held += probs[index]
            continue
        return  # the boundary falls within rounding: either set is right
    positive = {index for index, probability in enumerate(kept) if probability > 0}
    assert positive == {index for index in expected if probs[index] > 0}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1, "temperature": -1.0}, "temperature"),
        ({"max_tokens": 1, "temperature": float("nan")}, "temperature"),
        ({"max_tokens": 1, "top_p": 0.0}, "top_p"),
        ({"max_tokens": 1, "top_k": 0}, "top_k"),
    ],
)
def test_impossible_sampling_is_refused(arguments: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Sampling(**arguments)  # type: ignore[arg-type]


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="empty prompt"):
        Request(prompt_ids=[], key=(1,))
