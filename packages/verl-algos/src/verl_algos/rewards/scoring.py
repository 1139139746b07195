"""Scoring rows with one reward function: one score per row, in order, or one clear error."""

import asyncio
import inspect
from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, NoReturn

from verl_algos.rewards import event_loop
from verl_algos.rewards.results import describe, is_finite, plain, unwrap
from verl_algos.rewards.source import defined_at, raised_at, said
from verl_algos.rewards.types import RewardError, RewardFunction, RewardRow, Score


def score_all(
    function: RewardFunction,
    rows: Sequence[RewardRow],
    kwargs: Mapping[str, Any] | None = None,
    *,
    max_concurrency: int = 64,
) -> list[Score]:
    """Score every row with `function`, plain or async; result i belongs to row i.

    Async calls of one process all run on one event loop, in a thread of its own, so that a semaphore or HTTP session
    that the function keeps between calls goes on working.

    Args:
        function: called as ``function(data_source, solution_str, ground_truth, extra_info, **kwargs)`` with these
            names as keywords.
        rows: the responses; an empty response is scored like any other.
        kwargs: the function's own options.
        max_concurrency: calls of an async function in flight at once. Plain functions are called one after another.

    Raises:
        RewardError: the function raised (chained; also SystemExit and cancellation, but an interrupt by the keyboard
            passes), or returned neither a finite number in float32's range nor a mapping with such a "score", or
            "acc" in the mapping is no such number or bool.
    """
    if max_concurrency < 1:
        raise ValueError(f"max_concurrency={max_concurrency} must be at least 1.")
    options = dict(kwargs or {})
    scores: list[Score | None] = [None] * len(rows)
    pending: dict[int, Awaitable[object]] = {}
    try:
        for index, row in enumerate(rows):
            try:
                result: object = function(
                    data_source=row.data_source,
                    solution_str=row.solution_str,
                    ground_truth=row.ground_truth,
                    extra_info=row.extra_info,
                    **options,
                )
            except (KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:  # a user's function may raise anything, and call sys.exit
                raise _raised(function, index, row, error) from error
            if inspect.isawaitable(result):
                pending[index] = result
            else:
                scores[index] = _checked(function, index, row, result)
        if pending:
            try:
                awaited = event_loop.run(_await_all(function, rows, pending, max_concurrency))
            except CancelledError as error:  # the function cancelled every task of the loop
                first = next(iter(pending))
                raise _raised(function, first, rows[first], error) from error
            for index, result in awaited.items():
                scores[index] = _checked(function, index, rows[index], result)
    finally:
        for awaitable in pending.values():  # those that an error left unstarted; closing a finished one does nothing
            if inspect.iscoroutine(awaitable):
                awaitable.close()
    return [score for score in scores if score is not None]


async def _await_all(
    function: RewardFunction, rows: Sequence[RewardRow], pending: Mapping[int, Awaitable[object]], max_concurrency: int
) -> dict[int, object]:
    slots = asyncio.Semaphore(max_concurrency)
    ending = False

    async def wait_for(index: int, awaitable: Awaitable[object]) -> object:
        async with slots:
            try:
                return await awaitable
            except (KeyboardInterrupt, GeneratorExit):
                raise
            except BaseException as error:  # a user's function may raise anything, and call sys.exit
                if ending and isinstance(error, asyncio.CancelledError):
                    raise  # from below, not the function's own
                raise _raised(function, index, rows[index], error) from error

    tasks = [asyncio.create_task(wait_for(index, awaitable)) for index, awaitable in pending.items()]
    try:
        return dict(zip(pending, await asyncio.gather(*tasks), strict=True))
    finally:
        ending = True
        for task in tasks:  # after an error the others would go on
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _checked(function: RewardFunction, index: int, row: RewardRow, result: object) -> Score:
    if isinstance(result, Mapping):
        if "score" not in result:
            _refuse(
                function, index, row, f"a mapping without 'score' (it has {', '.join(map(repr, result)) or 'nothing'})"
            )
        extra = {str(key): plain(value) for key, value in result.items() if key != "score"}
        if "acc" in extra:
            acc = unwrap(extra["acc"])
            if not is_finite(acc):
                _refuse(function, index, row, f"'acc' {describe(acc)}, which must be a bool or a finite number")
            extra["acc"] = acc if isinstance(acc, int) else float(acc)
        return Score(_finite(function, index, row, result["score"]), extra)
    score = _finite(function, index, row, result)
    return Score(score, {"acc": score})


def _finite(function: RewardFunction, index: int, row: RewardRow, value: object) -> float:
    number = unwrap(value)
    if not is_finite(number):
        _refuse(function, index, row, f"{describe(number)}, not a finite reward")
    return float(number)


def _describe(function: RewardFunction, index: int, row: RewardRow) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    place = f" ({at})" if (at := defined_at(function)) else ""
    return f"The reward function {name}{place} failed on row {index} (data_source {row.data_source!r}): it"


def _raised(function: RewardFunction, index: int, row: RewardRow, error: BaseException) -> RewardError:
    where = f", at {at}" if (at := raised_at(error)) else ""
    return RewardError(
        f"{_describe(function, index, row)} raised {type(error).__name__}: {said(error)}{where}. "
        "Repair the function or the row; nothing was scored.",
        index,
        row.data_source,
    )


def _refuse(function: RewardFunction, index: int, row: RewardRow, what: str) -> NoReturn:
    raise RewardError(
        f"{_describe(function, index, row)} returned {what}. "
        "A reward is a finite number in float32's range, or a mapping with one under 'score'.",
        index,
        row.data_source,
    )
