"""Faults that a check must not pass over, where they are, and how they are told."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from verl_data.check import check_file
from verl_data.config import DataConfig
from verl_data.row_writer import write_rows
from verl_data.schema import preference_row_problems, rl_row_problems, sft_row_problems

MakeRows = Callable[[int], list[dict[str, Any]]]
USER = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant", "content": "there"}


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


# Which rows


def test_an_odd_first_row_does_not_hide_the_others(make_rows: MakeRows, tmp_path: Path) -> None:
    rows = make_rows(3)
    path = jsonl(tmp_path / "a.jsonl", {"foo": 1}, *rows[:2], {"bar": 2}, rows[2])
    report = check_file(path)
    assert [(file.schema, file.rows, file.faulty_rows) for file in report.files] == [("rl", 5, 2)]
    first, other = report.problems
    assert first.places == [f"{path}, row 0 (line 1)"] and first.text.startswith("its columns (foo) are those of no")
    assert other.places == [f"{path}, row 3 (line 4)"] and other.text.startswith("lacks data_source, prompt, ")


def test_lines_of_no_schema_are_all_counted(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", *({"question": str(i), "level": i} for i in range(9)))
    report = check_file(path)
    (problem,) = report.problems
    assert (problem.rows, report.files[0].schema, report.files[0].faulty_rows) == (9, None, 9)
    assert problem.places[0] == f"{path}, row 0 (line 1)" and "its columns (question, level)" in problem.text
    assert f"{path}: not checked" in str(report)


def test_without_a_file_or_without_a_list_of_problems_nothing_is_said_to_be_sound(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="No data file was named"):
        check_file([])
    report = check_file(jsonl(tmp_path / "a.jsonl", {"messages": 5}), kinds=0)
    assert (report.ok, report.problems, report.problem_count) == (False, [], 1)
    assert "no problems" not in str(report) and "1 problem:" in str(report) and report.to_dict()["ok"] is False


def test_a_map_with_a_key_twice_is_a_fault_of_its_row(make_rows: MakeRows, tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{k: v for k, v in row.items() if k != "extra_info"} for row in make_rows(4)])
    maps = pa.array([[("a", 1)], [], [("a", 1), ("a", 2)], None], pa.map_(pa.string(), pa.int64()))
    path = tmp_path / "a.parquet"
    pq.write_table(table.append_column("extra_info", maps), path)
    report = check_file(path)
    (problem,) = report.problems
    assert problem.places == [f"{path}, row 2"] and "key" in problem.text
    assert (report.files[0].rows, report.files[0].faulty_rows, report.data_sources) == (4, 1, {"verl/arithmetic": 3})


def test_half_of_a_surrogate_pair_in_any_column(make_rows: MakeRows, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = make_rows(5)
    rows[1]["extra_info"]["note"] = "a\ud83d"
    rows[2]["extra_info"]["\ude00"] = 1
    rows[3]["x\ud83d"] = "a"
    report = check_file(jsonl(tmp_path / "a.jsonl", *rows))
    assert report.files[0].faulty_rows == 3
    assert check_file(jsonl(tmp_path / "b.jsonl", rows[1])).files[0].schema == "rl"
    told = [finding.text for finding in report.problems]
    assert any(text.startswith("field extra_info.note holds half of a surrogate pair") for text in told)
    assert any(text.startswith("field extra_info (a key) holds half of a surrogate pair") for text in told)
    assert any(text.startswith("the name of the column x\\ud83d holds half") for text in told)
    str(report).encode()


def test_copies_behind_faulty_rows_are_numbered_as_in_the_file(make_rows: MakeRows, tmp_path: Path) -> None:
    rows = make_rows(3)
    path = jsonl(tmp_path / "a.jsonl", "{broken", {"foo": 1}, rows[0], "[1]", rows[1], rows[0])
    (warning,) = check_file(path).warnings
    assert warning.places == [f"{path}, row 5 (as {path}, row 2)"]
    assert warning.text.startswith("the same prompt (conversation, pair) as in an earlier row")


def test_rows_with_the_same_prompt_and_other_answers(make_rows: MakeRows, tmp_path: Path) -> None:
    rows = make_rows(2)
    rows[1]["prompt"] = rows[0]["prompt"]
    (warning,) = check_file(jsonl(tmp_path / "a.jsonl", *rows)).warnings
    assert warning.rows == 1 and warning.text.startswith("the same prompt ")


# What is told is fit for a terminal


def test_what_a_terminal_would_obey_is_written_as_escapes(make_rows: MakeRows, tmp_path: Path) -> None:
    rows = make_rows(3)
    rows[0]["data_source"] = "red\x1b[31m\nno problems"
    rows[1]["data_source"] = "\u202edesrever"
    rows[2]["reward_model"] = {"st\x1b]0;title\x07yle": "rule"}
    path = jsonl(tmp_path / "e\x1b[31m\nb.jsonl", *rows)
    report = check_file([path, jsonl(tmp_path / "c.jsonl", {"x\x1b[2Jy": 1})])
    text = str(report)
    assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text
    assert "no problems" not in text.split("\n")
    assert r"red\x1b[31m\nno problems 1" in text and r"\u202edesrever 1" in text
    assert r"e\x1b[31m\nb.jsonl: 3 rl rows" in text and r"st\x1b]0;title\x07yle" in text and r"x\x1b[2Jy" in text
    assert report.data_sources["red\x1b[31m\nno problems"] == 1  # values stay what they are


# What rows must hold


def rl(**fields: Any) -> dict[str, Any]:
    return {"data_source": "a", "prompt": [USER], "reward_model": {"style": "rule", "ground_truth": "1"}, **fields}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"reward_model": {"style": "rule", "ground_truth": float("nan")}},
            "field reward_model.ground_truth is nan, which JSON cannot hold",
        ),
        (
            {"reward_model": {"style": "rule", "ground_truth": [1.0, {"a": float("-inf")}]}},
            "field reward_model.ground_truth[1].a is -inf, which JSON cannot hold",
        ),
        ({"reward_model": {"style": 5, "ground_truth": "1"}}, "field reward_model.style: text is expected, such as"),
        ({"prompt": [{"role": "user", "content": []}]}, "field prompt[0].content: text is expected, not an empty list"),
        (
            {"prompt": [USER, {"role": "user", "content": [{"type": "text", "text": "a"}, {"foo": 1}]}]},
            "field prompt[1].content[1]: a part {type: text, text} is expected, not dict {'foo': 1}",
        ),
        ({"prompt": [{"role": "user", "content": [{"type": "text"}]}]}, "field prompt[0].content[0]: a part"),
        ({"prompt": [{"role": "user", "content": [{"type": 5}]}]}, "field prompt[0].content[0]: a part"),
        (
            {"prompt": [USER, {"role": "assistant", "content": None, "tool_calls": 5}]},
            "field prompt[1].tool_calls: a list of calls (dicts) is expected, not int 5",
        ),
        ({"prompt": [{**ASSISTANT, "tool_calls": ["f"]}]}, "field prompt[0].tool_calls: a list of calls"),
        ({"tools": [{"type": 5}]}, "field tools[0]: a tool schema {type: function, function: {name, description, "),
        ({"tools": [{"function": {"name": "f"}}, {"function": "g"}]}, "field tools[1]: a tool schema"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "field tools[0]: a tool schema"),
    ],
)
def test_wrong_values_name_the_field(fields: dict[str, Any], message: str) -> None:
    found = rl_row_problems(rl(**fields), DataConfig())
    assert len(found) == 1 and found[0].startswith(message)
    for name, problems, row in (
        ("messages", sft_row_problems, {"messages": [*fields.get("prompt", [USER]), ASSISTANT]}),
        ("prompt", preference_row_problems, {"prompt": fields.get("prompt", [USER]), "chosen": "a", "rejected": "b"}),
    ):
        if "prompt" in fields or "tools" in fields:
            (other,) = problems({**row, **{k: v for k, v in fields.items() if k == "tools"}}, DataConfig())
            assert other.startswith(message.replace("field prompt", f"field {name}"))


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [{"role": "user", "content": ""}]},
        {"prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": ""}]}]},
        {"prompt": [{"role": "user", "content": [{"type": None, "text": "a"}, {"image": "a.png", "text": None}]}]},
        {"prompt": [USER, {"role": "assistant", "content": [], "tool_calls": [{"function": {"name": "f"}}]}, USER]},
        {"prompt": [USER, {**ASSISTANT, "tool_calls": []}, {**USER, "tool_calls": None}]},
        {"tools": [{"type": "function", "function": {"name": "f"}}, {"name": "g", "function": None}]},
        {"tools": []},
        {"reward_model": {"ground_truth": 1.5}},
        {"reward_model": {"style": None, "ground_truth": [True, {"a": 10**30}]}},
    ],
)
def test_sound_values_stay_sound(fields: dict[str, Any]) -> None:
    assert rl_row_problems(rl(**fields), DataConfig()) == []


def test_roles_that_no_template_knows_are_warned_of(tmp_path: Path) -> None:
    odd = {"role": "usr", "content": "hi"}
    report = check_file(
        [
            jsonl(tmp_path / "rl.jsonl", rl(prompt=[odd]), rl(prompt=[{"role": "", "content": "a"}])),
            jsonl(tmp_path / "sft.jsonl", {"messages": [odd, ASSISTANT]}, {"prompt": [odd], "response": "x"}),
            jsonl(tmp_path / "pairs.jsonl", {"prompt": [odd], "chosen": [ASSISTANT], "rejected": "b"}),
            jsonl(tmp_path / "more.jsonl", {"prompt": [odd], "chosen": "a", "rejected": "b"}),
            jsonl(
                tmp_path / "good.jsonl", rl(prompt=[{"role": r, "content": "a"} for r in ("system", "tool", "user")])
            ),
        ]
    )
    told = {place: finding.text for finding in report.warnings for place in finding.places}
    assert sum(finding.rows for finding in report.warnings) == 5
    assert told[f"{tmp_path / 'rl.jsonl'}, row 0 (line 1)"].startswith("field prompt[0].role: 'usr' is no role that")
    assert f"{tmp_path / 'sft.jsonl'}, row 0 (line 1)" in told and not any("good" in place for place in told)


def test_a_parquet_file_of_no_schema_is_one_problem(tmp_path: Path) -> None:
    write_rows([{"question": "a"}] * 5, tmp_path / "a.parquet")
    (problem,) = check_file(tmp_path / "a.parquet").problems
    assert problem.rows == 1 and problem.places == [str(tmp_path / "a.parquet")]
