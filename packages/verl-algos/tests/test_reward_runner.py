"""RewardRunner: limits, faults of single rows, equal results for any number of workers, and nothing left behind."""

import asyncio
import functools
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import goes_on
from verl_algos.rewards import (
    RewardError,
    RewardLoadError,
    RewardModel,
    RewardRow,
    RewardRunner,
    Score,
    default_compute_score,
    load_custom,
    score_all,
)

COUNTS = ("reward/timeout", "reward/exception", "reward/unparsable", "reward/workers_replaced")


def rows_of(*truths: Any) -> list[RewardRow]:
    return [RewardRow("mine", f"response {index}", truth, {"index": index}) for index, truth in enumerate(truths)]


def faulty(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> Any:
    """What a row asks for."""
    match ground_truth:
        case "hang":
            while True:
                pass
        case "hang without the interpreter":
            return float(pow(7, 10**10) % 2)
        case "block":
            time.sleep(10_000)
        case "raise":
            raise KeyError("lost")
        case "exit":
            sys.exit(3)
        case "die":
            os._exit(0)
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "memory":
            return float(len(bytearray(1 << 40)))
        case "fork":  # the child outlives the call, and holds the pipes
            if os.fork() == 0:
                time.sleep(10_000)
            return 5.0
        case "fork and return":
            os.fork()
            return 6.0
        case "nothing":
            return None
        case "nan":
            return math.nan
        case "unparsable":
            return {"score": 0.0, "pred": None}
    return {"score": float(ground_truth), "pred": solution_str, "seen": extra_info["index"]}


FAULTS = {
    "hang": ("timeout", "CPU seconds|on the clock"),
    "hang without the interpreter": ("timeout", "CPU seconds|on the clock"),
    "block": ("timeout", r"longer than 4 s on the clock"),
    "raise": ("exception", "raised KeyError: 'lost'"),
    "exit": ("exception", "raised SystemExit: 3"),
    "die": ("exception", "its worker exited with code 0"),
    "crash": ("exception", "its worker was killed by SIGSEGV"),
    "memory": ("exception", "raised MemoryError"),
    "nothing": ("exception", "returned 'None'"),
    "nan": ("exception", "not a finite reward"),
}


def test_one_bad_row_costs_itself_and_nothing_else() -> None:
    truths: list[Any] = [float(index % 7) for index in range(120)]
    places = dict(zip(range(3, 120, 11), FAULTS, strict=False))
    assert len(places) == len(FAULTS)
    for place, fault in places.items():
        truths[place] = fault
    truths[5], truths[6], truths[7] = "fork", "fork and return", "unparsable"
    rows = rows_of(*truths)
    with RewardRunner(
        faulty, num_workers=3, cpu_seconds=1, wall_seconds=4, start_seconds=1, memory_mb=1024, failed_score=-9.0
    ) as runner:
        result = runner.score(rows)
        assert {index: failure.kind for index, failure in result.failures.items()} == {
            place: FAULTS[fault][0] for place, fault in places.items()
        }
        for place, fault in places.items():
            assert re.search(FAULTS[fault][1], result.failures[place].message), (fault, result.failures[place])
            assert result.scores[place] == Score(-9.0, {})
        assert result.unparsable == (7,)
        assert [result.scores[place].score for place in (5, 6, 7)] == [5.0, 6.0, 0.0]
        for index, row in enumerate(rows):
            if isinstance(row.ground_truth, float):
                assert result.scores[index] == Score(row.ground_truth, {"pred": row.solution_str, "seen": index})
        # hang, hang, block, die, crash; the kernel may have ended more of them for memory
        assert result.metrics == dict(zip(COUNTS, (3.0, 7.0, 1.0, 5.0), strict=True))
        again = runner.score(rows_of(1.0, 2.0))
        assert [score.score for score in again.scores] == [1.0, 2.0] and again.metrics["reward/timeout"] == 0


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_results_are_those_of_score_all_for_any_number_of_workers(num_workers: int) -> None:
    rows = [RewardRow("openai/gsm8k", f"so #### {index % 5}" * (index % 3), str(index % 4)) for index in range(301)]
    with RewardRunner(default_compute_score, {"method": "flexible"}, num_workers=num_workers) as runner:
        result = runner.score(rows)
        assert result.scores == score_all(default_compute_score, rows, {"method": "flexible"})
        assert all(type(score) is Score for score in result.scores)
        assert result.metrics["reward/unparsable"] == sum(not row.solution_str for row in rows)
        assert runner.score([]).scores == []
        assert runner.score(rows[:1]).scores == result.scores[:1]


def test_in_this_process_faults_are_counted_too() -> None:
    result = RewardRunner(faulty).score(rows_of(1.0, "raise", "unparsable", "nothing", 2.0))
    assert [score.score for score in result.scores] == [1, 0, 0, 0, 2]
    assert result.metrics == dict(zip(COUNTS, (0.0, 2.0, 1.0, 0.0), strict=True))
    assert "KeyError" in result.failures[1].message and "nothing was scored" not in result.failures[1].message


def test_a_row_that_failed_can_be_left_out_of_its_group() -> None:
    result = RewardRunner(faulty, failed_score=math.nan).score(rows_of("raise", 2.0))
    assert math.isnan(result.scores[0].score)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_function_that_always_raises_is_broken(num_workers: int) -> None:
    with (
        RewardRunner(faulty, num_workers=num_workers) as runner,
        pytest.raises(RewardError, match=r"All 2 rows failed.*KeyError"),
    ):
        runner.score(rows_of("raise", "raise"))


def test_a_function_of_this_test_and_a_closure_travel_by_value() -> None:
    factor = 3

    def inner(number: int) -> int:
        return 0 if number == 0 else factor + inner(number - 1)  # finds itself through its own cell

    class Adder:
        def __init__(self, more: int) -> None:
            self.more = more

        @property
        def twice(self) -> int:
            return 2 * self.more

        def __call__(self, data_source: str, solution_str: str, ground_truth: int, extra_info: Any = None) -> float:
            return float(inner(ground_truth) + self.twice)

    for function in (Adder(4), functools.partial(Adder(4))):
        with RewardRunner(function, num_workers=1) as runner:
            assert [score.score for score in runner.score(rows_of(1, 2)).scores] == [11.0, 14.0]


def test_a_reward_file_runs_as_it_was_loaded(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "SCORE = 1.0\ndef compute_score(data_source, solution_str, ground_truth, extra_info):\n    return SCORE\n"
    )
    function = load_custom(path)
    path.write_text("SCORE = 2.0\n")
    with RewardRunner(function, num_workers=2) as runner:
        assert {score.score for score in runner.score(rows_of(*range(20))).scores} == {1.0}


def test_what_cannot_be_sent_is_said() -> None:
    lock = threading.Lock()

    def locked(**row: Any) -> float:
        with lock:
            return 1.0

    with pytest.raises(RewardLoadError, match=r"cannot be sent to worker processes.*num_workers=0"):
        RewardRunner(locked, num_workers=1).score(rows_of(1))
    with RewardRunner(faulty, num_workers=1) as runner:
        result = runner.score([*rows_of(1.0, 2.0), RewardRow("mine", "", lock), *rows_of(3.0)])
    assert [score.score for score in result.scores] == [1, 2, 0, 3]
    assert "cannot be sent" in result.failures[2].message


def test_entries_that_cannot_be_sent_become_text() -> None:
    def odd(ground_truth: Any, **row: Any) -> Any:
        return {"score": 1.0, "lock": threading.Lock() if ground_truth else 0}

    with RewardRunner(odd, num_workers=1) as runner:
        first, second = runner.score(rows_of(0, 1)).scores
    assert first.extra == {"lock": 0} and "lock" in second.extra["lock"]


async def slow(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> Any:
    if ground_truth == "block":
        time.sleep(10_000)
    if ground_truth == "wait":
        await asyncio.sleep(10_000)
    await asyncio.sleep(0.001 * (5 - extra_info["index"] % 5))
    return faulty(data_source, solution_str, ground_truth, extra_info)


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_async_functions(num_workers: int) -> None:
    truths: list[Any] = [float(index) for index in range(30)]
    truths[4], truths[9] = "wait", "raise"
    expected = list(truths)
    expected[4] = expected[9] = 0.0
    if num_workers:
        truths[20], truths[25] = "block", "die"  # of these only a worker recovers
        expected[20] = expected[25] = 0.0
    with RewardRunner(slow, num_workers=num_workers, wall_seconds=1.5, start_seconds=0.5) as runner:
        result = runner.score(rows_of(*truths))
    assert [score.score for score in result.scores] == expected
    kinds = {4: "timeout", 9: "exception"} | ({20: "timeout", 25: "exception"} if num_workers else {})
    assert {index: failure.kind for index, failure in result.failures.items()} == kinds


def test_async_calls_share_one_loop_and_its_limit() -> None:
    gate = asyncio.Semaphore(2)
    most: list[int] = []
    running: list[int] = []

    async def limited(**row: Any) -> float:
        async with gate:
            running.append(1)
            most.append(len(running))
            await asyncio.sleep(0.001)
            running.pop()
        return float(max(most))

    result = RewardRunner(limited, max_concurrency=16).score(rows_of(*range(40)))
    assert max(score.score for score in result.scores) == 2


class Lengths(RewardModel):
    def __init__(self) -> None:
        self.batches: list[int] = []

    def score(self, rows: Any) -> Any:
        self.batches.append(len(rows))
        if any(row.ground_truth == "raise" for row in rows):
            raise ValueError("a bad row")
        return [{"score": float(len(row.solution_str)), "pred": row.solution_str} for row in rows]


def test_a_model_gets_batches_and_a_bad_row_is_found() -> None:
    rows = rows_of(*range(10), "raise", *range(10))
    result = RewardRunner(model := Lengths(), max_concurrency=8, num_workers=4).score(rows)
    assert model.batches == [8, 8, *[1] * 8, 5]
    assert list(result.failures) == [10] and "a bad row" in result.failures[10].message
    assert result.scores[0] == Score(10.0, {"pred": "response 0"})
    assert score_all(model, rows[:3]) == result.scores[:3]
    assert score_all(model, []) == []
    with pytest.raises(RewardError, match=r"The reward model Lengths \(.*\) failed on row 0.*a bad row"):
        score_all(model, rows)


def test_a_model_returns_one_result_per_row() -> None:
    class Short(RewardModel):
        def score(self, rows: Any) -> Any:
            return [1.0]

    with pytest.raises(RewardError, match="1 results for 2 rows"):
        score_all(Short(), rows_of(1, 2))


@pytest.mark.parametrize(
    "options",
    [{"num_workers": -1}, {"cpu_seconds": 0}, {"wall_seconds": math.inf}, {"memory_mb": 0}, {"max_concurrency": 0}],
)
def test_limits_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be"):
        RewardRunner(faulty, **options)


@settings(deadline=None, max_examples=15)
@given(truths=st.lists(st.sampled_from([0.0, 1.0, 2.5, "raise", "unparsable", "nothing"]), max_size=40))
def test_any_mixture_gives_what_one_process_gives(truths: list[Any]) -> None:
    rows = [*rows_of(*truths), *rows_of(1.0)]
    here = RewardRunner(faulty).score(rows)
    there = shared_runner().score(rows)
    assert (here.scores, here.unparsable) == (there.scores, there.unparsable)
    assert {index: failure.kind for index, failure in here.failures.items()} == {
        index: failure.kind for index, failure in there.failures.items()
    }


@functools.cache
def shared_runner() -> RewardRunner:
    return RewardRunner(faulty, num_workers=2)


# --- scripts: no guard, nothing left behind

SCRIPT = """
import os, signal, sys, threading, time
from verl_algos.rewards import RewardRow, RewardRunner

MODE = sys.argv[1]

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if ground_truth == "hang":
        print(os.getpid(), flush=True)
        if MODE == "library":
            pow(7, 10**10)
        while True:
            pass
    return float(ground_truth)

runner = RewardRunner(compute_score, num_workers=2, cpu_seconds=1000, wall_seconds=1000)
print([s.score for s in runner.score([RewardRow("m", "", i) for i in range(5)]).scores], flush=True)
if MODE != "plain":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        runner.score([RewardRow("m", "", t) for t in ("hang", "1", "hang")])
    except KeyboardInterrupt:
        print([s.score for s in runner.score([RewardRow("m", "", 7)]).scores], flush=True)
"""


def test_a_script_needs_no_guard_and_exits(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-W", "error", "script.py", "plain"], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.stderr, done.returncode) == ("[0.0, 1.0, 2.0, 3.0, 4.0]\n", "", 0)


@pytest.mark.parametrize(
    ("mode", "end"), [("plain loop", signal.SIGINT), ("library", signal.SIGKILL), ("loop", signal.SIGKILL)]
)
def test_neither_an_interrupt_nor_the_death_of_the_parent_leaves_workers(
    tmp_path: Path, mode: str, end: signal.Signals
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, "script.py", mode], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[0.0, 1.0, 2.0, 3.0, 4.0]\n"
        workers = [int(process.stdout.readline()) for _ in range(2)]
        process.send_signal(end)
        if end == signal.SIGINT:
            assert process.stdout.readline() == "[7.0]\n"
        process.wait(60)
    until = time.monotonic() + 60
    while any(map(goes_on, workers)):
        assert time.monotonic() < until, f"{workers} are still there"
        time.sleep(0.02)
