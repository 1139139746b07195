"""Files checked row by row: good ones, bad ones, and ones that cannot be read."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_data.check import check_file
from verl_data.config import DataConfig
from verl_data.duplicates import Duplicates
from verl_data.processor import DataProcessor
from verl_data.row_writer import write_rows

MakeRows = Callable[[int], list[dict[str, Any]]]


def jsonl(path: Path, *lines: Any) -> Path:
    path.write_bytes(
        b"".join((line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines)
    )
    return path


def test_sound_files(make_rows: MakeRows, tmp_path: Path) -> None:
    rows = make_rows(5)
    rows[4]["data_source"] = "other"
    write_rows(rows, tmp_path / "a.parquet")
    jsonl(tmp_path / "b.jsonl", {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})
    report = check_file([tmp_path / "a.parquet", str(tmp_path / "b.json*")])
    assert (report.ok, report.rows, report.problem_count, report.warnings) == (True, 6, 0, [])
    assert report.data_sources == {"verl/arithmetic": 4, "other": 1}
    assert [(file.schema, file.rows, file.faulty_rows) for file in report.files] == [("rl", 5, 0), ("sft", 1, 0)]
    assert f"{tmp_path / 'a.parquet'}: 5 rl rows (recognised from its columns)" in str(report)
    assert "data sources: verl/arithmetic 4, other 1" in str(report) and "no problems" in str(report)
    assert json.loads(json.dumps(report.to_dict()))["files"][1]["schema"] == "sft"


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_every_problem_is_counted_and_the_first_rows_are_named(
    make_rows: MakeRows, tmp_path: Path, suffix: str
) -> None:
    rows = make_rows(40)
    for i in range(10, 40):
        rows[i]["reward_model"]["ground_truth"] = None
    path = tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        write_rows(rows, path)
    else:
        jsonl(path, *rows)
    report = check_file(path)
    (finding,) = report.problems
    assert (report.ok, report.problem_count, finding.rows, report.files[0].faulty_rows) == (False, 30, 30, 30)
    assert finding.text.startswith("field reward_model.ground_truth: it is empty")
    lines = ["", "", ""] if suffix == ".parquet" else [" (line 11)", " (line 12)", " (line 13)"]
    assert finding.places == [f"{path}, row {10 + i}{line}" for i, line in enumerate(lines)]
    assert "30 problems:" in str(report) and "and 27 more" in str(report) and "30 of them faulty" in str(report)


def test_kinds_of_problems_beyond_those_listed_are_counted(make_rows: MakeRows, tmp_path: Path) -> None:
    rows = make_rows(4)
    for row, column in zip(rows, ("images", "videos", "audios", "agent_name"), strict=True):
        row[column] = {"a": 1}
    report = check_file(jsonl(tmp_path / "a.jsonl", *rows), kinds=3)
    assert (len(report.problems), report.unlisted_problems, report.problem_count) == (3, 1, 4)
    assert "and 1 of other kinds" in str(report)


def test_values_that_differ_are_one_kind_of_problem(make_rows: MakeRows, tmp_path: Path) -> None:
    rows = make_rows(30)
    for i, row in enumerate(rows):
        row["data_source"] = i
    (finding,) = check_file(jsonl(tmp_path / "a.jsonl", *rows)).problems
    assert (finding.rows, finding.text) == (30, "field data_source: text is expected, not int 0")


def test_a_file_of_raw_rows(tmp_path: Path) -> None:
    """Bug bank A16: the file, and the columns that are missing, are named."""
    write_rows([{"question": "1+1?", "answer": "2"}], tmp_path / "raw.parquet")
    report = check_file(tmp_path / "raw.parquet")
    (problem,) = report.problems
    assert problem.places == [str(tmp_path / "raw.parquet")]
    assert "its columns (question, answer)" in problem.text and "data_source, prompt and reward_model" in problem.text
    assert report.files[0].schema is None and "not checked" in str(report)
    (problem,) = check_file(tmp_path / "raw.parquet", schema="rl").problems
    assert problem.places == [f"{tmp_path / 'raw.parquet'}, row 0"]
    assert problem.text.startswith("lacks data_source, prompt, reward_model; it has question, answer.")


def test_a_column_that_a_parquet_file_lacks_is_missing_in_every_row(make_rows: MakeRows, tmp_path: Path) -> None:
    rows = make_rows(50)
    for row in rows:
        del row["reward_model"]
    write_rows(rows, tmp_path / "a.parquet")
    report = check_file(tmp_path / "a.parquet")
    (problem,) = report.problems
    assert (problem.rows, report.files[0].faulty_rows, report.files[0].rows) == (50, 50, 50)
    assert problem.text.startswith("lacks reward_model; it has data_source, prompt, ability, extra_info.")


def test_the_schema_can_be_named(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", {"chosen": "Paris ", "rejected": "London"})
    assert not check_file(path).ok  # as preferences, which need a prompt
    report = check_file(path, schema="reward")
    assert report.ok and "1 reward rows (as asked for)" in str(report)
    with pytest.raises(ValueError, match="schema must be one of rl, sft, preference, reward, but is 'dpo'"):
        check_file(path, schema="dpo")  # type: ignore[arg-type]


def test_other_columns_and_rendered_prompts(make_rows: MakeRows, tmp_path: Path) -> None:
    rows = [{"question": "<s>hi", "origin": "a", "reward_model": row["reward_model"]} for row in make_rows(1)]
    config = DataConfig(prompt_key="question", reward_fn_key="origin", prompt_format="rendered")
    report = check_file(jsonl(tmp_path / "a.jsonl", *rows), config=config)
    assert report.ok and report.data_sources == {"a": 1}


# Files that cannot be read


def test_files_that_cannot_be_read_do_not_hide_the_others(make_rows: MakeRows, tmp_path: Path) -> None:
    write_rows(make_rows(100), tmp_path / "cut.parquet")
    content = (tmp_path / "cut.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(content[: len(content) // 2])
    (tmp_path / "nothing.parquet").touch()
    (tmp_path / "nothing.jsonl").touch()
    (tmp_path / "a.csv").write_text("a,b\n")
    (tmp_path / "array.json").write_text(json.dumps(make_rows(1)))
    write_rows(make_rows(3), tmp_path / "good.parquet")
    names = ["cut.parquet", "nothing.parquet", "nothing.jsonl", "a.csv", "array.json", "none.parquet", "x*.parquet"]
    report = check_file([tmp_path / name for name in [*names, "good.parquet"]])
    told = {place: finding.text for finding in report.problems for place in finding.places}
    for name, message in (
        ("cut.parquet", "cannot be read as Parquet; it may be truncated"),
        ("nothing.parquet", "cannot be read as Parquet"),
        ("nothing.jsonl", "the file is empty: it has 0 rows"),
        ("a.csv", "it is not a .parquet or .jsonl file"),
        ("array.json", "it is one JSON array; training reads JSONL"),
        ("none.parquet", "does not exist"),
        ("x*.parquet", "No file matches"),
    ):
        assert message in told[str(tmp_path / name)], name
    assert report.problem_count == len(names) and not report.ok
    assert [(file.schema, file.rows) for file in report.files if file.rows] == [("rl", 3)]


def test_an_empty_parquet_table(make_rows: MakeRows, tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(make_rows(1)).slice(0, 0), tmp_path / "a.parquet")
    (problem,) = check_file(tmp_path / "a.parquet").problems
    assert problem.text == "the file is empty: it has 0 rows"


def test_parquet_that_is_damaged_in_the_middle(make_rows: MakeRows, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = make_rows(200)
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=100)
    with pq.ParquetFile(path) as file:
        offset = file.metadata.row_group(1).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[offset : offset + 8] = b"\xff" * 8
    path.write_bytes(content)
    report = check_file(path)
    assert not report.ok and report.problems[-1].places == [str(path)]
    assert "cannot be read as Parquet" in report.problems[-1].text


def test_every_line_that_cannot_be_read_is_a_problem(make_rows: MakeRows, tmp_path: Path) -> None:
    good = make_rows(4)
    path = jsonl(
        tmp_path / "a.jsonl",
        b"{broken",
        good[0],
        b"",
        json.dumps(good[1]).encode().replace(b"math", b"m\xff"),
        b"[1, 2]",
        b'{"prompt": ',
        good[2],
        good[3],
    )
    report = check_file(path)
    assert (report.rows, report.files[0].faulty_rows, report.data_sources) == (7, 4, {"verl/arithmetic": 3})
    told = {place: finding.text for finding in report.problems for place in finding.places}
    for row, line, message in (
        (0, 1, "it is not JSON"),
        (2, 4, "the bytes are not UTF-8"),
        (3, 5, "a JSON object is expected, not list"),
        (4, 6, "it is not JSON"),
    ):
        assert message in told[f"{path}, row {row} (line {line})"]


def test_parquet_with_text_that_is_not_utf8(tmp_path: Path, make_rows: MakeRows) -> None:
    ends, content = pa.py_buffer(np.array([0, 1, 2, 3], np.int32)), pa.py_buffer(b"a\xffc")
    source = pa.Array.from_buffers(pa.string(), 3, [None, ends, content])
    table = pa.Table.from_pylist(make_rows(3))
    pq.write_table(table.set_column(0, "data_source", source), tmp_path / "a.parquet")
    (problem,) = check_file(tmp_path / "a.parquet").problems
    assert problem.places == [str(tmp_path / "a.parquet")]
    assert "row 1" in problem.text and "data_source" in problem.text and "not UTF-8" in problem.text


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_a_row_of_ten_megabytes(make_rows: MakeRows, tmp_path: Path, suffix: str) -> None:
    rows = make_rows(3)
    rows[1]["prompt"][0]["content"] = "中文" * (10 << 18)
    rows[2]["reward_model"] = "x" * (10 << 20)
    if suffix == ".parquet":
        for row in rows:
            row["reward_model"] = json.dumps(row["reward_model"])
        write_rows(rows, tmp_path / "a.parquet")
    else:
        jsonl(tmp_path / "a.jsonl", *rows)
    report = check_file(tmp_path / f"a{suffix}")
    (problem,) = report.problems
    assert problem.rows == (3 if suffix == ".parquet" else 1)
    assert problem.text.startswith("field reward_model: a dict with style and ground_truth is expected, not str")
    assert len(str(report)) < 2000


def test_a_prompt_of_text_where_messages_are_expected(make_rows: MakeRows, tmp_path: Path) -> None:
    rows = make_rows(3)
    for row in rows:
        row["prompt"] = "1+1="
    write_rows(rows, tmp_path / "a.parquet")
    (problem,) = check_file(tmp_path / "a.parquet").problems
    assert problem.rows == 3 and problem.places[0] == f"{tmp_path / 'a.parquet'}, row 0"
    assert problem.text.startswith("field prompt: a list of messages is expected, not text. Write it as [{role: user")


# Warnings


def test_what_makes_for_bad_training_is_a_warning(make_rows: MakeRows, tmp_path: Path) -> None:
    rows = make_rows(3)
    rows[0]["reward_model"] = {"style": "model", "ground_truth": None}
    rows[1]["reward_model"]["ground_truth"] = " "
    rows[2]["prompt"].append({"role": "assistant", "content": "4"})
    sft = [
        {"messages": [{"role": "assistant", "content": ""}, {"role": "user", "content": "more"}]},
        {"prompt": "a", "response": " "},
    ]
    pairs = [{"prompt": "a", "chosen": "b", "rejected": "b"}, {"prompt": "a", "chosen": "", "rejected": "b"}]
    names = []
    for name, some in (("rl", rows), ("sft", sft), ("pairs", pairs)):
        names.append(jsonl(tmp_path / f"{name}.jsonl", *some))
    report = check_file(names)
    assert report.ok
    told = [finding.text for finding in report.warnings]
    for message in (
        "field reward_model.ground_truth: it is empty; a reward function for style model must do without",
        "field reward_model.ground_truth: it holds nothing",
        "field prompt: the last message is the assistant's",
        "field messages[0].content: the assistant says nothing",
        "field messages: the last message is not the assistant's",
        "field response: it is empty",
        "field rejected: it is the same as chosen",
        "field chosen: it is empty",
    ):
        assert any(text.startswith(message) for text in told), message
    assert len(told) == 8 and "8 warnings:" in str(report)


def test_copies_of_rows_are_found_across_files(make_rows: MakeRows, tmp_path: Path) -> None:
    rows = make_rows(6)
    rows[2] = {**rows[0], "extra_info": {"split": "train", "index": 2}}
    write_rows(rows, tmp_path / "a.parquet")
    faulty = {**rows[1], "data_source": 5}
    path = jsonl(tmp_path / "b.jsonl", faulty, rows[4], rows[4], {**rows[1], "images": ["a.png"]}, rows[5], rows[5])
    (warning,) = check_file([tmp_path / "a.parquet", path]).warnings
    a = tmp_path / "a.parquet"
    assert warning.places == [
        f"{a}, row 2 (as {a}, row 0)",
        f"{path}, row 1 (as {a}, row 4)",
        f"{path}, row 2 (as {a}, row 4)",
    ]
    assert warning.rows == 5


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.text("ab", max_size=2) | st.binary(max_size=2) | st.dates(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


@settings(deadline=None)
@given(st.lists(_VALUES, max_size=12))
def test_copies_are_rows_with_equal_content(values: list[Any]) -> None:
    copies = Duplicates()
    seen: dict[str, int] = {}
    expected = []
    for number, value in enumerate(values):
        copies.add({"a": value, "b": number}, ["a", "missing"])
        first = seen.setdefault(repr(value), number)
        if first != number:
            expected.append((number, first))
    copies.add(None, ["a"])
    copies.add(None, ["a"])
    assert copies.find(100) == (len(expected), expected)


def test_a_manifest_of_another_file(make_rows: MakeRows, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    DataProcessor(lambda row, _: row).run(make_rows(3), path)
    assert check_file(path).warnings == []
    pq.write_table(pq.read_table(path).slice(1), path)
    (warning,) = check_file(path).warnings
    assert warning.places == [str(path)] and "a.parquet.manifest.json" in warning.text and "SHA-256" in warning.text
    manifest = tmp_path / "a.parquet.manifest.json"
    manifest.write_text(json.dumps({"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}))
    assert check_file(path).warnings == []
    manifest.write_text("[]")
    (warning,) = check_file(path).warnings
    assert warning.places == [str(manifest)] and "not what a DataProcessor writes" in warning.text


def test_a_column_that_is_no_data_source(make_rows: MakeRows, tmp_path: Path) -> None:
    rows = make_rows(1100)
    for i, row in enumerate(rows):
        row["data_source"] = f"source {i}"
    write_rows(rows, tmp_path / "a.parquet")
    sources = check_file(tmp_path / "a.parquet").data_sources
    assert len(sources) == 1001 and sources["(others)"] == 100 and sum(sources.values()) == 1100


# With a tokenizer


def test_prompts_are_measured(chatml: Any, make_rows: MakeRows, tmp_path: Path) -> None:
    rows = make_rows(600)
    for i in (1, 300, 599):
        rows[i]["prompt"][0]["content"] += "1" * 100
    write_rows(rows, tmp_path / "a.parquet")
    expected = [
        len(chatml.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=True, return_dict=False))
        for row in rows
    ]

    def check(**config: Any) -> Any:
        return check_file(tmp_path / "a.parquet", config=DataConfig(max_prompt_length=100, **config), tokenizer=chatml)

    report = check()
    assert report.lengths is not None
    assert (report.lengths.rows, report.lengths.limit, report.lengths.over) == (600, 100, 3)
    assert report.lengths.shortest == min(expected) and report.lengths.longest == max(expected)
    assert report.lengths.median == int(np.median(expected))
    (problem,) = report.problems
    assert problem.rows == 3 and problem.places[1].endswith("row 300")
    assert problem.text.startswith(f"the prompt has {expected[1]} tokens, but data.max_prompt_length is 100. Raise")
    assert "3 over data.max_prompt_length=100" in str(report)
    for config, words in (({"truncation": "left"}, "it is cut"), ({"filter_overlong_prompts": True}, "it is left out")):
        report = check(**config)
        assert report.ok and words in report.warnings[0].text and report.warnings[0].rows == 3


def test_prompts_that_the_template_refuses(
    make_bos_tokenizer: Callable[[str | None], Any], make_rows: MakeRows, tmp_path: Path
) -> None:
    rows = make_rows(20)
    for i in range(0, 20, 3):
        rows[i]["prompt"][0]["role"] = "alien"
    rows[1]["prompt"][0]["content"] = ""
    tokenizer = make_bos_tokenizer(
        "{{ messages[0]['content'] }}"
        "{% if messages[0]['role'] != 'user' %}{{ raise_exception('no ' + messages[0]['role']) }}{% endif %}"
    )
    path = jsonl(tmp_path / "a.jsonl", *rows)
    report = check_file(path, tokenizer=tokenizer)
    refused, empty = report.problems
    assert refused.rows == 7 and "refuses these messages: no alien" in refused.text
    assert refused.places == [f"{path}, row {i} (line {i + 1})" for i in (0, 3, 6)]
    assert "renders to 0 tokens" in empty.text and empty.places == [f"{path}, row 1 (line 2)"]
    assert report.lengths is not None and report.lengths.rows == 12
    assert report.files[0].faulty_rows == 8


def test_a_tokenizer_without_a_template(
    make_bos_tokenizer: Callable[[str | None], Any], make_rows: MakeRows, tmp_path: Path
) -> None:
    (problem,) = check_file(jsonl(tmp_path / "a.jsonl", *make_rows(5)), tokenizer=make_bos_tokenizer(None)).problems
    assert problem.rows == 5 and "has no chat template" in problem.text


def test_conversations_and_pairs_are_measured(chatml: Any, tmp_path: Path) -> None:
    def length(*messages: dict[str, str]) -> int:
        return len(chatml.apply_chat_template(list(messages), tokenize=True, return_dict=False))

    user, short, long = (
        {"role": role, "content": text} for role, text in (("user", "q"), ("assistant", "a"), ("assistant", "abcdef"))
    )
    sft = jsonl(tmp_path / "sft.jsonl", {"messages": [user, short]})
    pairs = jsonl(tmp_path / "pairs.jsonl", {"prompt": "q", "chosen": "a", "rejected": "abcdef"})
    report = check_file([sft, pairs], tokenizer=chatml, config=DataConfig(max_prompt_length=1))
    assert report.ok and report.lengths is not None and report.lengths.limit is None
    assert (report.lengths.shortest, report.lengths.longest) == (length(user, short), length(user, long))
