"""The code rule and its sandbox, with programs that hang, eat memory, fork, write and look for the network."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from processes import goes_on
from verl_algos.rewards import code_tests, default_compute_score, sandbox

LIMITS = sandbox.Limits(cpu_seconds=1, wall_seconds=4, memory_mb=512, output_bytes=100_000)
WAYS: list[Any] = [
    pytest.param(way, marks=pytest.mark.skipif(not works, reason=f"this system has no {way}"))
    for way, works in (
        ("namespaces", sandbox.isolation() == "namespaces"),
        ("seccomp", sandbox.isolation() is not None),
        ("none", True),
    )
]
needs_isolation = pytest.mark.skipif(sandbox.isolation() is None, reason="this system cannot isolate code")


@pytest.mark.parametrize("way", WAYS)
def test_programs_and_functions(way: Any) -> None:
    code = "print(int(input()) * 2)"
    right, wrong = sandbox.run(code, [{"stdin": "4\n"}, {"stdin": "x"}], limits=LIMITS, sandbox=way)
    assert (right.status, right.stdout, right.value) == ("ok", "8\n", None)
    assert wrong.status == "error" and "ValueError" in wrong.stderr
    code = "class Solution:\n    def f(self, a, b):\n        return (a, b)"
    (result,) = sandbox.run(code, [{"args": [1, [2]]}], fn_name="f", limits=LIMITS, sandbox=way)
    assert (result.status, json.loads(result.value or "")) == ("ok", [1, [2]])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("while True: pass", "timeout"),
        ("import time; time.sleep(1000)", "timeout"),
        ("x = bytearray(10**10)", "memory"),
        ("print('x' * 10**7)", "output"),
        ("raise SystemExit(3)", "error"),
        ("raise SystemExit", "ok"),
        ("syntax error", "error"),
        ("import os\nif os.fork() == 0:\n    os.setsid()\n    os.closerange(0, 100)\n    while True: pass", "ok"),
    ],
)
def test_limits_hold_and_the_next_case_runs(way: Any, code: str, status: str) -> None:
    first = f"import sys\nif input() == 'first':\n    exec({code!r})\nelse:\n    print('fine')"
    results = sandbox.run(first, [{"stdin": "first"}, {"stdin": "second"}], limits=LIMITS, sandbox=way)
    assert [result.status for result in results] == [status, "ok"]
    assert results[1].stdout == "fine\n"


def descendants(pid: int) -> list[int]:
    """Of a process, also those in namespaces of their own; whoever was started last comes last."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for child in map(int, children.read_text().split()):
                found += [child, *descendants(child)]
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("moment", ["at once", "later"])
def test_nothing_goes_on_when_the_caller_is_killed(way: Any, moment: str) -> None:
    """The last one of the processes is the case, which sleeps; at once it has not yet said that it ends with others."""
    program = (
        "from verl_algos.rewards import sandbox\n"
        "code = 'import time; time.sleep(100)'\n"
        f"sandbox.run(code, [{{'stdin': ''}}], limits=sandbox.Limits(wall_seconds=100), sandbox={way!r})"
    )
    wanted = 3 if way == "namespaces" else 2
    with subprocess.Popen([sys.executable, "-c", program]) as caller:
        until = time.monotonic() + 60
        while len(pids := descendants(caller.pid)) < wanted:
            assert caller.poll() is None and time.monotonic() < until
        if moment == "later":
            time.sleep(0.5)
            pids = descendants(caller.pid)
        with contextlib.suppress(ProcessLookupError):  # a process that only tries what this system can
            os.kill(pids[-1], signal.SIGSTOP)
        caller.send_signal(signal.SIGKILL)
    until = time.monotonic() + 30
    while any(map(goes_on, pids[:-1])):
        assert time.monotonic() < until
        time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pids[-1], signal.SIGCONT)
    while goes_on(pids[-1]):
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.parametrize("way", WAYS[:2])
def test_there_is_no_network(way: Any) -> None:
    code = (
        "import socket\n"
        "for family, address in ((socket.AF_INET, '192.0.2.1'), (socket.AF_INET, '127.0.0.1')):\n"
        "    try:\n"
        "        with socket.socket(family) as out:\n"
        "            out.settimeout(0.5)\n"
        "            out.connect((address, 80))\n"
        "    except OSError as error:\n"
        "        print(type(error).__name__ != 'TimeoutError')\n"
    )
    (result,) = sandbox.run(code, [{"stdin": ""}], limits=LIMITS, sandbox=way)
    assert result.stdout == "True\nTrue\n"


@pytest.mark.parametrize("way", WAYS[:2])
def test_other_processes_are_out_of_reach(way: Any) -> None:
    code = f"import os\ntry:\n    os.kill({os.getpid()}, 0)\nexcept OSError:\n    print('out of reach')"
    (result,) = sandbox.run(code, [{"stdin": ""}], limits=LIMITS, sandbox=way)
    assert result.stdout == "out of reach\n"


@pytest.mark.parametrize("way", WAYS[:1])
def test_files_are_read_only_in_namespaces(way: Any, tmp_path: Path) -> None:
    place = Path(__file__).with_name("written_by_the_sandbox")
    code = f"open('mine', 'w').write('x'); print('kept')\nopen({str(place)!r}, 'w')"
    (result,) = sandbox.run(code, [{"stdin": ""}], limits=LIMITS, sandbox=way)
    # a folder of the system's own temporary files is not even seen
    refused = "Read-only" in result.stderr or "No such file" in result.stderr
    assert result.stdout == "kept\n" and refused and not place.exists()


def test_a_system_without_isolation_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "_found", lambda: (None, "namespaces: not permitted; seccomp: not there"))
    truth = {"inputs": [""], "outputs": ["1"]}
    with pytest.raises(sandbox.SandboxError, match=r"cannot isolate.*not permitted.*sandbox=.none."):
        code_tests.compute_score("```python\nprint(1)\n```", truth)
    assert code_tests.compute_score("```python\nprint(1)\n```", truth, sandbox="none")["score"] == 1
    with pytest.raises(ValueError, match="neither auto"):
        sandbox.run("", [], sandbox="jail")  # type: ignore[arg-type]


@needs_isolation
def test_fractions_and_all_or_nothing() -> None:
    truth = json.dumps({"inputs": [f"{n}\n" for n in range(12)], "outputs": [f"{n * n}\n" for n in range(12)]})
    better = "n = int(input())\nprint(n * n if n < 8 else 0)"
    response = f"First:\n```python\nprint(0)\n```\nBetter:\n```python\n{better}\n```\nDone."
    result = dict(default_compute_score("taco", response, truth))  # type: ignore[arg-type]
    assert result == {"score": 0.8, "acc": 0.0, "tests_timeout": 0.0, "tests_error": 0.0, "no_answer": 0.0}
    assert code_tests.compute_score(response, truth, max_tests=8)["acc"] == 1
    assert code_tests.compute_score(response, truth, continuous=False)["score"] == 0
    assert code_tests.compute_score("I cannot do it", truth)["no_answer"] == 1


@needs_isolation
@pytest.mark.parametrize("inputs", [[[1, [2, 3]], [0, []]], ["1\n[2, 3]", "0\n[]"]])
@pytest.mark.parametrize("outputs", [[[6], [0]], [6, 0], ["6", "0"]])
def test_functions_of_the_published_data(inputs: Any, outputs: Any) -> None:
    truth = {"fn_name": "total", "inputs": inputs, "outputs": outputs}
    response = "```python\ndef total(a, b):\n    print('noise')\n    return a + sum(b)\n```"
    assert code_tests.compute_score(response, truth)["score"] == 1
    assert code_tests.compute_score(response.replace("return a", "return 1 + a"), truth)["score"] == 0


@needs_isolation
def test_the_expected_outputs_are_not_in_reach_of_the_code() -> None:
    code = "```python\nimport gc\nprint([x for x in gc.get_objects() if isinstance(x, dict) and 'outputs' in x])\n```"
    assert code_tests.compute_score(code, {"inputs": [""], "outputs": ["secret"]})["score"] == 0


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ("```python\na = 1\n```", "a = 1"),
        ("```py\na\n```\n```python\nb\n```", "b"),
        ("```python\na\n```\n```\nb\n```\n```bash\nls\n```", "b"),
        ("```python\na = 1", "a = 1"),
        ("a = 1", "a = 1"),
        ("I would sort it.", None),
        ("```cpp\nint x;\n```", None),
        ("```python\n```", None),
    ],
)
def test_extract_code(response: str, code: str | None) -> None:
    assert code_tests.extract_code(response) == code


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [
        ("1 2 \n3\n", "1 2\n3", True),
        ("1 2 3", "1 2\n3", False),
        ("0.3333333", "0.33333334", True),
        ("1", "1.0", True),
        ("12345678901", "12345678902", False),
        ("nan", "1.0", False),
        ("yes", "YES", False),
    ],
)
def test_same_output(output: str, expected: str, same: bool) -> None:
    assert code_tests.same_output(output, expected) is same


@pytest.mark.parametrize(
    ("truth", "said"),
    [
        ("{", "not JSON"),
        ({"inputs": []}, "'inputs' and 'outputs'"),
        ({"inputs": [], "outputs": []}, "at least 1"),
        ({"inputs": ["a"], "outputs": []}, "1 inputs and 0 outputs"),
    ],
)
def test_rows_without_tests(truth: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        code_tests.compute_score("a = 1", truth)


def test_limits_are_positive() -> None:
    with pytest.raises(ValueError, match="memory_mb=0 must be more than 0"):
        sandbox.Limits(memory_mb=0)
