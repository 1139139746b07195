"""Endless tasks with scorers of their own; most need the extra reasoning-gym."""

import importlib.util
import json
import pickle
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_data import DataError, DataProcessor, read_rows
from verl_data.processors.reasoning_gym import (
    SEGMENT_ROWS,
    GymProcessor,
    GymTask,
    entry_to_json,
    json_to_entry,
    main,
    prepare_reasoning_gym,
    score_response,
)

# A library that reasoning-gym needs compares with literals by "is", which Python says where it compiles it.
pytestmark = pytest.mark.filterwarnings('ignore:"is" with a literal:SyntaxWarning')

needs_library = pytest.mark.skipif(
    importlib.util.find_spec("reasoning_gym") is None, reason="the extra reasoning-gym is not installed"
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(VALUES)
@settings(deadline=None)
def test_metadata_survives_as_text(value: Any) -> None:
    entry = {"question": "?", "answer": None, "metadata": value}
    assert json_to_entry(entry_to_json(entry)) == entry


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'packages/verl-data\[reasoning-gym\]'"):
        next(iter(GymTask("chain_sum")))
    assert main(["--tasks", "chain_sum"]) == 1
    assert "reasoning-gym is not installed" in capsys.readouterr().err


@needs_library
def test_a_row_depends_on_task_seed_and_number_only() -> None:
    rows = list(islice(GymTask("chain_sum", seed=3), SEGMENT_ROWS + 2))
    assert list(GymTask("chain_sum", seed=3, size=5)) == rows[:5]
    assert [row["index"] for row in rows] == list(range(SEGMENT_ROWS + 2))
    assert len({row["entry"]["question"] for row in rows}) > SEGMENT_ROWS * 0.9
    assert [row["entry"] for row in rows[SEGMENT_ROWS:]] != [row["entry"] for row in rows[:2]]
    assert next(iter(GymTask("chain_sum", seed=4))) != rows[0]
    (long,) = GymTask("chain_sum", size=1, options={"min_terms": 9, "max_terms": 9})
    assert long["entry"]["question"].count("+") + long["entry"]["question"].count("-") == 8


@needs_library
@pytest.mark.parametrize("task", ["chain_sum", "rearc", "graph_color", "knights_knaves", "countdown"])
def test_rows_survive_parquet_and_are_scored(task: str, tmp_path: Path) -> None:
    raw = list(GymTask(task, size=4))
    GymProcessor("train").run(raw, tmp_path / "out.parquet")
    for row, was in zip(read_rows(tmp_path / "out.parquet"), raw, strict=True):
        assert row["data_source"] == f"reasoning_gym/{task}"
        assert row["prompt"][0]["content"].startswith(was["entry"]["question"].rstrip())
        assert json_to_entry(row["extra_info"]["entry"]) == was["entry"]
        assert row["extra_info"]["index"] == was["index"]
        if was["entry"]["answer"] is None:  # a task with many right answers
            assert row["reward_model"]["ground_truth"] == ""
            continue
        truth = row["reward_model"]["ground_truth"]
        said = f"<answer>no</answer> or rather\n<answer>{truth}</answer>"
        assert score_response(said, row["extra_info"]) == {"score": 1.0, "answered": 1.0, "unreadable": 0.0}
        assert score_response(truth, row["extra_info"]) == {"score": 0.0, "answered": 0.0, "unreadable": 0.0}
        assert score_response("<answer>?!</answer>", row["extra_info"])["score"] < 0.1


@needs_library
def test_an_answer_that_a_scorer_cannot_read() -> None:
    (row,) = GymTask("prime_factorization", size=1)
    extra = GymProcessor("train").process_row(row, 0)["extra_info"]
    assert score_response("<answer>none</answer>", extra) == {"score": 0.0, "answered": 1.0, "unreadable": 1.0}


@needs_library
def test_no_question_is_in_both_files(tmp_path: Path) -> None:
    tasks = ["chain_sum", "coin_flip"]
    manifests = prepare_reasoning_gym(
        tmp_path, tasks=tasks, size=60, validation_size=10, task_options={"chain_sum": {"max_terms": 2}}
    )
    assert {name: manifest.rows_written for name, manifest in manifests.items()} == {"train": 60, "validation": 10}
    train, held_out = (list(read_rows(tmp_path / f"{name}.parquet")) for name in ("train", "validation"))
    assert [row["extra_info"]["task"] for row in train] == tasks * 30
    assert not {row["prompt"][0]["content"] for row in train} & {row["prompt"][0]["content"] for row in held_out}
    assert json.loads(train[0]["extra_info"]["options"]) == {"max_terms": 2}
    assert (held_out[0]["extra_info"]["split"], train[3]["extra_info"]["index"]) == ("validation", 3)


@needs_library
def test_faults_of_tasks(tmp_path: Path) -> None:
    make = prepare_reasoning_gym
    with pytest.raises(DataError, match=r"no task 'chain_sums'. It has ab, .*chain_sum"):
        make(tmp_path, tasks=["chain_sums"], size=4, validation_size=1)
    with pytest.raises(DataError, match=r"refuses the options of chain_sum: .*'terms'"):
        make(tmp_path, tasks=["chain_sum"], size=4, validation_size=1, task_options={"chain_sum": {"terms": 1}})
    with pytest.raises(DataError, match="options for ab, which is not among the tasks"):
        make(tmp_path, tasks=["chain_sum"], size=4, validation_size=1, task_options={"ab": {}})
    with pytest.raises(DataError, match="at least 2"):
        make(tmp_path, tasks=["chain_sum", "ab"], size=1, validation_size=2)
    tiny = {"chain_sum": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}}
    with pytest.raises(DataError, match="cannot be held out"):
        make(tmp_path, tasks=["chain_sum"], size=20000, validation_size=40, task_options=tiny)


@needs_library
def test_a_processor_of_ones_own_reads_the_endless_source(tmp_path: Path) -> None:
    manifest = DataProcessor(lambda row, index: {"text": row["entry"]["question"]}).run(
        GymTask("leg_counting", size=3), tmp_path / "out.parquet"
    )
    assert manifest.rows_written == 3


@needs_library
def test_another_process_scores(tmp_path: Path) -> None:
    """Reward workers get extra_info alone."""
    (row,) = GymTask("leg_counting", size=1)
    made = GymProcessor("train").process_row(row, 0)
    (tmp_path / "row").write_bytes(pickle.dumps(made))
    code = (
        "import pickle, sys; from verl_data.processors.reasoning_gym import score_response; "
        "row = pickle.load(open(sys.argv[1], 'rb')); truth = row['reward_model']['ground_truth']; "
        "print(score_response(f'<answer>{truth}</answer>', row['extra_info'])['score'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "row")], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1.0"
