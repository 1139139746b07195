"""Scoring rows with one reward function: one score per row, in order, or one clear error."""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from functools import partial
from typing import Any, NoReturn, cast

from verl_algos.rewards import event_loop
from verl_algos.rewards.results import FLOAT32_MAX, RESERVED_NAMES, describe, is_finite, plain, unwrap
from verl_algos.rewards.source import defined_at, raised_at, said
from verl_algos.rewards.types import (
    Failure,
    RewardCountError,
    RewardError,
    RewardFunction,
    RewardModel,
    RewardRow,
    RewardTimeoutError,
    Score,
)

# What Score(*pair) does, without a call of Python code for each.
_score = cast(Callable[[Iterable[Any]], Score], partial(tuple.__new__, Score))
_ADVICE = " Repair the function or the row; nothing was scored."


def score_all(
    function: RewardFunction | RewardModel,
    rows: Sequence[RewardRow],
    kwargs: Mapping[str, Any] | None = None,
    *,
    max_concurrency: int = 64,
) -> list[Score]:
    """Score every row with `function`, plain or async, in this process; result i belongs to row i.

    The first row that cannot be scored ends it. `verl_algos.rewards.RewardRunner` calls functions in the same way, but
    counts the rows that cannot be scored and goes on, in worker processes with limits.

    Async calls of one process all run on one event loop, in a thread of its own, so that a semaphore or HTTP session
    that the function keeps between calls goes on working.

    Args:
        function: called as ``function(data_source, solution_str, ground_truth, extra_info, **kwargs)`` with these
            names as keywords; or a `RewardModel`, which gets all rows at once.
        rows: the responses; an empty response is scored like any other.
        kwargs: the function's own options; a model has its own already.
        max_concurrency: calls of an async function in flight at once. Plain functions are called one after another.

    Raises:
        RewardError: the function raised (chained; also SystemExit and cancellation, but an interrupt by the keyboard
            passes), or returned neither a finite number in float32's range nor a mapping with such a "score", or
            "acc" in the mapping is no such number or bool.
    """
    if max_concurrency < 1:
        raise ValueError(f"max_concurrency={max_concurrency} must be at least 1.")
    if isinstance(function, RewardModel):
        outcomes = score_batch(function, range(len(rows)), rows)
        for outcome in outcomes:
            if isinstance(outcome, RewardError):
                raise outcome
        return [outcome for outcome in outcomes if isinstance(outcome, Score)]
    bound_function = bound(function, kwargs or {})
    scores: list[Score | None] = [None] * len(rows)
    pending: dict[int, Awaitable[object]] = {}
    try:
        for index, row in enumerate(rows):
            result = call(function, bound_function, index, row)
            if isinstance(result, Score):
                scores[index] = result
            else:
                pending[index] = result
        if pending:
            awaited: dict[int, Score] = {}
            settle(function, rows, pending, awaited.__setitem__, None, max_concurrency=max_concurrency)
            for index, score in awaited.items():
                scores[index] = score
    finally:
        close(pending.values())
    return [score for score in scores if score is not None]


def bound(function: RewardFunction, kwargs: Mapping[str, Any]) -> RewardFunction:
    """`function` with its own options.

    Raises:
        ValueError: an option has the name of what every row is called with.
    """
    if clash := [name for name in RewardRow._fields if name in kwargs]:
        raise ValueError(
            f"The options of the reward function {_name(function)} have {', '.join(clash)}, which each row gives it. "
            "Give the option another name."
        )
    # A tenth of the cost of a GSM8K answer is saved where there is nothing to merge.
    return partial(function, **kwargs) if kwargs else function


def call(
    function: RewardFunction, bound_function: RewardFunction, index: int, row: RewardRow
) -> Score | Awaitable[object]:
    """Call `function` on one row: its checked result, or what is to be awaited for it.

    Args:
        function: as it was given, for messages.
        bound_function: the same, `bound`.
        index: of the row, for messages.
        row: what it is called with.

    Raises:
        RewardError: the function raised, or returned no reward.
    """
    try:
        result = bound_function(
            data_source=row.data_source,
            solution_str=row.solution_str,
            ground_truth=row.ground_truth,
            extra_info=row.extra_info,
        )
        return result if inspect.isawaitable(result) else checked(function, index, row, result)
    except (KeyboardInterrupt, RewardError):
        raise
    except BaseException as error:  # a user's function may raise anything, and call sys.exit; so may what it returns
        raise error_of(function, index, row, error) from error


def score_batch(model: RewardModel, indices: Sequence[int], rows: Sequence[RewardRow]) -> list[Score | RewardError]:
    """Score rows, whose numbers are `indices`, with one call of a model; an error for each row that it gave one for.

    Raises:
        RewardError: the model raised.
        RewardCountError: it returned another number of results.
    """
    if not rows:
        return []
    try:
        results: Any = model.score(rows)
        if inspect.isawaitable(results):
            close([results])
            raise TypeError("score(rows) returned something to await: it is called plainly and returns the rewards")
        num_results = len(results)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a user's model may raise anything, and call sys.exit
        raise error_of(model, indices[0], rows[0], error) from error
    if num_results != len(rows):
        raise RewardCountError(
            f"The reward model {type(model).__name__} returned {num_results} results for {len(rows)} rows. Let it "
            "return one for each, in order: a number, a mapping with 'score', or an exception for a row that has none.",
            indices[0],
            rows[0].data_source,
        )
    outcomes: list[Score | RewardError] = []
    for index, row, result in zip(indices, rows, results, strict=True):
        try:
            if isinstance(result, Exception):
                raise error_of(model, index, row, result) from result
            outcomes.append(checked(model, index, row, result))
        except RewardError as error:
            outcomes.append(error)
    return outcomes


def settle(
    function: RewardFunction,
    rows: Sequence[RewardRow] | Mapping[int, RewardRow],
    pending: Mapping[int, Awaitable[object]],
    scored: Callable[[int, Score], None],
    failed: Callable[[int, RewardError | RewardTimeoutError], None] | None,
    *,
    max_concurrency: int,
    wall_seconds: float | None = None,
) -> None:
    """Await the results of `rows` on the loop of this process, in any order.

    Args:
        function: that they came from.
        rows: those of the indices, at least.
        pending: what is to be awaited for each index.
        scored: called on the loop for each that is a reward.
        failed: called on the loop for each that is none; None: the first one is raised and the others are cancelled.
        max_concurrency: awaited at once.
        wall_seconds: for each, from when its turn comes.

    Raises:
        RewardError: without `failed`, the first that raised.
    """
    try:
        event_loop.run(_await_all(function, rows, pending, scored, failed, max_concurrency, wall_seconds))
    except CancelledError as error:  # the function cancelled every task of the loop
        first = next(iter(pending))
        raise error_of(function, first, rows[first], error) from error


def close(awaitables: Iterable[Awaitable[object]]) -> None:
    """Close those that an error left unstarted; closing a finished one does nothing."""
    for awaitable in awaitables:
        if inspect.iscoroutine(awaitable):
            awaitable.close()


async def _await_all(
    function: RewardFunction,
    rows: Sequence[RewardRow] | Mapping[int, RewardRow],
    pending: Mapping[int, Awaitable[object]],
    scored: Callable[[int, Score], None],
    failed: Callable[[int, RewardError | RewardTimeoutError], None] | None,
    max_concurrency: int,
    wall_seconds: float | None,
) -> None:
    slots = asyncio.Semaphore(max_concurrency)
    ending = False

    async def wait_for(index: int, awaitable: Awaitable[object]) -> None:
        async with slots:
            limit = asyncio.timeout(wall_seconds)
            try:
                async with limit:
                    result = await awaitable
                score = checked(function, index, rows[index], result)
            except KeyboardInterrupt:
                raise
            except RewardError as error:
                problem: RewardError | RewardTimeoutError = error
            except BaseException as error:  # a user's function may raise anything, and call sys.exit
                if ending and isinstance(error, asyncio.CancelledError):
                    raise  # from below, not the function's own
                if limit.expired():
                    problem = RewardTimeoutError(f"it was waited for longer than {wall_seconds:g} s")
                else:
                    problem = error_of(function, index, rows[index], error)
                    problem.__cause__ = error
            else:
                scored(index, score)
                return
        if failed is None:
            raise problem
        failed(index, problem)

    tasks = [asyncio.create_task(wait_for(index, awaitable)) for index, awaitable in pending.items()]
    try:
        await asyncio.gather(*tasks)
    finally:
        ending = True
        for task in tasks:  # after an error the others would go on
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def checked(function: RewardFunction | RewardModel, index: int, row: RewardRow, result: object) -> Score:
    """What the function returned, as a score.

    Raises:
        RewardError: it is not a reward.
    """
    if isinstance(result, Mapping):
        if "score" not in result:
            _refuse(
                function, index, row, f"a mapping without 'score' (it has {', '.join(map(repr, result)) or 'nothing'})"
            )
        extra = {str(key): plain(value) for key, value in result.items() if key != "score"}
        if clash := sorted(RESERVED_NAMES & extra.keys()):
            _refuse(function, index, row, f"an entry {clash[0]!r}, which a run reports itself: give it another name")
        if "acc" in extra:
            acc = unwrap(extra["acc"])
            if not is_finite(acc):
                _refuse(function, index, row, f"'acc' {describe(acc)}, which must be a bool or a finite number")
            extra["acc"] = acc if isinstance(acc, int) else float(acc)
        return Score(_finite(function, index, row, result["score"]), extra)
    score = _finite(function, index, row, result)
    return Score(score, {"acc": score})


def plain_scores(results: Sequence[dict[str, Any]]) -> list[Score] | None:
    """What `checked` says of each of many results, if it changes nothing of them; None if it does of any.

    All of it is done by loops in C, in a fifth of the time, for rows that cost as little as five microseconds.

    Args:
        results: of `PLAIN` values under texts; the scores keep them.
    """
    names: set[str] = set().union(*results)
    scores = [result.get("score") for result in results]
    accs = [result.get("acc", 0.0) for result in results] if "acc" in names else []
    if {*map(type, scores), *map(type, accs)} != {float} or not RESERVED_NAMES.isdisjoint(names):
        return None
    for values in filter(None, (scores, accs)):
        if not (math.isfinite(sum(values)) and min(values) >= -FLOAT32_MAX and max(values) <= FLOAT32_MAX):
            return None
    for result in results:
        del result["score"]
    return list(map(_score, zip(scores, results, strict=True)))


def _finite(function: RewardFunction | RewardModel, index: int, row: RewardRow, value: object) -> float:
    number = unwrap(value)
    if not is_finite(number):
        _refuse(function, index, row, f"{describe(number)}, not a finite reward")
    return float(number)


def _name(function: RewardFunction | RewardModel) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _describe(function: RewardFunction | RewardModel, index: int, row: RewardRow) -> str:
    name = _name(function)
    kind, code = ("model", function.score) if isinstance(function, RewardModel) else ("function", function)
    place = f" ({at})" if (at := defined_at(code)) else ""
    return f"The reward {kind} {name}{place} failed on row {index} (data_source {row.data_source!r}): it"


def error_of(function: RewardFunction | RewardModel, index: int, row: RewardRow, error: BaseException) -> RewardError:
    """What is said of a function or model that raised `error` on a row."""
    where = f", at {at}" if (at := raised_at(error)) else ""
    return RewardError(
        f"{_describe(function, index, row)} raised {type(error).__name__}: {said(error)}{where}.{_ADVICE}",
        index,
        row.data_source,
    )


def _refuse(function: RewardFunction | RewardModel, index: int, row: RewardRow, what: str) -> NoReturn:
    raise RewardError(
        f"{_describe(function, index, row)} returned {what}. "
        "A reward is a finite number in float32's range, or a mapping with one under 'score'.",
        index,
        row.data_source,
    )


def as_failure(error: RewardError | RewardTimeoutError) -> Failure:
    """Why a row has no reward, without the advice that `score_all` adds."""
    if isinstance(error, RewardTimeoutError):
        return Failure("timeout", str(error))
    return Failure("exception", str(error).removesuffix(_ADVICE))
