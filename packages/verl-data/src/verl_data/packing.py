"""Which sequences go together: micro-batches under a token budget, and parts of equal work.

Both are pure functions of the lengths, so that every pass over a mini-batch that asks again gets the same plan.
"""

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


def attention_work(lengths: Sequence[int] | NDArray[np.integer]) -> NDArray[np.int64]:
    """Estimate the work of sequences of `lengths` tokens (N,): ``24576 * L + L**2``, linear layers plus attention."""
    tokens = _as_lengths(lengths)
    return 24576 * tokens + tokens * tokens


def pack(
    lengths: Sequence[int] | NDArray[np.integer], *, max_tokens: int | None, max_sequences: int | None
) -> list[Rows]:
    """Plan micro-batches: each row of `lengths` (N,) in exactly one, rows ascending, micro-batches by their first row.

    `max_tokens` is a hard cap on the real tokens of a micro-batch (best fit decreasing); `max_sequences` caps its
    sequences. With `max_sequences` alone the micro-batches are consecutive rows; with neither there is one.

    Raises ValueError for a sequence that is longer than `max_tokens`, for lengths that are no counts of tokens, and for
    caps that are no integers of 1 or more.
    """
    for cap, what, room in (("max_tokens", "token", max_tokens), ("max_sequences", "sequence", max_sequences)):
        if room is not None and not (isinstance(room, (int, np.integer)) and room >= 1):
            raise ValueError(f"A micro-batch needs room for at least 1 {what}, but {cap} is {room}.")
    sizes: list[int] = _as_lengths(lengths).tolist()
    if not sizes:
        return []
    if max_tokens is None:
        step = max_sequences or len(sizes)
        return [np.arange(i, min(i + step, len(sizes)), dtype=np.int64) for i in range(0, len(sizes), step)]
    longest = max(range(len(sizes)), key=sizes.__getitem__)
    if sizes[longest] > max_tokens:
        raise ValueError(
            f"Sequence {longest} has {sizes[longest]} tokens, more than a micro-batch may hold ({max_tokens} tokens). "
            "Raise the token budget per micro-batch to at least the longest prompt plus response, or shorten them."
        )
    micro_batches: list[list[int]] = []
    # (tokens left, micro-batch), ascending: the tightest fit is found by bisection
    open_ones: list[tuple[int, int]] = []
    for row in sorted(range(len(sizes)), key=lambda row: -sizes[row]):
        fit = bisect_left(open_ones, (sizes[row], -1))
        if fit < len(open_ones):
            room, index = open_ones.pop(fit)
        else:
            room, index = max_tokens, len(micro_batches)
            micro_batches.append([])
        micro_batches[index].append(row)
        if max_sequences is None or len(micro_batches[index]) < max_sequences:
            insort(open_ones, (room - sizes[row], index))
    return [np.asarray(rows, dtype=np.int64) for rows in sorted(sorted(rows) for rows in micro_batches)]


def balance(work: Sequence[float] | NDArray[np.number], k: int) -> list[Rows]:
    """Split rows into `k` parts of nearly equal total `work` (N,), whose counts of rows may differ.

    By the largest differencing method (Karmarkar and Karp, 1982), or by longest processing time first where that gives
    a smaller largest part, as it sometimes does for few rows: so never above ``4/3 - 1/(3 k)`` of the best possible
    (Graham, 1969). Deterministic; rows ascend within a part, parts are ordered by their first row, empty parts come
    last. Raises ValueError for k below 1 and for work that is negative, infinite or no number.
    """
    if k < 1:
        raise ValueError(f"Rows can be split into 1 part or more, not {k}.")
    array = np.asarray(work)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iuf"):
        raise ValueError(f"Work must be one number per row, but is {array.dtype} of shape {array.shape}.")
    wrong = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if wrong.size:
        raise ValueError(f"Work must be 0 or more and finite, but that of row {wrong[0]} is {array[wrong[0]]}.")
    amounts = array.tolist()  # Python numbers: sums of large integers stay exact
    filled = max(1, min(k, len(amounts)))  # parts that can get a row: what k asks for beyond them costs nothing
    partitions = (_by_differencing(amounts, filled), _longest_first(amounts, filled))
    best = min(partitions, key=lambda parts: max((part[0] for part in parts), default=0))  # of equal ones the first
    rows = sorted(sorted(rows) for _, rows in best)
    empty = [np.zeros(0, dtype=np.int64)] * (k - len(rows))
    return [*(np.asarray(part, dtype=np.int64) for part in rows), *empty]


def _as_lengths(lengths: Sequence[int] | NDArray[np.integer]) -> NDArray[np.int64]:
    array = np.asarray(lengths)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"Lengths must be one integer per sequence, but are {array.dtype} of shape {array.shape}.")
    wrong = np.flatnonzero((array < 0) | (array > np.iinfo(np.int64).max))
    if wrong.size:
        raise ValueError(f"Sequence {wrong[0]} cannot have {array[wrong[0]]} tokens.")
    return array.astype(np.int64)


_Part = tuple[float, list[int]]  # a sum of work, and the rows that it is the sum of


def _longest_first(amounts: list[float], k: int) -> list[_Part]:
    """Give each row, largest first, to the part that has least; return the parts that got any."""
    parts: list[tuple[float, int, list[int]]] = [(0, number, []) for number in range(k)]
    for row in sorted(range(len(amounts)), key=lambda row: -amounts[row]):
        total, number, rows = parts[0]
        rows.append(row)
        heapq.heapreplace(parts, (total + amounts[row], number, rows))
    return [(total, rows) for total, _, rows in parts if rows]


def _by_differencing(amounts: list[float], k: int) -> list[_Part]:
    """Merge the two partial partitions of largest spread, largest part with smallest, until there is one."""
    # A partial partition is its non-empty parts by falling sum, at most k. The heap orders them by falling spread, then
    # by age, which makes ties deterministic.
    heap: list[tuple[float, int, list[_Part]]] = [
        (-amount if k > 1 else 0, row, [(amount, [row])]) for row, amount in enumerate(amounts)
    ]
    heapq.heapify(heap)
    age = len(heap)
    while len(heap) > 1:
        _, _, first = heapq.heappop(heap)
        _, _, second = heapq.heappop(heap)
        merged = _merge(first, second, k)
        smallest = merged[-1][0] if len(merged) == k else 0
        heapq.heappush(heap, (smallest - merged[0][0], age, merged))
        age += 1
    return heap[0][2] if heap else []


def _merge(first: list[_Part], second: list[_Part], k: int) -> list[_Part]:
    """Join the largest part of one with the smallest of the other, and so on; both count k parts, with empty ones."""
    overlap = max(0, len(first) + len(second) - k)
    # With part i of the first meets part k - 1 - i of the second, of which only the first len(second) are not empty.
    joined = [_join(first[len(first) - overlap + i], second[len(second) - 1 - i]) for i in range(overlap)]
    alone = first[: len(first) - overlap] + second[: len(second) - overlap]
    return sorted(alone + joined, key=lambda part: -part[0])


def _join(a: _Part, b: _Part) -> _Part:
    large, small = (a[1], b[1]) if len(a[1]) >= len(b[1]) else (b[1], a[1])
    large.extend(small)  # the longer list grows, so that joining costs N log N in all
    return a[0] + b[0], large
