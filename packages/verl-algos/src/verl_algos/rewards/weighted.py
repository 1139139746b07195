"""A reward that is the weighted sum of others."""

import inspect
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, NamedTuple

from verl_algos import _numbers
from verl_algos.rewards.loading import check_signature
from verl_algos.rewards.results import RESERVED_NAMES
from verl_algos.rewards.scoring import checked
from verl_algos.rewards.types import RewardFunction, RewardResult, RewardRow, Score


class Part(NamedTuple):
    """One term of the sum."""

    name: str
    """Under which its own score is reported."""
    function: RewardFunction
    weight: float = 1.0
    kwargs: Mapping[str, Any] = {}
    """Options of every call."""


class WeightedSum:
    """A reward function, plain, or async if a part is: ``sum(weight * score)`` over its parts.

    The result reports the score of every part under its name, and what the parts said besides: ``acc``, ``pred`` and
    other entries of an earlier part come before those of a later one.

    Raises:
        ValueError: there is no part, two have the same name, one is called score, acc, pred or what a run reports
            itself, or a weight is no finite number.
        RewardLoadError: a part cannot be called with its options.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        names = [part.name for part in parts]
        taken = {"score", "acc", "pred", *RESERVED_NAMES}
        if not parts or len(set(names)) != len(names) or taken & set(names):
            raise ValueError(
                f"The parts of a weighted reward are called {names}: give at least one, each a name of its own other "
                f"than {', '.join(sorted(taken))}."
            )
        for part in parts:
            _numbers.checked(f"Part({part.name!r}).weight", part.weight, "the sum takes its score so many times")
            check_signature(part.function, part.kwargs)
        self.parts = tuple(parts)

    def __call__(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None
    ) -> RewardResult | Awaitable[RewardResult]:
        """Score one response by every part."""
        row = RewardRow(data_source, solution_str, ground_truth, extra_info)
        results = [part.function(**row._asdict(), **part.kwargs) for part in self.parts]
        if any(inspect.isawaitable(result) for result in results):
            return self._awaited(row, results)
        return self._sum(row, results)

    async def _awaited(self, row: RewardRow, results: Sequence[Any]) -> RewardResult:
        return self._sum(row, [await result if inspect.isawaitable(result) else result for result in results])

    def _sum(self, row: RewardRow, results: Sequence[Any]) -> RewardResult:
        scores: list[Score] = [
            checked(part.function, 0, row, result) for part, result in zip(self.parts, results, strict=True)
        ]
        merged: dict[str, Any] = {}
        for score in reversed(scores):
            merged |= score.extra
        merged |= {part.name: score.score for part, score in zip(self.parts, scores, strict=True)}
        total = sum(part.weight * score.score for part, score in zip(self.parts, scores, strict=True))
        return {"score": total} | merged
