"""Rewards that hang, interrupt, and start programs: what ends, when, and what is left."""

import asyncio
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import goes_on
from verl_algos.rewards import RewardError, RewardRow, RewardRunner, score_all

SLEEP = "import time; time.sleep(1000)"
#: Leaves a process that is nobody's child, in a session of its own.
DAEMON = f"""
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "a").write(f"{{os.getpid()}}\\n")
        {SLEEP}
    os._exit(0)
os.wait()
"""


def starts_programs(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    """Starts two programs that would outlive the worker, and then does what the response says."""
    own = subprocess.Popen([sys.executable, "-c", SLEEP], start_new_session=True)
    with Path(ground_truth).open("a") as pids:
        pids.write(f"{own.pid}\n")
    subprocess.run([sys.executable, "-c", DAEMON, ground_truth], check=True)
    while solution_str == "compute":
        pass
    if solution_str == "wait":
        time.sleep(1000)
    if solution_str == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    return 1.0


def started(pids: Path) -> list[int]:
    return [int(line) for line in pids.read_text().split()]


def are_gone(pids: list[int]) -> bool:
    """Whether they end, at once or soon: they are told to."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if not any(map(goes_on, pids)):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt what others leave")
@pytest.mark.parametrize(
    ("way", "limits"), [("compute", {"cpu_seconds": 1}), ("wait", {"wall_seconds": 5}), ("crash", {}), ("return", {})]
)
def test_what_a_reward_started_ends_with_its_worker(way: str, limits: dict[str, Any], tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    row = RewardRow("own", way, str(pids))
    with RewardRunner(starts_programs, num_workers=1, start_seconds=0, **limits) as runner:
        result = runner.score([row])
        assert (0 in result.failures) == (way != "return")
        if way == "return":
            assert all(map(goes_on, started(pids)))
    assert len(started(pids)) == 2
    assert are_gone(started(pids))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process adopt what others leave")
def test_what_a_reward_started_ends_when_the_runner_is_killed(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_reward_runner_ends import starts_programs\n"
        "from verl_algos.rewards import RewardRow, RewardRunner\n"
        f"RewardRunner(starts_programs, num_workers=1).score([RewardRow('own', 'wait', {str(pids)!r})])\n"
    )
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        while not pids.exists() or len(started(pids)) < 2:
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    assert are_gone(started(pids))


def hangs(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    while solution_str == "hang":
        time.sleep(1000)
    return 1.0


async def hangs_async(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    if solution_str == "hang":
        await asyncio.sleep(1000)
    return 1.0


@pytest.mark.parametrize(("function", "num_workers"), [(hangs, 1), (hangs, 3), (hangs_async, 0), (hangs_async, 2)])
def test_a_function_that_always_hangs_is_broken(
    function: Any, num_workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [RewardRow("own", "hang", None)] * 400  # in turn they would take the limit four hundred times
    with (
        caplog.at_level(logging.WARNING),
        RewardRunner(
            function, num_workers=num_workers, wall_seconds=0.3, start_seconds=0.0, max_concurrency=20
        ) as runner,
    ):
        with pytest.raises(RewardError, match="16 rows, chosen at random from 400, all reached a limit of time"):
            runner.score(rows)
        assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
            "A row of the reward function reached a limit of time"
        ]
        assert runner.score([RewardRow("own", "go on", None)]).scores[0].score == 1.0


@pytest.mark.parametrize("num_workers", [1, 3])
def test_rows_that_hang_together_are_no_broken_function(num_workers: int) -> None:
    rows = [RewardRow("own", "hang" if index < 6 else "go on", None) for index in range(200)]
    with RewardRunner(hangs, num_workers=num_workers, wall_seconds=0.5, start_seconds=0.0) as runner:
        result = runner.score(rows)
    assert set(result.failures) == set(range(6))
    assert {failure.kind for failure in result.failures.values()} == {"timeout"}


def test_a_process_with_many_open_files_has_workers_too(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2000:
        pytest.skip(f"this system allows {hard} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2000, hard))
    files = []
    try:
        files = [(tmp_path / "file").open("w") for _ in range(1100)]
        with RewardRunner(hangs, num_workers=1) as runner:
            assert runner.score([RewardRow("own", "go on", None)]).scores[0].score == 1.0
    finally:
        for file in files:
            file.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def closes_files(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    if ground_truth == "close":
        os.closerange(3, 256)  # also the pipe to the runner: the worker dies when it tells its results
    return 1.0


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_row_that_ends_its_worker_later_is_found(num_workers: int) -> None:
    rows = [RewardRow("own", "", "close" if index == 3 else "") for index in range(6)]
    with RewardRunner(closes_files, num_workers=num_workers) as runner:
        runner.score(rows[:3])  # from here on it expects rows that take no time
        assert set(runner.score(rows).failures) == {3}


@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not let a thread block the signals of its children")
def test_signals_that_the_caller_blocks_or_ignores_change_nothing() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        runner = RewardRunner(spins, num_workers=1, cpu_seconds=0.3, start_seconds=0.0)
        rows = [RewardRow("own", "spin", None), RewardRow("own", "", None)]
        assert [failure.kind for failure in runner.score(rows).failures.values()] == ["timeout"]
        runner.close()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    handler = signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system then keeps nobody's exit code
    try:
        with RewardRunner(spins, num_workers=1, cpu_seconds=0.3, start_seconds=0.0) as runner:
            assert [failure.kind for failure in runner.score(rows).failures.values()] == ["timeout"]
    finally:
        signal.signal(signal.SIGCHLD, handler)


def spins(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    while solution_str == "spin":
        pass
    if solution_str == "stop":
        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(1000)
    return 1.0


def test_a_row_that_stops_its_supervisor_reaches_its_limit() -> None:
    with RewardRunner(spins, num_workers=1, wall_seconds=1.0, start_seconds=0.0) as runner:
        result = runner.score([RewardRow("own", "stop", None), RewardRow("own", "", None)])
    assert {index: failure.kind for index, failure in result.failures.items()} == {0: "timeout"}


def test_a_runner_of_a_process_that_had_its_lock_can_be_closed_in_a_fork() -> None:
    program = (
        "import os, threading, time\n"
        "from verl_algos.rewards import RewardRow, RewardRunner\n"
        "begun = threading.Event()\n"
        "def slow(**row):\n"
        "    begun.set()\n"
        "    time.sleep(1)\n"
        "    return 1.0\n"
        "runner = RewardRunner(slow)\n"
        "thread = threading.Thread(target=runner.score, args=([RewardRow('own', '', None)],))\n"
        "thread.start()\n"
        "begun.wait()\n"
        "if (child := os.fork()) == 0:\n"
        "    runner.close()\n"
        "    os._exit(7)\n"
        "thread.join()\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "7\n"


def interrupts(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    if ground_truth is not None:
        raise ground_truth
    return 1.0


async def interrupts_async(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    await asyncio.sleep(0)
    return interrupts(data_source, solution_str, ground_truth, extra_info)


@pytest.mark.parametrize("function", [interrupts, interrupts_async])
def test_an_interrupt_of_the_functions_own_is_counted(function: Any) -> None:
    errors = [KeyboardInterrupt("stop"), GeneratorExit("stop"), SystemExit(1), None, BaseException("stop")]
    with RewardRunner(function, num_workers=1) as runner:
        result = runner.score([RewardRow("own", "", error) for error in errors])
    assert [index in result.failures for index in range(5)] == [True, True, True, False, True]
    assert result.workers_replaced == 0
    for index, failure in result.failures.items():
        assert f"failed on row {index} " in failure.message
        assert type(errors[index]).__name__ in failure.message


def test_a_generator_that_is_closed_is_counted_in_this_process_too() -> None:
    rows = [RewardRow("own", "", None), RewardRow("own", "", GeneratorExit("stop"))]
    for function in (interrupts, interrupts_async):
        assert set(RewardRunner(function).score(rows).failures) == {1}


def reuses(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, memory: Any = {}) -> Any:  # noqa: B006
    """Returns the same object every time."""
    memory |= {"score": float(ground_truth), "text": f"row {ground_truth}"}
    return memory


class Name(str):
    __slots__ = ()


def changes_what_it_gets(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    ground_truth.append(1)
    extra_info["seen"].append(1)
    return float(len(ground_truth) + len(extra_info["seen"]))


class Unreadable(dict[str, Any]):
    def items(self) -> Any:
        raise KeyError("items")


def one_unreadable(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> Any:
    return {0: Unreadable(score=1.0), 1: float("nan")}.get(ground_truth, 1.0)


def odd_names(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> dict[Any, Any]:
    return {"score": 1.0, 7: 0.5, Name("own"): 1.0, None: 2.0, np.str_("more"): 3.0}


def several_predictions(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> Any:
    return {"score": 1.0, "pred": np.array([1.0, 2.0]), "no_answer": np.array([True, True])}


@pytest.mark.parametrize("num_workers", [0, 1])
def test_results_are_taken_as_they_were_returned(num_workers: int) -> None:
    rows = [RewardRow("own", "", index) for index in range(3)]
    with RewardRunner(reuses, num_workers=num_workers) as runner:
        assert [score.extra for score in runner.score(rows).scores] == [{"text": f"row {index}"} for index in range(3)]
    with RewardRunner(odd_names, num_workers=num_workers) as runner:
        extra = runner.score(rows).scores[0].extra
    assert extra == {"7": 0.5, "own": 1.0, "None": 2.0, "more": 3.0}
    assert {type(name) for name in extra} == {str}
    with RewardRunner(several_predictions, num_workers=num_workers) as runner:
        assert runner.score(rows).unparsable == ()


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_rows_share_nothing_that_a_function_may_change(num_workers: int) -> None:
    truth, extra = [1], {"seen": [1, 2]}
    with RewardRunner(changes_what_it_gets, num_workers=num_workers) as runner:
        result = runner.score([RewardRow("own", "", truth, extra)] * 20)
    assert {score.score for score in result.scores} == {5.0}
    assert (truth, extra) == ([1], {"seen": [1, 2]})


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_result_that_cannot_be_read_is_one_failed_row(num_workers: int) -> None:
    with RewardRunner(one_unreadable, num_workers=num_workers) as runner:
        result = runner.score([RewardRow("own", "", index) for index in range(4)])
    assert set(result.failures) == {0, 1}
    assert "KeyError" in result.failures[0].message
    assert "it returned 'nan' (float), not a finite reward" in result.failures[1].message
    assert "RewardError" not in result.failures[1].message


def test_an_enumeration_of_a_script_travels(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import enum\n"
        "from verl_algos.rewards import RewardRow, RewardRunner\n"
        "class Grade(str, enum.Enum):\n"
        "    GOOD = 'good'\n"
        "    BAD = 'bad'\n"
        "    def points(self):\n"
        "        return float(self is Grade.GOOD)\n"
        "def compute_score(solution_str, **row):\n"
        "    return Grade(solution_str).points()\n"
        "with RewardRunner(compute_score, num_workers=1) as runner:\n"
        "    print([s.score for s in runner.score([RewardRow('own', t, None) for t in ('good', 'bad')]).scores])\n"
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("[1.0, 0.0]\n", "")


def test_options_with_the_names_of_what_a_row_gives_are_refused() -> None:
    with pytest.raises(ValueError, match="options of the reward function hangs have solution_str"):
        RewardRunner(hangs, {"solution_str": "x"})
    with pytest.raises(ValueError, match="options of the reward function hangs have extra_info"):
        score_all(hangs, [RewardRow("own", "", None)], {"extra_info": None})
