"""Calling reward functions, loading them, placing rewards: bug bank B18, B20; faults of users' functions."""

import asyncio
import json
import math
import os
import pickle
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from verl_algos.rewards import (
    RewardError,
    RewardLoadError,
    RewardRow,
    Score,
    check_signature,
    default_compute_score,
    load_custom,
    place_rewards,
    score_all,
)

LINES = Path(__file__).read_text().splitlines()
ROW = "data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None"
ROWS = [RewardRow("mine", text, "truth", {"index": i}) for i, text in enumerate(["a", "", "ccc"])]


def length(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None, factor: float = 1.0
) -> float:
    assert data_source == "mine" and ground_truth == "truth" and "index" in extra_info
    return factor * len(solution_str)


async def async_length(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> Any:
    await asyncio.sleep(0.001 * (3 - len(solution_str)))  # the later rows finish first
    return {"score": len(solution_str), "text": solution_str}


def test_plain_function_with_options() -> None:
    assert score_all(length, ROWS) == [Score(1, {"acc": 1}), Score(0, {"acc": 0}), Score(3, {"acc": 3})]
    assert [s.score for s in score_all(length, ROWS, {"factor": 0.5})] == [0.5, 0, 1.5]
    assert score_all(length, []) == []


def test_async_function_keeps_the_order() -> None:
    expected = [Score(1, {"text": "a"}), Score(0, {"text": ""}), Score(3, {"text": "ccc"})]
    assert score_all(async_length, ROWS) == expected
    assert score_all(async_length, ROWS, max_concurrency=1) == expected


def test_async_function_inside_a_running_event_loop() -> None:
    async def notebook() -> list[Score]:
        return score_all(async_length, ROWS)

    assert [s.score for s in asyncio.run(notebook())] == [1, 0, 3]


def test_concurrency_is_bounded() -> None:
    running, most = 0, 0

    async def busy(**row: Any) -> float:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return 1.0

    assert len(score_all(busy, ROWS * 7, max_concurrency=4)) == 21
    assert most == 4
    with pytest.raises(ValueError, match="max_concurrency=0"):
        score_all(busy, ROWS, max_concurrency=0)


@pytest.mark.parametrize(
    "value", [True, 1, np.float32(1), np.int64(1), np.bool_(True), torch.tensor(1.0), np.array([1.0])]
)
def test_numbers_of_other_libraries(value: Any) -> None:
    assert score_all(lambda **row: value, ROWS[:1])[0].score == 1.0
    result = score_all(lambda **row: {"score": value}, ROWS[:1])[0].score
    assert result == 1.0 and type(result) is float


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, r"returned 'None' \(NoneType\)"),
        ("1.0", r"returned '1.0' \(str\)"),
        (math.nan, "returned 'nan'"),
        (math.inf, "returned 'inf'"),
        ({"acc": 1}, r"a mapping without 'score' \(it has 'acc'\)"),
        (10**400, "not a finite reward"),
        pytest.param(10**5000, "a number of thousands of digits .* not a finite reward", id="digits"),
        (Fraction(10**400), "not a finite reward"),
        (-3.5e38, "returned '-3.5e\\+38' .* not a finite reward"),
        ({"score": 1, "acc": None}, r"returned 'acc' 'None' \(NoneType\), which must be a bool or a finite number"),
        ({"score": 1, "acc": "yes"}, "'acc' 'yes'"),
        ({"score": 1, "acc": math.nan}, "'acc' 'nan'"),
        ({"score": 1, "acc": np.array([1.0, 2.0])}, "'acc'"),
        ({"score": None}, "returned 'None'"),
        ([1.0], "returned"),
        (np.array([1.0, 2.0]), "returned"),
        (torch.tensor([1.0, 2.0]), "returned"),
    ],
)
def test_what_is_not_a_reward(value: Any, said: str) -> None:
    with pytest.raises(RewardError, match=said) as error:
        score_all(lambda **row: value, ROWS)
    assert (error.value.row, error.value.data_source) == (0, "mine")


def test_other_entries_become_plain_numbers() -> None:
    given = {"a": np.float32(0.5), "b": np.int64(2), "c": np.bool_(True), "d": torch.tensor(3), "acc": np.bool_(False)}
    result = {**given, "list": [1], "text": "x", "score": np.float64(1)}
    (score,) = score_all(lambda **row: result, ROWS[:1])
    assert score.extra == {"a": 0.5, "b": 2, "c": True, "d": 3, "acc": False, "list": [1], "text": "x"}
    assert [type(score.extra[name]) for name in "abcd"] == [float, int, bool, int]
    assert type(score.extra["acc"]) is bool
    json.dumps(score.extra)


def failing(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    return 1 / len(solution_str)


async def async_failing(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    return 1 / len(solution_str)


def mixed(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> Any:
    return failing(data_source, solution_str, ground_truth) if not solution_str else async_failing("", "a", "")


@pytest.mark.parametrize("function", [failing, async_failing, mixed])
def test_an_exception_becomes_one_clear_error(function: Any) -> None:
    with pytest.raises(RewardError) as error:
        score_all(function, ROWS)
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    where = "async_failing" if function is async_failing else "failing"
    line = LINES.index(f"{'async ' if function is async_failing else ''}def {where}({ROW}) -> float:") + 2
    assert str(error.value) == (
        f"The reward function {function.__name__} ({__file__}:{function.__code__.co_firstlineno}) failed on row 1 "
        f"(data_source 'mine'): it raised ZeroDivisionError: division by zero, at {__file__}:{line} in {where}: "
        "`return 1 / len(solution_str)`. Repair the function or the row; nothing was scored."
    )
    copy = pickle.loads(pickle.dumps(error.value))
    assert (str(copy), copy.row, copy.data_source) == (str(error.value), 1, "mine")


def two(solution_str: str, ground_truth: str) -> float:
    return 0.0


def test_wrong_signature_names_the_function_and_row() -> None:
    with pytest.raises(RewardError, match=r"two \(.*\.py:\d+\) failed on row 0 .* TypeError: .*data_source"):
        score_all(two, ROWS)


def test_a_signature_is_checked_before_anything_is_scored() -> None:
    line = two.__code__.co_firstlineno
    with pytest.raises(RewardLoadError) as error:
        check_signature(two)
    message = str(error.value)
    assert f"two ({__file__}:{line}) takes (solution_str: str, ground_truth: str) -> float, but it is" in message
    assert "two(data_source=..., solution_str=..., ground_truth=..., extra_info=...): got an unexpected" in message
    with pytest.raises(RewardLoadError, match=r"extra_info=\.\.\., factr=\.\.\.\).*factr.* or correct reward_kwargs\."):
        check_signature(length, {"factr": 2})
    for function in (length, async_length, lambda **row: 1.0, default_compute_score, Callable()):
        check_signature(function, {"factor": 0.5} if function is length else {})
    check_signature(max)  # tells no signature


class Callable:
    def __call__(self, data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
        return 1 / 0


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_other_callables_and_what_cannot_be_written() -> None:
    with pytest.raises(
        RewardError, match=r"function Callable \(.*\.py:\d+\) failed on row 0 .* in __call__: `return 1 / 0`"
    ):
        score_all(Callable(), ROWS)

    def unspeakable(**row: Any) -> float:
        raise UnspeakableError

    with pytest.raises(
        RewardError, match=r"raised UnspeakableError: a message that cannot be written, at .* `raise Unspe"
    ):
        score_all(unspeakable, ROWS)


def test_the_users_line_is_named_and_not_the_librarys(tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text(
        "import json\n\ndef parse(text):\n    return json.loads(text)['n']\n\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return parse(solution_str)\n"
    )
    with pytest.raises(RewardError) as error:
        score_all(load_custom(tmp_path / "reward.py"), ROWS)
    message = str(error.value)
    assert (
        f"compute_score ({tmp_path}/reward.py:6) failed on row 0 (data_source 'mine'): it raised JSONDecode" in message
    )
    assert f"at {tmp_path}/reward.py:4 in parse: `return json.loads(text)['n']`." in message


def test_a_function_that_prints_is_no_fault(capsys: pytest.CaptureFixture[str]) -> None:
    def chatty(**row: Any) -> float:
        print("scoring", row["solution_str"])
        return 1.0

    assert [score.score for score in score_all(chatty, ROWS)] == [1, 1, 1]
    assert capsys.readouterr().out.count("scoring") == 3


class Outside(BaseException):
    """Neither an Exception nor an interrupt."""


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError("3"), Outside("3"), StopIteration("3")])
def test_whatever_a_function_raises_names_it(error: BaseException) -> None:
    def plain(**row: Any) -> float:
        raise error

    async def later(**row: Any) -> float:
        await asyncio.sleep(0)
        raise error

    async def child(**row: Any) -> float:
        return await asyncio.create_task(later())

    functions: list[Any] = [plain]
    if not isinstance(error, StopIteration):  # a coroutine cannot raise it
        functions += [later, child]
    for function in functions:
        with pytest.raises(
            RewardError, match=rf"{function.__name__} \(.*\) failed on row 0 .* raised {type(error).__name__}"
        ):
            score_all(function, ROWS)
    assert score_all(async_length, ROWS)[2].score == 3  # scoring goes on


def test_a_function_that_cancels_itself_is_named() -> None:
    async def cancelling(**row: Any) -> float:
        for task in asyncio.all_tasks():
            task.cancel()
        await asyncio.sleep(0)
        return 1.0

    with pytest.raises(RewardError, match=r"cancelling \(.*\) failed on row .* raised CancelledError"):
        score_all(cancelling, ROWS)


def test_interrupt_is_not_swallowed() -> None:
    def interrupted(**row: Any) -> float:
        raise KeyboardInterrupt

    async def later(**row: Any) -> float:
        raise KeyboardInterrupt

    for function in (interrupted, later):
        with pytest.raises(KeyboardInterrupt):
            score_all(function, ROWS)
    assert score_all(async_length, ROWS)[2].score == 3


def test_an_error_ends_the_calls_in_flight() -> None:
    ended = []

    async def slow(solution_str: str, **row: Any) -> float:
        if not solution_str:
            raise ValueError
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(solution_str)
        return 1.0

    with pytest.raises(RewardError, match="row 1"):
        score_all(slow, ROWS)
    assert ended == ["a", "ccc"]


def test_what_a_module_keeps_between_calls_stays_on_one_loop() -> None:
    gate, lock, used = asyncio.Semaphore(1), asyncio.Lock(), set()

    async def limited(**row: Any) -> float:
        async with gate, lock:
            used.add(asyncio.get_running_loop())
            await asyncio.sleep(0)
            return 1.0

    async def notebook() -> list[Score]:
        return score_all(limited, ROWS)

    assert len(score_all(limited, ROWS) + score_all(limited, ROWS) + asyncio.run(notebook())) == 9
    assert len(used) == 1


def test_scoring_inside_an_async_function_is_refused() -> None:
    async def nested(**row: Any) -> float:
        return score_all(async_length, ROWS)[0].score

    with pytest.raises(RewardError, match=r"raised RuntimeError: .*await the other function"):
        score_all(nested, ROWS)


PROGRAM = """
import asyncio, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
from verl_algos.rewards import RewardRow, score_all

rows = [RewardRow("mine", "", "")] * 3
background = []

async def compute_score(**row):
    background.append(asyncio.create_task(asyncio.sleep(600)))  # left over at exit
    return 1.0

async def interrupted(**row):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(600)
    finally:
        background.append(None)

score_all(compute_score, rows)
if (child := os.fork()) == 0:
    os._exit(len(score_all(compute_score, rows)))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
try:
    score_all(interrupted, rows, max_concurrency=1)
except KeyboardInterrupt:
    assert background.count(None) == 1
    print(len(score_all(compute_score, rows)))
"""


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="os.fork warns in a process with threads")
def test_exit_fork_and_ctrl_c_leave_nothing_behind() -> None:
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == ("3\n", "", 0)


# --- loading


def test_load_from_file_and_again_after_an_edit(tmp_path: Path) -> None:
    file = tmp_path / "my reward.py"
    file.write_text("def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 0.25\n")
    assert score_all(load_custom(file), ROWS)[0].score == 0.25
    file.write_text("async def other(**row):\n    return {'score': 0.75}\n")
    assert score_all(load_custom(str(file), "other"), ROWS)[0].score == 0.75


def test_load_from_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "verl_algos_test_rewards").mkdir()
    (tmp_path / "verl_algos_test_rewards" / "__init__.py").write_text("")
    (tmp_path / "verl_algos_test_rewards" / "rules.py").write_text("def compute_score(**row):\n    return 0.5\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    function = load_custom("pkg://verl_algos_test_rewards.rules")
    assert score_all(function, ROWS)[0].score == 0.5
    for name in ("verl_algos_test_rewards.rules", "verl_algos_test_rewards"):
        del sys.modules[name]


@pytest.mark.parametrize(
    ("name", "content", "function", "said"),
    [
        ("missing.py", None, "compute_score", "does not exist"),
        ("a.txt", "x = 1", "compute_score", r"must end with \.py"),
        ("a.py", "def score(): ...\n_hidden = print", "compute_score", "Callable names there: score. Set"),
        ("a.py", "", "compute_score", "Callable names there: none"),
        ("a.py", "compute_score = 3", "compute_score", "is a int, not a function"),
        ("a.py", "x = 1\ndef broken(:", "compute_score", r"raised SyntaxError .*a\.py:2: `def broken\(:`\. Repair"),
        ("a.py", "import no_such_module_anywhere", "compute_score", "raised ModuleNotFoundError"),
        ("a.py", "\n1 / 0", "compute_score", r"raised ZeroDivisionError .*a\.py:2 in <module>: `1 / 0`\. Repair"),
        ("a.py", "import sys\nsys.exit(2)", "compute_score", "raised SystemExit while it was loaded: 2"),
        ("a.py", "import asyncio\nraise asyncio.CancelledError", "compute_score", "raised CancelledError"),
    ],
)
def test_load_errors(tmp_path: Path, name: str, content: str | None, function: str, said: str) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_text(content)
    before = set(sys.modules)
    with pytest.raises(RewardLoadError, match=said) as error:
        load_custom(file, function)
    assert name in str(error.value)
    if "raised" in said:
        assert error.value.__cause__ is not None
        assert not {module for module in set(sys.modules) - before if module.startswith("verl_custom")}


def test_a_module_that_exits_and_an_interrupted_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "verl_algos_test_exit.py").write_text("raise SystemExit('no key')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(RewardLoadError, match="verl_algos_test_exit could not be imported: SystemExit: no key"):
        load_custom("pkg://verl_algos_test_exit")
    (tmp_path / "a.py").write_text("raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_custom(tmp_path / "a.py")


def test_load_errors_of_packages() -> None:
    with pytest.raises(RewardLoadError, match="no_such_package_anywhere could not be imported: ModuleNotFoundError"):
        load_custom("pkg://no_such_package_anywhere")
    with pytest.raises(RewardLoadError, match="'nothing' is not defined in pkg://math"):
        load_custom("pkg://math", "nothing")


# --- placement


def test_b18_empty_response_gets_no_reward_token() -> None:
    """Bug bank B18: the reward of an empty response lands nowhere, least of all on the last padded token."""
    mask = torch.tensor([[0, 0, 0, 0], [1, 1, 0, 0]], dtype=torch.bool)
    rewards, skipped = place_rewards(torch.tensor([1.0, 1.0]), mask)
    assert rewards.tolist() == [[0, 0, 0, 0], [0, 1, 0, 0]]
    assert skipped == 1


def test_packed_placement_on_the_last_sampled_token() -> None:
    mask = torch.tensor([0, 1, 1, 0, 0, 1, 0, 0], dtype=torch.bool)
    offsets = torch.tensor([0, 4, 4, 6, 8])
    rewards, skipped = place_rewards(torch.tensor([1.0, 2.0, math.nan, 4.0]), mask, offsets)
    assert rewards[:5].tolist() == [0, 0, 1, 0, 0] and rewards[6:].tolist() == [0, 0]
    assert math.isnan(float(rewards[5]))
    assert skipped == 2
    with pytest.raises(ValueError, match=r"reward has shape \(3,\) but there are 4 sequences"):
        place_rewards(torch.zeros(3), mask, offsets)


def test_placement_of_nothing() -> None:
    rewards, skipped = place_rewards(torch.zeros(2), torch.zeros(0, dtype=torch.bool), torch.tensor([0, 0, 0]))
    assert rewards.shape == (0,) and skipped == 2


def test_an_edit_of_the_same_second_and_length_takes_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "reward.py"
    for score in (1, 2):
        path.write_text(
            f"def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return {score}\n"
        )
        os.utime(path, (1, 1))
        assert load_custom(path)("a", "b", "c") == score
    assert [entry.name for entry in tmp_path.iterdir()] == ["reward.py"]
