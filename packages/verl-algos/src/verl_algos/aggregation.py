"""From a loss per token to the number that is differentiated.

Every mode is a sum over tokens divided by **global** denominators: tokens or sequences of the whole mini-batch on
all ranks, counted by the caller with `count` and added up over ranks. Results of micro-batches and ranks therefore
just add up, and no split of a mini-batch changes the gradient. (A trainer that averages gradients over ranks
multiplies by their number.)
"""

from typing import NamedTuple, Protocol

from torch import Tensor

from verl_algos._finite import narrowed, trained
from verl_algos._layout import Layout
from verl_algos._numbers import in_range
from verl_algos.import_path import hint
from verl_algos.names import MODES, Mode

__all__ = ["MODES", "Denominators", "Mode", "aggregate", "count"]


class Denominators(NamedTuple):
    """What a mini-batch's loss is divided by."""

    tokens: float
    """Valid tokens."""
    sequences: float
    """Sequences with at least one valid token: a sequence without any does not count."""


class HasDenominators(Protocol):
    """Anything with `tokens` and `sequences`, such as the training engine's denominators."""

    @property
    def tokens(self) -> float:
        """Valid tokens of the whole mini-batch."""
        ...

    @property
    def sequences(self) -> float:
        """Sequences of the whole mini-batch with at least one valid token."""
        ...


def count(mask: Tensor, cu_seqlens: Tensor | None = None) -> Denominators:
    """Count the denominators of a loss mask (B, T), or (T,) with cu_seqlens (N+1,); add them up over all parts of a
    mini-batch.

    Call it after the last edit of the mask. On an accelerator it waits for the device.
    """
    counts = Layout.of(mask, cu_seqlens, loss_mask=mask).counts()
    return Denominators(tokens=float(counts.sum()), sequences=float((counts > 0).sum()))


def aggregate(
    loss: Tensor,
    *,
    mode: Mode,
    denominators: HasDenominators,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Sum a loss per token into this part's share of the mini-batch's loss, 0-d, already divided by the denominators.

    ======================== ===========================================================================
    token-mean               sum over tokens / tokens
    token-sum                sum over tokens
    seq-mean-token-sum       sum over tokens / sequences
    seq-mean-token-mean      sum over sequences of (sum over its tokens / its valid tokens) / sequences
    seq-mean-token-sum-norm  sum over tokens / (scale * sequences)   (Dr. GRPO, arXiv:2503.20783)
    ======================== ===========================================================================

    Args:
        loss: (B, T) or (T,).
        mode: one of `MODES`.
        denominators: of the whole mini-batch on all ranks; 0 is possible only where no token is valid.
        mask: shape of loss, the tokens that are trained; all of them if None.
        cu_seqlens: (N+1,) offsets of packed sequences; a sequence must not be divided between parts.
        scale: the constant length in tokens that seq-mean-token-sum-norm divides by; None in all other modes.

    Returns:
        The share; 0 with zero gradient for a part without valid tokens.

    Raises:
        ValueError: shapes disagree, the mode is not known, a denominator is negative, or `scale` does not fit the mode.
    """
    if mode not in MODES:
        raise ValueError(f"Unknown loss aggregation mode {mode!r}. Known: {', '.join(MODES)}.{hint(str(mode), MODES)}")
    if mode == "seq-mean-token-sum-norm":
        if not in_range(scale, 0.0, above_minimum=True):
            raise ValueError(
                f"Mode seq-mean-token-sum-norm needs scale, a constant number of tokens above 0 (got {scale}): "
                "use the maximal response length. A width taken from the batch would change with its padding."
            )
    elif scale is not None:
        raise ValueError(f"scale={scale} belongs to mode seq-mean-token-sum-norm; {mode} does not use it.")
    if not all(in_range(getattr(denominators, counted, None), 0.0) for counted in Denominators._fields):
        raise ValueError(
            f"Denominators are counts of the whole mini-batch, got {denominators!r}: count the loss mask with "
            "aggregation.count, add up over micro-batches and ranks, and give the sums as plain numbers in "
            "aggregation.Denominators(tokens, sequences)."
        )
    layout = Layout.of(mask, cu_seqlens, loss=loss)
    selected = trained(layout.select(loss))
    # A mini-batch without valid tokens has a sum of 0 and counts of 0: dividing by 1 keeps the loss 0.
    tokens, sequences = max(denominators.tokens, 1.0), max(denominators.sequences, 1.0)
    if mode == "seq-mean-token-mean":
        means = layout.sums(selected) / layout.counts().clamp(min=1)
        return narrowed(means.sum() / sequences, selected.dtype)
    divisor = {"token-mean": tokens, "token-sum": 1.0}.get(mode, sequences if scale is None else scale * sequences)
    return narrowed(layout.sums(selected).sum() / divisor, selected.dtype)
