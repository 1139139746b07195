"""In which order rows come: pure functions of the seed, the epoch and the rows in use, which are numbered from 0.

Nothing is carried from one epoch to the next, so any epoch of any run can be had at once, and a resumed run is the
uninterrupted one.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from numbers import Rational

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]

#: Keys of the uses of the seed: they draw from different streams.
_CHOICE, _ORDER, _MIX = 1, 2, 3


def permutation(n: int, *key: int) -> Indices:
    """Return 0 to n - 1 in an order that only `key` decides.

    NumPy promises a bit generator's raw stream for ever, but not what its shuffles make of it: so ranks of raw numbers.
    """
    raw = np.random.PCG64(np.random.SeedSequence(key)).random_raw(n)
    return np.argsort(raw, kind="stable").astype(np.int64)


def choose(total: int, wanted: int, *, shuffle: bool, seed: int) -> Indices:
    """Return which `wanted` of `total` rows are in use, ascending: a random choice if `shuffle`, else the first; -1
    takes all.
    """
    if wanted == -1 or wanted >= total:
        return np.arange(total, dtype=np.int64)
    if not shuffle:
        return np.arange(wanted, dtype=np.int64)
    return np.sort(permutation(total, seed, _CHOICE)[:wanted])


def ranks(values: Sequence[float | Rational]) -> Indices:
    """Return the place of each value among the different ones, ascending from 0: equals have the same.

    Python compares whole numbers, fractions and floats exactly, of any size; float64 could not tell 2**60 + 1 from
    2**60. No value may be NaN.
    """
    found = np.empty(len(values), dtype=np.int64)
    rank, last = -1, None
    for index in sorted(range(len(values)), key=values.__getitem__):
        if last is None or values[index] != last:
            rank, last = rank + 1, values[index]
        found[index] = rank
    return found


def whole_weights(weights: Sequence[float]) -> list[int]:
    """Return the smallest whole numbers in the proportions of `weights` as they are written: 0.1 is one tenth."""
    parts = [Fraction(repr(float(weight))) for weight in weights]
    scale = math.lcm(*(part.denominator for part in parts))
    whole = [int(part * scale) for part in parts]
    common = math.gcd(*whole) or 1
    return [number // common for number in whole]


def apportion(sizes: Iterable[int], weights: Sequence[int], lags: list[int]) -> list[list[int]]:
    """Cut each batch of `sizes` into whole rows of every source, in the proportions of `weights`.

    A source gets its quota, size * weight / sum of the weights, rounded down or up. It is rounded up for those that
    are furthest behind what they should have had from all batches together (largest remainder, carried from batch to
    batch), the first of equals.

    Args:
        sizes: rows of each batch.
        weights: of each source, at least 0 and not all 0.
        lags: how many rows each source is behind at the beginning, times the sum of the weights; all 0 before the
            first batch. It is brought up to date.
    """
    total = sum(weights)
    counts = []
    for size in sizes:
        batch, unfair = [], []
        for source, weight in enumerate(weights):
            quota, remainder = divmod(size * weight, total)
            batch.append(quota)
            lags[source] += remainder
            if remainder:
                unfair.append(source)
        unfair.sort(key=lambda source: -lags[source])
        for source in unfair[: size - sum(batch)]:
            batch[source] += 1
            lags[source] -= total
        counts.append(batch)
    return counts


def interleave(counts: Sequence[Sequence[int]]) -> Indices:
    """Return the source of every draw, batch after batch, where `counts` has each batch's draws from each source.

    The draws of a source lie evenly over the batch, so that parts of a batch are mixed like the whole.
    """
    table = np.asarray(counts, dtype=np.int64)
    batches, sources = table.shape
    of_run = table.ravel()
    source = np.repeat(np.tile(np.arange(sources), batches), of_run)
    batch = np.repeat(np.arange(batches), table.sum(axis=1))
    number = np.arange(len(source)) - np.repeat(np.cumsum(of_run) - of_run, of_run)
    place = (2 * number + 1) / np.repeat(2 * of_run, of_run)
    return source[np.lexsort((source, place, batch))]


@dataclass(frozen=True, eq=False)
class RowOrder:
    """The order of the rows in use, numbered from 0, in every epoch.

    Without weights an epoch is every row once. With them a batch has each source in its proportion (`apportion`), and
    every source goes through its rows again and again, over the borders of epochs: none comes again before all the
    others of its source came, and each pass has its own order.
    """

    rows: int
    batch_size: int
    seed: int
    shuffle: bool
    """Passes come in their own random order; otherwise in that of the rows."""
    drop_last: bool
    """An epoch is whole batches only; otherwise its last one may be shorter."""
    values: NDArray[np.float64] | Indices | None = None
    """(rows,): a pass comes in ascending order of these, equals in the order that it would have had."""
    weights: Sequence[int] | None = None
    """Of each source; None does not tell sources apart."""
    sources: Indices | None = None
    """(rows,): the source of each row; with weights only."""
    _lags: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict, init=False, repr=False)
    """By epoch what is behind and what was drawn of each source when it begins: to be found faster again."""

    @property
    def batches_per_epoch(self) -> int:
        """Batches of one epoch."""
        full, rest = divmod(self.rows, self.batch_size)
        return full if self.drop_last else full + (rest > 0)

    @property
    def rows_per_epoch(self) -> int:
        """Rows of one epoch's batches."""
        return self.batches_per_epoch * self.batch_size if self.drop_last else self.rows

    def epoch(self, number: int) -> Indices:
        """Return the rows of an epoch (from 0), batch after batch: (rows_per_epoch,)."""
        if self.weights is not None:
            return self._mixed(number)
        order = self._shuffled(np.arange(self.rows, dtype=np.int64), _ORDER, number)
        # What fills no batch is left out before the values have a say: it is not always the last by them.
        return self._ascending(order[: self.rows_per_epoch])

    def _shuffled(self, rows: Indices, *key: int) -> Indices:
        return rows[permutation(len(rows), self.seed, *key)] if self.shuffle else rows

    def _ascending(self, rows: Indices) -> Indices:
        return rows if self.values is None else rows[np.argsort(self.values[rows], kind="stable")]

    def _mixed(self, number: int) -> Indices:
        assert self.weights is not None and self.sources is not None
        lags, drawn = self._before(number)
        source = interleave(apportion(self._sizes(), self.weights, list(lags)))
        order = np.empty(len(source), dtype=np.int64)
        for index in range(len(self.weights)):
            draws = np.flatnonzero(source == index)
            order[draws] = self._passes(index, drawn[index], len(draws))
        return order

    def _sizes(self) -> list[int]:
        rest = self.rows_per_epoch % self.batch_size
        return [self.batch_size] * (self.rows_per_epoch // self.batch_size) + [rest] * (rest > 0)

    def _before(self, number: int) -> tuple[list[int], list[int]]:
        """What each source is behind, and how many rows were drawn of it, when an epoch begins."""
        assert self.weights is not None
        self._lags.setdefault(0, ([0] * len(self.weights), [0] * len(self.weights)))
        known = max(epoch for epoch in self._lags if epoch <= number)
        for epoch in range(known, number):
            lags, drawn = list(self._lags[epoch][0]), self._lags[epoch][1]
            counts = np.sum(apportion(self._sizes(), self.weights, lags), axis=0).tolist()
            self._lags[epoch + 1] = (lags, [a + b for a, b in zip(drawn, counts, strict=True)])
        return self._lags[number]

    def _passes(self, source: int, begin: int, count: int) -> Indices:
        """Rows number `begin` to `begin + count` of the endless passes through a source."""
        if not count:
            return np.empty(0, dtype=np.int64)
        rows = np.flatnonzero(self.sources == source)
        first, last = begin // len(rows), (begin + count - 1) // len(rows)
        passes = [self._ascending(self._shuffled(rows, _MIX, source, each)) for each in range(first, last + 1)]
        return np.concatenate(passes)[begin - first * len(rows) :][:count]
