"""A bounded look at rows: counted, judged and measured as training does it."""

import json
from pathlib import Path
from typing import Any

import pytest
from verl_cli.plan.data import DataLook, RowsInUse, count_rows, look, prompt_problems, rows_in_use, too_few
from verl_data import DataConfig, write_rows


def row(content: Any = "1+1=", truth: Any = "2", source: str = "verl/arithmetic") -> dict[str, Any]:
    prompt = content if not isinstance(content, str) else [{"role": "user", "content": content}]
    return {"data_source": source, "prompt": prompt, "reward_model": {"style": "rule", "ground_truth": truth}}


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(item)}\n" for item in rows))
    return path


def test_rows_are_counted_without_reading_them(tmp_path: Path) -> None:
    write_rows([row(str(i)) for i in range(37)], tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text(f"\n{json.dumps(row())}\n   \n{json.dumps(row())}")
    assert count_rows("a.parquet", tmp_path / "a.parquet") == 37
    assert count_rows("b.jsonl", tmp_path / "b.jsonl") == 2


def test_only_the_first_rows_of_each_file_are_looked_at(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_rows([row(f"{name}{i}") for i in range(50)], tmp_path / f"{name}.parquet")
    found = look([str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")], "data.train_files", DataConfig(), 20)
    assert (found.total, found.looked_at, found.complete) == (100, 20, False)
    assert [looked.row["prompt"][0]["content"] for looked in found.rows[9:11]] == ["a9", "b0"]
    assert found.sources == {"verl/arithmetic": f"{tmp_path / 'a.parquet'}, row 0"}


def test_faulty_rows_are_told_by_kind_with_their_place(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "rows.jsonl", [row(), {**row(), "prompt": "text"}, row(truth=None), {**row(), "prompt": "x"}]
    )
    found = look(str(path), "data.train_files", DataConfig(), 100)
    assert len(found.rows) == 1
    text, truth = found.problems
    assert f"{path}, row 1 (line 2): field prompt: a list of messages is expected" in text
    assert "first of 2 such rows among 4" in text
    assert f"{path}, row 2 (line 3): field reward_model.ground_truth" in truth


def test_every_unreadable_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and then nothing")
    (tmp_path / "b.txt").write_text("x")
    (tmp_path / "c.jsonl").write_text("{")
    files = [str(tmp_path / name) for name in ("a.parquet", "b.txt", "c.jsonl")]
    problems = look(files, "data.train_files", DataConfig(), 10).problems
    assert [fragment in problem for fragment, problem in zip(("a.parquet", "b.txt", "line 1"), problems, strict=True)]
    assert "cannot be read as Parquet" in problems[0] and "is not a .parquet or .jsonl file" in problems[1]


def test_a_missing_file_names_its_key(tmp_path: Path) -> None:
    (problem,) = look(str(tmp_path / "none.parquet"), "data.val_files", DataConfig(), 10).problems
    assert problem.startswith("data.val_files: ") and "does not exist" in problem


def looked(number: int) -> DataLook:
    found = DataLook("data.train_files", total=number, looked_at=number)
    found.rows = [type("At", (), {"location": f"rows.jsonl, row {i}", "row": row()})() for i in range(number)]
    return found


def test_over_long_prompts_are_counted_unless_something_is_done_about_them() -> None:
    lengths: list[int | None] = [5, 20, None, 30]
    (problem,) = prompt_problems(looked(4), lengths, {2: "refused"}, DataConfig(max_prompt_length=16))[1:]
    assert "rows.jsonl, row 1: the prompt has 20 tokens" in problem
    assert "first of 2 such prompts among the 4 looked at; the longest has 30" in problem
    for config in (
        DataConfig(max_prompt_length=16, truncation="left"),
        DataConfig(max_prompt_length=16, filter_overlong_prompts=True),
    ):
        assert prompt_problems(looked(4), lengths, {}, config) == []


def test_one_reason_for_many_prompts_is_told_once() -> None:
    (problem,) = prompt_problems(looked(3), [None] * 3, dict.fromkeys(range(3), "no chat template."), DataConfig())
    assert problem == "rows.jsonl, row 0: no chat template. So it is with 3 of the 3 prompts looked at."


def test_filtered_rows_are_counted_exactly_or_estimated() -> None:
    config = DataConfig(max_prompt_length=16, filter_overlong_prompts=True, train_batch_size=8)
    lengths: list[int | None] = [5, 20, 7, 9]
    assert rows_in_use(looked(4), lengths, config, training=True) == RowsInUse(3, True, 1)
    some = DataLook("data.train_files", total=400, looked_at=4)
    assert rows_in_use(some, lengths, config, training=True) == RowsInUse(300, False, 100)


@pytest.mark.parametrize(("samples", "rows"), [(-1, 20), (5, 5), (50, 20)])
def test_a_maximum_of_samples_bounds_the_rows(samples: int, rows: int) -> None:
    config = DataConfig(train_max_samples=samples)
    assert rows_in_use(looked(20), [], config, training=True).rows == rows


def test_too_few_rows_are_refused() -> None:
    config = DataConfig(train_batch_size=8)
    problem = too_few(looked(6), RowsInUse(6, True, 0), config, training=True)
    assert problem is not None and "6 rows < batch 8" in problem and "at most 6" in problem
    assert too_few(looked(6), RowsInUse(6, True, 0), config, training=False) is None
    nothing = too_few(looked(0), RowsInUse(0, True, 0), config, training=False)
    assert nothing is not None and "0 rows; there is nothing to score" in nothing
