"""A batch cut into blocks of whole sequences, so that what is computed on the way fits into the processor's cache.

A pass over all tokens of a large batch costs as much as reading it from memory, and every intermediate result is as
large as an input. Within a block, passes are cheap and intermediate results small.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from verl_algos._finite import narrowed, summable
from verl_algos._layout import Layout
from verl_algos.errors import NonFiniteError
from verl_algos.masked import VARIANCE_EPSILON

_TOKENS_PER_BLOCK = 1 << 16

#: Rewards and values beyond it count as it wherever their sums or squares would overflow float64.
LARGEST = 1e140


@dataclass(frozen=True)
class Block:
    """Consecutive sequences of a batch: R of them, of which the longest has L valid tokens (L is at least 1)."""

    sequences: slice
    """Which of the batch's sequences these are."""
    layout: Layout
    """Of these sequences alone."""
    part: slice
    """Where their tokens are in a column: rows of the padded layout, tokens of the packed one."""

    @cached_property
    def counts(self) -> Tensor:
        """Valid tokens of each sequence, int64 (R,)."""
        return self.layout.counts()

    @cached_property
    def shape(self) -> tuple[int, int]:
        """(R, L)."""
        return len(self.counts), max(int(self.counts.max()), 1)

    @cached_property
    def inside(self) -> Tensor:
        """Bool (R, L): the first n cells of a row stand for the n valid tokens of its sequence."""
        return torch.arange(self.shape[1], device=self.counts.device) < self.counts.unsqueeze(1)

    @cached_property
    def tokens(self) -> Tensor:
        """Where each valid token stands among the block's tokens, int64 (M,)."""
        return self.layout.mask.flatten().nonzero().squeeze(1)

    @cached_property
    def cells(self) -> Tensor:
        """Where each valid token stands among the R * L cells, int64 (M,)."""
        sequences, length = self.shape
        first_cells = torch.arange(sequences, device=self.counts.device) * length
        shifts = (first_cells - self.counts.cumsum(0) + self.counts).repeat_interleave(
            self.counts, output_size=len(self.tokens)
        )
        return shifts.add_(torch.arange(len(self.tokens), device=shifts.device))

    @cached_property
    def is_full(self) -> bool:
        """The tokens are the cells, in their order."""
        return self.shape[0] * self.shape[1] == self.layout.mask.numel() == int(self.counts.sum())

    def rows(self, column: Tensor) -> Tensor:
        """The valid tokens of `column` (of the whole batch) moved together to the left, (R, L), 0 behind them."""
        own = column[self.part]
        if self.is_full:
            return own.reshape(self.shape)
        return self.aligned(own.reshape(-1).index_select(0, self.tokens))

    def aligned(self, valid: Tensor) -> Tensor:
        """Numbers of the valid tokens (M,) as rows (R, L), 0 behind them."""
        sequences, length = self.shape
        return valid.new_zeros(sequences * length).scatter_(0, self.cells, valid).view(self.shape)

    def write(self, column: Tensor, rows: Tensor) -> None:
        """Put `rows` (R, L) to the valid tokens of `column`, contiguous and of the whole batch."""
        own = column[self.part].view(-1)
        if self.is_full:
            own.copy_(rows.reshape(-1))
        else:
            own.scatter_(0, self.tokens, rows.reshape(-1).index_select(0, self.cells))


def blocks(layout: Layout) -> Iterator[Block]:
    """The sequences of `layout` in order, a few at a time."""
    n, width = layout.num_sequences, layout.mask.shape[-1]
    starts = [width * i for i in range(n + 1)] if layout.cu_seqlens is None else layout.cu_seqlens.tolist()
    first = 0
    while first < n:
        last, longest = first + 1, starts[first + 1] - starts[first]
        while last < n:
            longest = max(longest, starts[last + 1] - starts[last])
            if longest * (last + 1 - first) > _TOKENS_PER_BLOCK:
                break
            last += 1
        yield _block(layout, first, last, starts)
        first = last


def _block(layout: Layout, first: int, last: int, starts: list[int]) -> Block:
    if layout.cu_seqlens is None:
        part = slice(first, last)
        return Block(part, Layout(layout.mask[part], None), part)
    part = slice(starts[first], starts[last])
    own = Layout(layout.mask[part], layout.cu_seqlens[first : last + 1] - starts[first])
    return Block(slice(first, last), own, part)


def suffix_sums(rows: Tensor, discount: float) -> Tensor:
    """``y_t = x_t + discount y_{t+1}`` along the rows (R, L), in log2(L) passes; in float64 where one pass is enough.

    Doubling: once y_t holds the terms t to t+span-1, adding ``discount^span y_{t+span}`` makes it hold twice as many.
    Sums that overflow the type of `rows`, or would on the way, are computed in float64 and brought back into it.
    """
    sums = unchecked_suffix_sums(rows, discount)
    return sums if all_finite(sums) else narrowed(unchecked_suffix_sums(widened(rows), discount), rows.dtype)


def widened(rows: Tensor) -> Tensor:
    """Finite numbers in float64, so that no sum of them overflows."""
    return rows.clamp(-LARGEST, LARGEST) if rows.dtype == torch.float64 else rows.double()


def unchecked_suffix_sums(rows: Tensor, discount: float) -> Tensor:
    """`suffix_sums` that may overflow."""
    if discount == 1.0:
        return rows.flip(1).cumsum(1, dtype=torch.float64).flip(1).to(rows.dtype)
    span = 1
    while span < rows.shape[1] and (factor := discount**span) > 0.0:
        sums = rows.clone()
        sums[:, :-span].add_(rows[:, span:], alpha=factor)
        rows, span = sums, 2 * span
    return rows


def whiten_(column: Tensor, layout: Layout, voting: Tensor | None = None) -> None:
    """Bring the valid tokens of `column` to mean 0 and unbiased variance 1, in place: `masked.masked_whiten`.

    Args:
        column: 0 at tokens that are not valid, and stays so.
        layout: of the column.
        voting: bool (N,); the tokens of other sequences neither enter the statistics nor are changed.
    """
    mask = layout.mask
    if voting is not None and not voting.all():
        mask = torch.empty_like(layout.mask)
        for block in blocks(layout):
            mask[block.part] = block.layout.spread(voting[block.sequences].byte()).bool()
    parts = [block.part for block in blocks(layout)]
    tokens = torch.zeros((), dtype=torch.int64, device=mask.device)
    total = torch.zeros((), dtype=torch.float64, device=mask.device)
    for part in parts:
        tokens += mask[part].sum()  # of the whole mask it would be a copy as int64
        total += summable(torch.where(mask[part], column[part], 0)).sum()
    mean = total / tokens.clamp(min=1)
    squares = torch.zeros_like(total)
    for part in parts:
        squares += torch.where(mask[part], summable(column[part]) - mean, 0).square_().sum()
    scale = torch.rsqrt(squares / (tokens - 1).clamp(min=1) + VARIANCE_EPSILON)
    for part in parts:
        own = column[part]
        own.copy_(torch.where(mask[part], (summable(own) - mean).mul_(scale), own))


def all_finite(numbers: Tensor) -> bool:
    """Whether no number is NaN or infinite. The sum tells in a quarter of the time, unless it overflows."""
    return bool(numbers.sum().isfinite()) or bool(numbers.isfinite().all())


PRODUCED = "repair the reward or the critic that produced them, or mask the sequence."


def refuse(name: str, numbers: Tensor, bad: Tensor, remedy: str = PRODUCED) -> None:
    """Raise NonFiniteError that counts the `bad` ones of `numbers`, if there are any."""
    if bad.any():
        raise NonFiniteError(
            f"{name} holds {int(bad.sum())} valid entries that are not finite, the first is {float(numbers[bad][0])}: "
            f"{remedy}",
            name,
        )
