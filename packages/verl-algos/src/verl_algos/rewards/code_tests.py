"""Code: the response's program is run on test cases in a sandbox, and paid for those that it passes.

Ground truth as in the published data sets (APPS, TACO, CodeContests, Codeforces): a mapping or its JSON with "inputs"
and "outputs"; texts for stdin and stdout, or with "fn_name" the arguments and the result of each call.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from verl_algos.rewards import sandbox as sandboxes

_FENCE = re.compile(r"^[ \t]{0,8}```[ \t]{0,8}([A-Za-z0-9+#-]{0,20})[^\n]{0,80}$", re.MULTILINE)
_LANGUAGES = ("", "python", "python3", "py")

#: Tests that a fraction is taken over.
MAX_TESTS = 10


class Tests(NamedTuple):
    """The test cases of one row."""

    cases: list[dict[str, Any]]
    """As `sandbox.run` takes them."""
    outputs: list[Any]
    fn_name: str | None


def extract_code(solution_str: str) -> str | None:
    """The last closed or unfinished Python block; the whole response if it has no block and is Python; None otherwise.

    Blocks of other languages are passed over.
    """
    fences = list(_FENCE.finditer(solution_str))
    last = None
    for index in range(0, len(fences), 2):  # opening and closing ones take turns
        if fences[index][1].lower() in _LANGUAGES:
            end = fences[index + 1].start() if index + 1 < len(fences) else len(solution_str)
            last = solution_str[fences[index].end() : end].strip("\n")
    if last is None and not fences and _is_python(solution_str):
        return solution_str
    return last or None


def compute_score(
    solution_str: str,
    ground_truth: Any,
    continuous: bool = True,
    max_tests: int = MAX_TESTS,
    cpu_seconds: float = 6.0,
    wall_seconds: float = 12.0,
    memory_mb: int = 1024,
    sandbox: sandboxes.Isolation = "auto",
) -> dict[str, Any]:
    """Score the fraction of passed tests, or 1 for all of them.

    Args:
        solution_str: the response.
        ground_truth: see the module.
        continuous: pay the fraction over the first `max_tests` tests; otherwise 1 if every test passes and 0 if not.
        max_tests: see `continuous`.
        cpu_seconds: computing time of each test.
        wall_seconds: time on the clock of each test.
        memory_mb: of each test.
        sandbox: see `verl_algos.rewards.sandbox`; "none" gives up isolation.

    Returns:
        ``score``; ``acc``, 1 if all of the tests that ran pass; ``tests_timeout`` and ``tests_error``, the fractions
        of tests that ran out of time, memory or output, or raised; ``no_answer``, 1 if there is no code.

    Raises:
        SandboxError: the system cannot isolate code.
        ValueError: the ground truth holds no tests, or tests of which nothing is expected.
    """
    tests = parse_tests(ground_truth)
    code = extract_code(solution_str)
    if code is None:
        return {"score": 0.0, "acc": 0.0, "tests_timeout": 0.0, "tests_error": 0.0, "no_answer": 1.0}
    if max_tests < 1:
        raise ValueError(f"max_tests={max_tests} must be at least 1: the reward is the share of tests that pass.")
    count = min(len(tests.cases), max_tests) if continuous else len(tests.cases)
    limits = sandboxes.Limits(cpu_seconds, wall_seconds, memory_mb)
    results = sandboxes.run(code, tests.cases[:count], fn_name=tests.fn_name, limits=limits, sandbox=sandbox)
    passed = sum(map(_passes, results, tests.outputs))
    right = float(passed == count)
    return {
        "score": passed / count if continuous else right,
        "acc": right,
        "tests_timeout": sum(result.status in ("timeout", "memory", "output") for result in results) / count,
        "tests_error": sum(result.status == "error" for result in results) / count,
        "no_answer": 0.0,
    }


def parse_tests(ground_truth: Any) -> Tests:
    """The test cases that a ground truth holds.

    Raises:
        ValueError: it holds none, not as many inputs as outputs, or no output that is expected.
    """
    if isinstance(ground_truth, str):
        try:
            ground_truth = json.loads(ground_truth)
        except ValueError as error:
            raise ValueError(f"The tests of a code row are not JSON: {error}.") from error
    if not isinstance(ground_truth, Mapping) or not {"inputs", "outputs"} <= set(ground_truth):
        raise ValueError(
            f"The ground truth of a code row must be a mapping with 'inputs' and 'outputs', got {ground_truth!r:.200}."
        )
    inputs, outputs = _listed("inputs", ground_truth["inputs"]), _listed("outputs", ground_truth["outputs"])
    if not inputs or len(inputs) != len(outputs):
        raise ValueError(
            f"A code row has {len(inputs)} inputs and {len(outputs)} outputs: it needs as many of both, and at least 1."
        )
    fn_name = ground_truth.get("fn_name")
    if fn_name:
        cases: list[dict[str, Any]] = [{"args": _arguments(given)} for given in inputs]
        return Tests(cases, [_json(output) for output in outputs], str(fn_name))
    cases = [{"stdin": _text(given)} for given in inputs]
    expected = [_text(output) for output in outputs]
    if not any(map(str.strip, expected)):
        raise ValueError(
            f"None of the {len(outputs)} tests of a code row expects any output, so a program that does nothing would "
            "pass them all. Leave the row out, or give it the outputs."
        )
    return Tests(cases, expected, None)


def _listed(name: str, given: Any) -> list[Any]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ValueError(
            f"The {name} of a code row must be a list with an entry for each test, got {given!r:.200} "
            f"({type(given).__name__})."
        )
    return list(given)


def _arguments(given: Any) -> list[Any]:
    if isinstance(given, str):  # one JSON value per line
        return [_json(line) for line in given.splitlines()]
    return _listed("arguments", given)


def _json(given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except ValueError:
        return given


def _text(given: Any) -> str:
    return given if isinstance(given, str) else "\n".join(str(line) for line in _listed("inputs and outputs", given))


def _passes(result: sandboxes.CaseResult, expected: Any) -> bool:
    if result.status != "ok":
        return False
    if result.value is None:
        return same_output(result.stdout, expected)
    try:
        value = json.loads(result.value)
    except (ValueError, RecursionError):  # of thousands of digits, or nested thousands deep
        return False
    expected = json.loads(json.dumps(expected))
    # APPS puts the result of a call into a list of one.
    return _same(value, expected) or (isinstance(expected, list) and len(expected) == 1 and _same(value, expected[0]))


def same_output(output: str, expected: str) -> bool:
    """Whether two outputs are the same lines, white space at their ends apart; decimals to a relative 1e-5."""
    left, right = ([line.split() for line in text.strip().splitlines()] for text in (output, expected))
    return len(left) == len(right) and all(
        len(ours) == len(theirs) and all(map(_same_token, ours, theirs))
        for ours, theirs in zip(left, right, strict=True)
    )


def _same_token(ours: str, theirs: str) -> bool:
    if ours == theirs:
        return True
    if len(ours) > 400 or not any(mark in theirs for mark in ".eE"):
        return False
    try:
        return math.isclose(float(ours), float(theirs), rel_tol=1e-5, abs_tol=1e-8)
    except ValueError:
        return False


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float) or isinstance(theirs, float):
        if not (isinstance(ours, int | float) and isinstance(theirs, int | float)):
            return False
        try:
            return math.isclose(ours, theirs, rel_tol=1e-5, abs_tol=1e-8)
        except OverflowError:  # an integer beyond every float
            return False
    if isinstance(ours, list) and isinstance(theirs, list):
        return _same_all(ours, theirs)
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(_same(ours[key], theirs[key]) for key in ours)
    return bool(ours == theirs)


def _same_all(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    return len(ours) == len(theirs) and all(map(_same, ours, theirs))


def _is_python(text: str) -> bool:
    try:
        compile(text, "response", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError):
        return False
    return True
