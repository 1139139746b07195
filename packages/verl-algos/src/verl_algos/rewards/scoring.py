"""Scoring rows with one reward function: one score per row, in order, or one clear error."""

import asyncio
import contextlib
import inspect
import math
import numbers
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from verl_algos.rewards.types import RewardError, RewardFunction, RewardRow, Score


def score_all(
    function: RewardFunction,
    rows: Sequence[RewardRow],
    kwargs: Mapping[str, Any] | None = None,
    *,
    max_concurrency: int = 64,
) -> list[Score]:
    """Score every row with `function`, plain or async; result i belongs to row i.

    Args:
        function: called as ``function(data_source, solution_str, ground_truth, extra_info, **kwargs)`` with these
            names as keywords.
        rows: the responses; an empty response is scored like any other.
        kwargs: the function's own options.
        max_concurrency: calls of an async function in flight at once. Plain functions are called one after another.

    Raises:
        RewardError: the function raised (chained), or returned neither a finite number nor a mapping with such a
            "score".
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
            except Exception as error:  # a user's function may raise anything
                raise _raised(function, index, row, error) from error
            if inspect.isawaitable(result):
                pending[index] = result
            else:
                scores[index] = _checked(function, index, row, result)
        if pending:
            awaited = _run(_await_all(function, rows, pending, max_concurrency))
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

    async def wait_for(index: int, awaitable: Awaitable[object]) -> object:
        async with slots:
            try:
                return await awaitable
            except Exception as error:  # a user's function may raise anything
                raise _raised(function, index, rows[index], error) from error

    results = await asyncio.gather(*(wait_for(index, awaitable) for index, awaitable in pending.items()))
    return dict(zip(pending, results, strict=True))


def _run(coroutine: Coroutine[Any, Any, dict[int, object]]) -> dict[int, object]:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    # Called from inside an event loop (a notebook): that loop cannot be entered twice, so another thread runs its own.
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(asyncio.run, coroutine).result()


def _checked(function: RewardFunction, index: int, row: RewardRow, result: object) -> Score:
    if isinstance(result, Mapping):
        if "score" not in result:
            _refuse(
                function, index, row, f"a mapping without 'score' (it has {', '.join(map(repr, result)) or 'nothing'})"
            )
        extra = {str(key): value for key, value in result.items() if key != "score"}
        return Score(_finite(function, index, row, result["score"]), extra)
    score = _finite(function, index, row, result)
    return Score(score, {"acc": score})


def _finite(function: RewardFunction, index: int, row: RewardRow, value: object) -> float:
    if not isinstance(value, numbers.Real) and callable(item := getattr(value, "item", None)):
        with contextlib.suppress(
            ValueError, RuntimeError
        ):  # an array or tensor of one element is a number, of more is not
            value = item()
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        _refuse(function, index, row, f"{str(value)[:80]!r} ({type(value).__name__})")
    return float(value)


def _describe(function: RewardFunction, index: int, row: RewardRow) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return f"The reward function {name} failed on row {index} (data_source {row.data_source!r}): it"


def _raised(function: RewardFunction, index: int, row: RewardRow, error: Exception) -> RewardError:
    text = " ".join(str(error).split())[:500]
    return RewardError(
        f"{_describe(function, index, row)} raised {type(error).__name__}: {text or 'no message'}. "
        "Repair the function or the row; nothing was scored.",
        index,
        row.data_source,
    )


def _refuse(function: RewardFunction, index: int, row: RewardRow, what: str) -> NoReturn:
    raise RewardError(
        f"{_describe(function, index, row)} returned {what}. "
        "A reward is a finite number, or a mapping with one under 'score'.",
        index,
        row.data_source,
    )
