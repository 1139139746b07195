"""Passes over logits (M, V) a few rows at a time: the logits of a batch are its largest tensor, a second one is not to
be held."""

from collections.abc import Iterator

from torch import Tensor

_NUMBERS_PER_PART = 1 << 22  # 16 MiB in float32


def row_parts(logits: Tensor) -> Iterator[slice]:
    """The rows of `logits` (M, V) in order."""
    rows, vocabulary = logits.shape
    step = max(_NUMBERS_PER_PART // max(vocabulary, 1), 1)
    for first in range(0, rows, step):
        yield slice(first, min(first + step, rows))
