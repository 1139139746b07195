"""Rows on their way to scores."""

from collections import deque
from collections.abc import Sequence

from verl_algos.rewards.types import Failure, RewardRow, Score


class Job:
    """What of a call is done, waiting or suspected."""

    def __init__(self, rows: Sequence[RewardRow]) -> None:
        self.rows = rows
        self.results: list[Score | Failure | None] = [None] * len(rows)
        self.left = len(rows)
        self.waiting = deque(range(len(rows)))
        self.deaths = 0
        """Workers that died over it."""
        self.alone: set[int] = set()
        """Rows of which one has ended a worker; each gets a worker for itself, so that it is found."""

    def take(self, size: int) -> list[int]:
        """The next rows, at most `size`."""
        if self.waiting[0] in self.alone:
            return [self.waiting.popleft()]
        if not self.alone:
            return [self.waiting.popleft() for _ in range(min(size, len(self.waiting)))]
        chunk: list[int] = []
        while self.waiting and len(chunk) < size and self.waiting[0] not in self.alone:
            chunk.append(self.waiting.popleft())
        return chunk

    def put_back(self, indices: list[int]) -> None:
        """Rows that were taken and are still to be scored."""
        self.waiting.extendleft(reversed(indices))

    def settle_all(self, indices: list[int] | range, scores: list[Score]) -> None:
        """The results of rows; those after each other at once."""
        if isinstance(indices, range) and not any(self.results[indices.start : indices.stop]):
            self.results[indices.start : indices.stop] = scores
            self.left -= len(scores)
        else:
            for index, score in zip(indices, scores, strict=True):
                self.settle(index, score)

    def settle(self, index: int, outcome: Score | Failure) -> None:
        """The result of a row."""
        self.left -= self.results[index] is None
        self.results[index] = outcome
