"""RewardRunner: how rows are handed to its workers, seen from what the rows themselves notice."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from verl_algos.rewards import RewardRow, RewardRunner, Score


def meets(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> Any:
    """A row that waits for another one comes back only if that one is being scored at the same time."""
    if extra_info is not None:
        Path(extra_info["mine"]).touch()
        while not Path(extra_info["theirs"]).exists():
            time.sleep(0.001)
    time.sleep(float(solution_str or 0))
    return {"score": float(ground_truth), "length": len(solution_str)}


def meeting(folder: Path, mine: str, theirs: str) -> RewardRow:
    return RewardRow("mine", "", 1.0, {"mine": str(folder / mine), "theirs": str(folder / theirs)})


# Of rows that take from half a millisecond to a whole one, each makes a chunk, and the next one could wait behind it.
@pytest.mark.parametrize(("seconds", "rows_before"), [("", 2000), ("0.0006", 200), ("0.002", 50)])
def test_a_row_that_blocks_leaves_no_other_row_waiting_where_a_worker_is_free(
    tmp_path: Path, seconds: str, rows_before: int
) -> None:
    cheap = [RewardRow("mine", seconds, index) for index in range(rows_before)]
    with RewardRunner(meets, num_workers=2, wall_seconds=20) as runner:
        runner.score(cheap)  # from here on it expects rows that take as long
        rows = [meeting(tmp_path, "a", "b"), cheap[1], meeting(tmp_path, "b", "a")]
        result = runner.score(rows)
    assert [score.score for score in result.scores] == [1, 1, 1] and not result.failures


def dies(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any = None) -> float:
    if ground_truth == "die":
        os._exit(1)
    time.sleep(0.002)
    return float(ground_truth)


def test_every_worker_may_die_and_all_other_rows_are_scored() -> None:
    truths: list[Any] = [float(index) for index in range(60)]
    for place in (1, 7, 20, 21, 22, 58, 59):
        truths[place] = "die"
    with RewardRunner(dies, num_workers=3, failed_score=-1.0) as runner:
        for _ in range(2):
            result = runner.score([RewardRow("mine", "", truth) for truth in truths])
            assert [score.score for score in result.scores] == [-1.0 if t == "die" else t for t in truths]
            assert sorted(result.failures) == [place for place, truth in enumerate(truths) if truth == "die"]
            assert result.metrics["reward/workers_replaced"] == len(result.failures)


def test_long_responses_and_results_travel_whole() -> None:
    def echo(solution_str: str, **row: Any) -> Any:
        return {"score": 1.0, "pred": solution_str[::-1]}

    lengths = [0, 1, 3 << 20, 5, (1 << 20) - 100, 1 << 20, 7]
    responses = [("0123456789" * (length // 10 + 1))[:length] for length in lengths]
    with RewardRunner(echo, num_workers=2) as runner:
        for _ in range(2):
            result = runner.score([RewardRow("mine", response, "") for response in responses])
            assert result.scores == [Score(1.0, {"pred": response[::-1]}) for response in responses]
