"""Does the reward runner cost little, and does an answer that hangs cost only itself?

    uv run python benchmarks/algos_rewards.py [--check] [--rounds N]

- 8,192 GSM8K answers through `RewardRunner`, per worker, against a bare loop over the same function that is measured
  in turn with it, so that a busy machine slows both,
- 512 mathematics answers (Math-Verify), 5 of them built to hang, with a limit per answer: seconds over that limit; and
  that all the others have their right score.

Prints one JSON object. With --check the exit code is the verdict.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from typing import Any

from verl_algos.rewards import RewardRow, RewardRunner, default_compute_score

LEAST_SPEED = 0.7
MOST_LIMITS = 3.0
LIMIT_SECONDS = 15.0
WORKERS = 6

STEP = "Each of the {0} boxes holds {1} apples, so there are {0} * {1} = <<{0}*{1}={2}>>{2} apples in all of them. "


def main() -> int:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 unless every figure holds")
    parser.add_argument("--rounds", type=int, default=9, help="times that the fast ones are measured, for a median")
    options = parser.parse_args()
    figures = {"gsm8k": gsm8k(options.rounds), "hanging": hanging()}
    result = {
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()[0]},
        **figures,
        "holds": all(figure["holds"] for figure in figures.values()),
    }
    print(json.dumps(result, indent=2))
    return 1 if options.check and not result["holds"] else 0


def gsm8k(rounds: int) -> dict[str, Any]:
    """One worker against a bare loop."""
    rows = []
    for index in range(8192):
        steps = [
            STEP.format(a, b, a * b) for a, b in zip(range(3, 9), range(index % 90 + 2, index % 90 + 8), strict=True)
        ]
        answer = index if index % 3 else index + 1
        rows.append(RewardRow("openai/gsm8k", "".join(steps) + f"\n#### {answer:,}", str(index), {"index": index}))
    ratios, bare_seconds, runner_seconds = [], [], []
    bare: list[Any]
    with RewardRunner(default_compute_score, num_workers=1) as runner:
        runner.score(rows)
        for _ in range(rounds):
            begun = time.perf_counter()
            bare = [
                default_compute_score(
                    data_source=row.data_source,
                    solution_str=row.solution_str,
                    ground_truth=row.ground_truth,
                    extra_info=row.extra_info,
                )
                for row in rows
            ]
            bare_seconds.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            scored = runner.score(rows)
            runner_seconds.append(time.perf_counter() - begun)
            ratios.append(bare_seconds[-1] / runner_seconds[-1])
            if [score.score for score in scored.scores] != [result["score"] for result in bare]:
                raise AssertionError("the runner gives other scores than the function")
    ratio = statistics.median(ratios)
    return {
        "speed_over_bare_loop": round(ratio, 3),
        "bare_us_per_answer": round(statistics.median(bare_seconds) / len(rows) * 1e6, 2),
        "runner_us_per_answer": round(statistics.median(runner_seconds) / len(rows) * 1e6, 2),
        "holds": ratio >= LEAST_SPEED,
    }


def hanging() -> dict[str, Any]:
    """Five answers that a computer algebra system does not come back from, among 512."""
    rows = []
    for index in range(512):
        answer, truth = f"\\frac{{{index}}}{{{index + 1}}}\\pi", f"\\pi\\frac{{{index}}}{{{index + 1}}}"
        if index % 100 == 50:
            answer, truth = "9^{9^{9^{9}}} - \\sqrt{2}", "7^{7^{7^{7}}} - \\sqrt{2}"
        rows.append(RewardRow("lighteval/MATH", f"so it is \\boxed{{{answer}}}", truth))
    limits = {"cpu_seconds": LIMIT_SECONDS, "wall_seconds": LIMIT_SECONDS}
    with RewardRunner(default_compute_score, num_workers=WORKERS, **limits) as runner:  # type: ignore[arg-type]
        begun = time.perf_counter()
        result = runner.score(rows)
        seconds = time.perf_counter() - begun
    right = all(score.score == 1 for index, score in enumerate(result.scores) if index % 100 != 50)
    ratio = seconds / LIMIT_SECONDS
    return {
        "seconds": round(seconds, 1),
        "seconds_over_limit": round(ratio, 2),
        "others_right": right,
        "metrics": result.metrics,
        "holds": ratio <= MOST_LIMITS and right,
    }


if __name__ == "__main__":
    sys.exit(main())
