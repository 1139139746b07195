"""How the next token is drawn: from one keyed uniform number per token, so that no generator holds any state."""

from collections.abc import Sequence

import numpy as np
import torch

from verl_rollout.interface import Sampling

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def random_streams(seed: int, keys: Sequence[tuple[int, ...]]) -> np.ndarray:
    """(N,) uint64: the name of each key's random stream under `seed`. A key's parts are signed 64-bit integers."""
    lengths = np.array([len(key) for key in keys], dtype=np.int64)
    width = int(lengths.max(initial=0))
    parts = np.array([(*key, *(0,) * (width - len(key))) for key in keys], dtype=np.int64).view(np.uint64)
    streams = _splitmix64(lengths.view(np.uint64) ^ _splitmix64(np.full(len(keys), seed & _WORD, dtype=np.uint64)))
    for column in range(width):
        # A key stops mixing at its own length, so that its stream does not depend on the other keys.
        streams = np.where(column < lengths, _splitmix64(streams ^ _splitmix64(parts[:, column])), streams)
    return streams


def uniforms(streams: np.ndarray, position: int) -> np.ndarray:
    """(N,) float64 in [0, 1 - 2**-48]: each stream's number for the response token at `position`."""
    bits = _splitmix64(streams + np.uint64((position + 1) * _GOLDEN & _WORD))
    return np.asarray((bits >> np.uint64(16)).astype(np.float64) * 2.0**-48)


def sample(logits: torch.Tensor, sampling: Sampling, uniform: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token per row by inverting the cumulative distribution at `uniform`.

    Args:
        logits: (B, V), any floating dtype.
        sampling: temperature 0 takes the likeliest token; otherwise top_k, then top_p restrict what is drawn.
        uniform: (B,) float64 in [0, 1).

    Returns:
        (B,) int64 tokens and (B,) float32 log-probs under softmax(logits / temperature) over the whole vocabulary, with
        temperature 1 where it is 0.
    """
    scaled = logits.float()
    # Subtracting the maximum first keeps a tiny temperature from overflowing.
    scaled = scaled - scaled.amax(dim=-1, keepdim=True)
    if sampling.temperature not in (0, 1):
        scaled = scaled / sampling.temperature
    log_normaliser = scaled.logsumexp(dim=-1, keepdim=True)
    if sampling.temperature == 0:
        tokens = scaled.argmax(dim=-1, keepdim=True)
    else:
        probs = keep_likeliest((scaled - log_normaliser).exp(), top_k=sampling.top_k, top_p=sampling.top_p)
        cumulative = probs.cumsum(dim=-1, dtype=torch.float64)
        # The first token whose cumulative mass exceeds the target: its own probability is therefore above 0.
        target = uniform[:, None] * cumulative[:, -1:]
        tokens = torch.searchsorted(cumulative, target, right=True)
    # The clamp matters for rows of NaN only, whose log-prob then shows it.
    tokens = tokens.clamp(max=logits.shape[-1] - 1)
    return tokens[:, 0], (scaled.gather(-1, tokens) - log_normaliser)[:, 0]


def keep_likeliest(probs: torch.Tensor, *, top_k: int, top_p: float) -> torch.Tensor:
    """Set all but the likeliest tokens' probabilities (B, V) to 0, without normalising again.

    First exactly the `top_k` likeliest are kept (-1: all), then the fewest of those that hold at least `top_p` of their
    mass (nucleus sampling, Holtzman et al. 2020). Equal probabilities are kept in the order of their ids.
    """
    if top_k == -1 and top_p == 1:
        return probs
    ordered, ids = probs.sort(dim=-1, descending=True, stable=True)
    if top_k != -1:
        ordered[:, top_k:] = 0
    if top_p < 1:
        cumulative = ordered.cumsum(dim=-1, dtype=torch.float64)
        mass_before = cumulative - ordered
        outside = mass_before >= top_p * cumulative[:, -1:]
        outside[:, 0] = False
        ordered = ordered.masked_fill(outside, 0)
    return torch.zeros_like(probs).scatter_(-1, ids, ordered)


def _splitmix64(values: np.ndarray) -> np.ndarray:
    """Scramble uint64 (Steele, Lea and Flood 2014): every input bit reaches every output bit."""
    mixed = values + np.uint64(_GOLDEN)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
