"""The parts of `algos.py` that measure the reward runner."""

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import psutil
from verl_algos.rewards import RewardRow, RewardRunner, default_compute_score

LEAST_SPEED = 0.7
GSM8K_ANSWERS = 8192
STEP = "Each of the {0} boxes holds {1} apples, so there are {0} * {1} = <<{0}*{1}={2}>>{2} apples in all of them. "

MOST_LIMITS = 3.0
MATH_ANSWERS, HANGING = 512, frozenset(range(50, 512, 100))
#: On two cores five answers that hang take 2.5 limits of CPU by themselves; half a limit is left for the other 507.
LIMIT_SECONDS = 30.0
#: All that hang at once, and one that goes on.
MATH_WORKERS = len(HANGING) + 1


def gsm8k(rounds: int, workers: int = 1) -> dict[str, Any]:
    """Score GSM8K answers in warm workers, and in a bare loop over the same function in turn with it.

    The speed per core is the answers per second of one call of `RewardRunner.score`, the transport to the workers and
    back included, over `workers` times those of the loop. The driver, which feeds the workers, needs a core beside
    theirs, and keeps up with two or three workers where answers cost as little as these. While the loop is timed, the
    same loop runs on as many other cores as the runner keeps busy: cores share their clock and caches, so that each is
    slower when others work, and a loop alone would be compared with cores that are not.
    """
    rows = gsm8k_rows()
    seconds: dict[str, list[float]] = {"bare": [], "runner": []}
    cpu = dict.fromkeys(("bare", "driver", "workers"), 0.0)
    with RewardRunner(default_compute_score, num_workers=workers) as runner, others_at_work(workers) as others:
        runner.score(rows)
        processes = [child for child in psutil.Process().children(recursive=True) if child not in others]
        for _ in range(rounds):
            for other in others:
                other.resume()
            begun, begun_cpu = time.perf_counter(), time.process_time()
            bare = bare_loop(rows)
            seconds["bare"].append(time.perf_counter() - begun)
            cpu["bare"] += time.process_time() - begun_cpu
            for other in others:
                other.suspend()
            begun, begun_cpu, begun_workers = time.perf_counter(), time.process_time(), cpu_seconds(processes)
            scored = runner.score(rows)
            seconds["runner"].append(time.perf_counter() - begun)
            cpu["driver"] += time.process_time() - begun_cpu
            cpu["workers"] += cpu_seconds(processes) - begun_workers
            if [score.score for score in scored.scores] != [result["score"] for result in bare]:
                raise AssertionError("the runner gives other scores than the function")
    speed = statistics.median(
        bare_seconds / (workers * runner_seconds)
        for bare_seconds, runner_seconds in zip(seconds["bare"], seconds["runner"], strict=True)
    )
    return {
        "compared": "answers/s of RewardRunner.score over workers x answers/s of a bare loop on each of as many cores",
        "answers": len(rows),
        "workers": workers,
        "speed_per_core": round(speed, 3),
        "us_per_answer": {name: round(statistics.median(own) / len(rows) * 1e6, 2) for name, own in seconds.items()},
        "cpu_us_per_answer": {name: round(own / rounds / len(rows) * 1e6, 2) for name, own in cpu.items()},
        "least": LEAST_SPEED,
        "holds": speed >= LEAST_SPEED,
    }


def bare_loop(rows: list[RewardRow]) -> list[Any]:
    """What a reward costs without a runner."""
    return [
        default_compute_score(
            data_source=row.data_source,
            solution_str=row.solution_str,
            ground_truth=row.ground_truth,
            extra_info=row.extra_info,
        )
        for row in rows
    ]


@contextlib.contextmanager
def others_at_work(count: int) -> Iterator[list[psutil.Process]]:
    """Processes that run the bare loop again and again whenever they are resumed; they are suspended at first."""
    with contextlib.ExitStack() as stack:
        others = []
        for _ in range(count):
            command = [sys.executable, "-P", __file__, "--loop"]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
            others.append(psutil.Process(process.pid))
            others[-1].suspend()
        yield others


def gsm8k_rows() -> list[RewardRow]:
    """Answers of six steps, a third of them wrong."""
    rows = []
    for index in range(GSM8K_ANSWERS):
        first = index % 90 + 2
        steps = [STEP.format(a, b, a * b) for a, b in zip(range(3, 9), range(first, first + 6), strict=True)]
        answer = index if index % 3 else index + 1
        rows.append(RewardRow("openai/gsm8k", "".join(steps) + f"\n#### {answer:,}", str(index), {"index": index}))
    return rows


def num_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def cpu_seconds(processes: list[psutil.Process]) -> float:
    """What processes have computed so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def math_verify() -> dict[str, Any]:
    """Score mathematics answers with Math-Verify, of which it never comes back from five, once.

    The time is that of the one call of `RewardRunner.score`, the start of its workers included. The limit is one of
    CPU seconds, so that on fewer cores than answers that hang, these alone take a multiple of it.
    """
    rows = []
    for index in range(MATH_ANSWERS):
        answer, truth = f"\\frac{{{index}}}{{{index + 1}}}\\pi", f"\\pi\\frac{{{index}}}{{{index + 1}}}"
        if index in HANGING:
            answer, truth = "9^{9^{9^{9}}} - \\sqrt{2}", "7^{7^{7^{7}}} - \\sqrt{2}"
        rows.append(RewardRow("lighteval/MATH", f"so it is \\boxed{{{answer}}}", truth))
    with RewardRunner(
        default_compute_score, num_workers=MATH_WORKERS, cpu_seconds=LIMIT_SECONDS, wall_seconds=LIMIT_SECONDS
    ) as runner:
        begun = time.perf_counter()
        result = runner.score(rows)
        seconds = time.perf_counter() - begun
    others_right = all(score.score == 1 for index, score in enumerate(result.scores) if index not in HANGING)
    found = {index for index, failure in result.failures.items() if failure.kind == "timeout"} == HANGING
    ratio = seconds / LIMIT_SECONDS
    return {
        "compared": "wall seconds of the whole RewardRunner.score over the limit of CPU and wall seconds per answer",
        "answers": len(rows),
        "hanging": len(HANGING),
        "workers": MATH_WORKERS,
        "limit_seconds": LIMIT_SECONDS,
        "seconds": round(seconds, 1),
        "seconds_over_limit": round(ratio, 2),
        "of_these_the_hanging_ones_alone": round(max(1.0, len(HANGING) / num_cores()), 2),
        "others_right": others_right,
        "hanging_found": found,
        "metrics": result.metrics,
        "most": MOST_LIMITS,
        "holds": ratio <= MOST_LIMITS and others_right and found,
    }


if __name__ == "__main__" and sys.argv[1:] == ["--loop"]:
    answers = gsm8k_rows()
    print("ready", flush=True)
    while True:
        bare_loop(answers)
