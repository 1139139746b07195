"""The reward is called on a right and on an empty answer before the run is."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from verl_cli import reward_workers
from verl_cli.config import CustomRewardConfig, RewardConfig, RewardModelConfig, resolve
from verl_cli.config.schema import OverlongBufferConfig, RewardKwargsConfig, RewardManagerConfig
from verl_cli.plan.data import LookedAt
from verl_cli.plan.sample import RewardLook, Wanted, look_at_reward
from verl_cli.system.resources import CpuShare
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
    found = looked(own(tmp_path, "    text = solution_str\n    return 1 / (len(text) - len(text))"))
    (problem,) = found.problems
    assert "ZeroDivisionError" in problem and f"{tmp_path / 'reward.py'}:3" in problem
    assert found.tried == []


def test_an_exception_on_an_empty_answer_alone_is_a_warning(tmp_path: Path) -> None:
    found = looked(own(tmp_path, "    return 1 / len(solution_str)"))
    (warning,) = found.warnings
    assert warning.startswith("An empty response cannot be scored: ") and "ZeroDivisionError" in warning
    assert "left out" in warning
    assert (found.problems, [tried.score for tried in found.tried]) == ([], [0.5])


def test_a_function_that_hangs_does_not_hang_the_plan(tmp_path: Path) -> None:
    own(tmp_path, "    while solution_str:\n        pass\n    return 0.0")
    path = str(tmp_path / "reward.py")
    config = RewardConfig(CustomRewardConfig(path=path), num_workers=0, cpu_seconds=0.2)
    (problem,) = looked(config).problems
    assert "The ground truth cannot be scored: " in problem and "CPU seconds" in problem
    assert "reward.cpu_seconds" in problem


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


def test_what_the_function_prints_stays_out_of_the_plan(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    looked(own(tmp_path, "    print('hello')\n    return len(solution_str)"))
    captured = capfd.readouterr()
    assert captured.out == "" and "hello" in captured.err


def test_ground_truths_that_are_no_text_are_written_as_json(tmp_path: Path) -> None:
    row = LookedAt("rows.jsonl, row 0", {**ROW.row, "reward_model": {"style": "rule", "ground_truth": [7, 2]}})
    found = looked(own(tmp_path, "    return len(solution_str)"), row)
    assert found.tried[1].response == "[7, 2]"


def test_what_scores_is_said(tmp_path: Path) -> None:
    assert looked(RewardConfig()).what == "rules by data source: gsm8k for openai/gsm8k"
    named = CustomRewardConfig(reward_kwargs={"rule": "gsm8k", "method": "flexible"})
    assert looked(RewardConfig(named)).what == "rule gsm8k for every row, method=flexible"
    assert looked(own(tmp_path, "    return 1.0")).what == f"function compute_score of {tmp_path / 'reward.py'}"
    overlong = "reward.reward_kwargs.overlong_buffer_cfg"
    paths = ("data.train_files=a", "data.val_files=a", "actor_rollout_ref.model.path=m", "data.max_response_length=20")
    keys = ("reward.reward_manager.name=dapo", f"{overlong}.enable=true", f"{overlong}.len=5")
    penalty = "; overlong penalty of up to 1 for responses of 15 to 20 tokens"
    assert looked(resolve([*paths, *keys]).config.reward).what.endswith(penalty)


def test_a_reward_model_is_looked_for_and_not_made(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(
        "from verl import RewardModel\n\nclass Mine(RewardModel):\n"
        "    def __init__(self):\n        1 / 0\n    def score(self, rows):\n        return []\n"
    )

    def model(**options: Any) -> RewardLook:
        return looked(RewardConfig(reward_model=RewardModelConfig(enable=True, **options)))

    found = model(path=f"{tmp_path / 'm.py'}:Mine")
    assert (found.problems, found.tried) == ([], []) and f"class {tmp_path / 'm.py'}:Mine" in found.what
    assert "'Other' is not defined" in model(path=f"{tmp_path / 'm.py'}:Other").problems[0]
    assert "it has no config.json" in model(model_path=str(tmp_path)).problems[0]


def test_a_reward_model_that_does_not_take_its_kwargs_is_a_problem(tmp_path: Path) -> None:
    """The plan found nothing wrong, and the run then could not make the model."""
    (tmp_path / "mine.py").write_text(
        "from verl import RewardModel\n\nclass Scaled(RewardModel):\n"
        "    def __init__(self, scale):\n        raise SystemExit('was made')\n\n"
        "    def score(self, rows):\n        return [1.0 for _ in rows]\n"
    )

    def problems(**kwargs: object) -> str:
        model = RewardModelConfig(enable=True, path=f"{tmp_path / 'mine.py'}:Scaled", kwargs=kwargs)
        return " ".join(looked(RewardConfig(reward_model=model)).problems)

    assert problems(scale=2) == ""
    assert "kwargs={\"scal\": 2}: missing a required argument: 'scale'" in problems(scal=2)
    assert "got an unexpected keyword argument 'scal'" in problems(scale=1, scal=2)


# Numbers beside the score

METRIC, KEYS = "algorithm.filter_groups.metric", "algorithm.gdpo_reward_keys"
OTHER = LookedAt("rows.jsonl, row 1", {**ROW.row, "data_source": "other", "reward_model": {"ground_truth": "7"}})


def wanted(config: RewardConfig, numbers: dict[str, str], *rows: LookedAt) -> list[str]:
    rows = rows or (ROW,)
    sources = {row.row["data_source"]: row.location for row in rows}
    found = look_at_reward(config, DataConfig(), rows[0], sources, Wanted(numbers, rows))
    return [problem for problem in found.problems if " asks for " in problem]


def test_a_number_that_the_reward_does_not_report_is_a_problem(tmp_path: Path) -> None:
    reward = own(tmp_path, "    return {'score': len(solution_str), 'length': 1, 'pred': 'x'}")
    assert wanted(reward, {"length": KEYS, "score": METRIC}) == []
    (metric,) = wanted(reward, {"acc": METRIC})
    assert metric.startswith(
        f"{METRIC} asks for 'acc', its default, which the reward does not report; it reports length, score. Set "
        f"{METRIC} to what it reports, or let your function return it"
    )
    (component,) = wanted(reward, {"length": KEYS, "pred": KEYS})  # which is text
    assert component.startswith(f"{KEYS} asks for 'pred', which the reward does not report; it reports length, score.")


def test_a_plain_number_is_reported_as_acc_too(tmp_path: Path) -> None:
    assert wanted(own(tmp_path, "    return len(solution_str)"), {"acc": METRIC, "score": KEYS}) == []


def test_a_number_that_one_kind_of_answer_lacks_is_a_problem(tmp_path: Path) -> None:
    body = "    return {'score': 1, 'acc': 1} if solution_str else {'score': 0}"
    (problem,) = wanted(own(tmp_path, body), {"acc": METRIC})
    assert "does not report for an empty response (data source 'openai/gsm8k')" in problem
    assert "such as score" in problem


def test_every_data_source_is_tried(tmp_path: Path) -> None:
    body = "    return {'score': len(solution_str)} | ({'acc': 1} if data_source == 'openai/gsm8k' else {'f1': 0})"
    (problem,) = wanted(own(tmp_path, body), {"acc": METRIC}, ROW, OTHER)
    assert "does not report for the data source 'other'; it reports f1, score" in problem


def test_a_function_that_can_score_neither_answer_says_nothing_of_what_it_reports(tmp_path: Path) -> None:
    body = "    return {'score': 1} if data_source == 'openai/gsm8k' else 1 / 0"
    (problem,) = wanted(own(tmp_path, body), {"acc": METRIC}, ROW, OTHER)
    assert "which the reward does not report; it reports score." in problem


def test_the_overlong_penalty_is_reported_where_it_is_logged(tmp_path: Path) -> None:
    reward = own(tmp_path, "    return 1.0 + len(solution_str)")
    punished = RewardKwargsConfig(20, OverlongBufferConfig(enable=True, len=5, log=True))
    with_penalty = replace(reward, reward_manager=RewardManagerConfig("dapo"), reward_kwargs=punished)
    assert wanted(with_penalty, {"overlong_reward": KEYS}) == []
    assert wanted(reward, {"overlong_reward": KEYS})


def test_more_workers_than_cores_are_worth_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_workers, "cpu_share", lambda: CpuShare(host=64, affinity=4, quota=3.5))

    def warnings(**options: Any) -> list[str]:
        return looked(RewardConfig(**options)).warnings

    assert warnings(num_workers=12) == warnings(num_workers=None) == warnings(num_workers=8) == []
    (warning,) = warnings(num_workers=13)
    assert "reward.num_workers=13 processes share 3 cores" in warning and "reward.memory_mb=4096 MiB" in warning
    assert "without a limit" in warnings(num_workers=13, memory_mb=None)[0]


def test_the_row_of_a_failure_is_that_of_the_file(tmp_path: Path) -> None:
    (problem,) = looked(own(tmp_path, "    return 1 / 0")).problems
    assert "failed on an empty response to rows.jsonl, row 0 (data_source" in problem
