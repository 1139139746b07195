"""The reward is called on a right and on an empty answer before the run is."""

from pathlib import Path
from typing import Any

import pytest
from verl_cli.config import CustomRewardConfig, RewardConfig
from verl_cli.plan.data import LookedAt
from verl_cli.plan.sample import RewardLook, look_at_reward
from verl_data import DataConfig

ROW = LookedAt(
    "rows.jsonl, row 0",
    {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "How many?"}],
        "reward_model": {"style": "rule", "ground_truth": "72"},
        "extra_info": {"answer": "She sold 72."},
    },
)


def own(tmp_path: Path, body: str, **options: Any) -> RewardConfig:
    path = tmp_path / "reward.py"
    path.write_text(f"def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n{body}\n")
    return RewardConfig(CustomRewardConfig(path=str(path), **options))


def looked(config: RewardConfig, row: LookedAt | None = ROW) -> RewardLook:
    sources = {} if row is None else {row.row["data_source"]: row.location}
    return look_at_reward(config, DataConfig(), row, sources)


def test_a_reward_tells_the_ground_truth_from_nothing(tmp_path: Path) -> None:
    found = looked(own(tmp_path, "    return float(solution_str == ground_truth)"))
    assert [(tried.response, tried.score) for tried in found.tried] == [("", 0.0), ("72", 1.0)]
    assert (found.problems, found.warnings) == ([], [])


def test_the_form_that_a_rule_expects_is_found() -> None:
    found = looked(RewardConfig())  # GSM8K's own rule reads the number after ####
    assert [(tried.response, tried.score) for tried in found.tried] == [("", 0.0), ("#### 72", 1.0)]
    assert found.tried[1].extra["acc"] == 1.0
    assert found.warnings == []


def test_a_reward_that_gives_the_same_for_both_is_a_warning(tmp_path: Path) -> None:
    found = looked(own(tmp_path, "    return 0.5"))
    assert [tried.score for tried in found.tried] == [0.5, 0.5]
    (warning,) = found.warnings
    assert "gives 0.5 to an empty response and to the ground truth alike" in warning
    assert "'#### 72'" in warning and "'She sold 72.'" in warning


def test_an_exception_is_a_problem_with_its_line(tmp_path: Path) -> None:
    found = looked(own(tmp_path, "    text = solution_str\n    return 1 / len(text)"))
    (problem,) = found.problems
    assert "ZeroDivisionError" in problem and f"{tmp_path / 'reward.py'}:3" in problem


def test_a_file_that_does_not_load_is_a_problem_with_its_line(tmp_path: Path) -> None:
    config = own(tmp_path, "    return (")
    (problem,) = looked(config).problems
    assert "SyntaxError" in problem and f"{tmp_path / 'reward.py'}:2" in problem


def test_a_missing_file_is_a_problem(tmp_path: Path) -> None:
    (problem,) = looked(RewardConfig(CustomRewardConfig(path=str(tmp_path / "none.py")))).problems
    assert "none.py does not exist" in problem


def test_a_data_source_without_a_rule_is_a_problem() -> None:
    row = LookedAt("rows.jsonl, row 0", {**ROW.row, "data_source": "mine"})
    (problem,) = looked(RewardConfig(), row).problems
    assert "no reward rule for data_source 'mine'" in problem


def test_without_a_row_the_function_is_loaded_all_the_same(tmp_path: Path) -> None:
    assert looked(own(tmp_path, "    return 1"), None).problems == []
    assert looked(own(tmp_path, "    return ("), None).problems


def test_what_the_function_prints_stays_out_of_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    looked(own(tmp_path, "    print('hello')\n    return len(solution_str)"))
    captured = capsys.readouterr()
    assert captured.out == "" and "hello" in captured.err


def test_ground_truths_that_are_no_text_are_written_as_json(tmp_path: Path) -> None:
    row = LookedAt("rows.jsonl, row 0", {**ROW.row, "reward_model": {"style": "rule", "ground_truth": [7, 2]}})
    found = looked(own(tmp_path, "    return len(solution_str)"), row)
    assert found.tried[1].response == "[7, 2]"
