"""Rows on their way to scores."""

import logging
import random
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from verl_algos.rewards.types import Failure, RewardError, RewardRow, Score

logger = logging.getLogger(__name__)

#: Rows by which a function that hangs is told from rows that make it hang.
_NUM_PROBES = 16


class Job:
    """What of a call is done, waiting or suspected."""

    def __init__(self, rows: Sequence[RewardRow]) -> None:
        self.rows = rows
        self.outcomes: list[Score | Failure | None] = [None] * len(rows)
        self.failures: dict[int, Failure] = {}
        self.unparsable: list[int] = []
        """Rows that were scored although no answer could be parsed."""
        self.left = len(rows)
        self.waiting = deque(range(len(rows)))
        self.deaths = 0
        """Workers that died over it."""
        self.alone: set[int] = set()
        """Rows of which one has ended a worker; each gets a worker for itself, so that it is found."""
        # The same for any number of workers, and no pattern of the rows falls in with them.
        self._probes = random.Random(0).sample(range(len(rows)), _NUM_PROBES) if len(rows) > _NUM_PROBES else []
        self._probes_left = set(self._probes)
        self._timed_out = False

    def probes_first(self, *, alone: bool) -> None:
        """Let the rows that tell whether the function hangs be the next ones, of those that wait.

        Args:
            alone: each of them in a chunk of its own.
        """
        waiting = set(self.waiting)
        probes = [index for index in self._probes if index in waiting]
        rest = waiting.difference(probes)
        self.waiting = deque([*probes, *(index for index in self.waiting if index in rest)])
        if alone:
            self.alone.update(probes)

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

    def settle_scores(self, indices: Sequence[int], scores: Sequence[Score]) -> None:
        """The scores of rows: those of a whole chunk in less time than one after the other."""
        if isinstance(indices, range):
            self.left -= len(scores)
            self.outcomes[indices.start : indices.stop] = scores
            self.unparsable += [index for index, (_, extra) in zip(indices, scores, strict=True) if _no_answer(extra)]
        else:
            for index, score in zip(indices, scores, strict=True):
                self.settle(index, score)

    def settle(self, index: int, outcome: Score | Failure) -> None:
        """The outcome of a row.

        Raises:
            RewardError: the function hangs.
        """
        self.left -= self.outcomes[index] is None
        self.outcomes[index] = outcome
        if isinstance(outcome, Failure):
            self.failures[index] = outcome
            if outcome.kind == "timeout":
                self._settle_timeout(index, outcome)
        elif _no_answer(outcome.extra):
            self.unparsable.append(index)

    def _settle_timeout(self, index: int, failure: Failure) -> None:
        if not self._timed_out:
            self._timed_out = True
            logger.warning(
                "A row of the reward function reached a limit of time: %s. It counts as reward/timeout; others of this "
                "call do so without a line for each.",
                failure.message,
            )
        if index not in self._probes_left:
            return
        self._probes_left.remove(index)
        if self._probes_left:
            return
        raise RewardError(
            f"{_NUM_PROBES} rows, chosen at random from {len(self.rows):,}, all reached a limit of time, so the reward "
            f"function hangs and not its rows, or the limit is too short for it. The last: {failure.message}. Repair "
            "the function, or give it more cpu_seconds or wall_seconds.",
            index,
            self.rows[index].data_source,
        )


def _no_answer(extra: Mapping[str, Any]) -> bool:
    """Whether a rule says that it found no answer: ``pred`` as published rules write it, or ``no_answer``."""
    if "pred" in extra and ((pred := extra["pred"]) is None or (type(pred) is str and pred == "[INVALID]")):
        return True
    return "no_answer" in extra and isinstance(told := extra["no_answer"], (bool, int, float)) and bool(told)
