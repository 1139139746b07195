"""Rows with columns of any name."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from verl_data import DataError, read_rows
from verl_data.processors.jsonl import ColumnMapping, JsonlProcessor, fill, main

Row = dict[str, Any]
ROWS: list[Row] = [
    {"question": "几点关门", "answer": "22:00", "id": 7, "tags": ["hours"]},
    {"question": "1+1?", "answer": 2, "id": 8, "tags": []},
]


def run(rows: list[Row], output: Path, **names: str) -> list[Row]:
    JsonlProcessor(ColumnMapping(**names)).run(rows, output)
    return list(read_rows(output))


def user(text: str) -> Row:
    return {"role": "user", "content": text}


def test_rl_rows(tmp_path: Path) -> None:
    names = {"prompt": "question", "answer": "answer", "data_source": "me/faq"}
    assert run(ROWS, tmp_path / "out.parquet", **names)[0] == {
        "data_source": "me/faq",
        "prompt": [user("几点关门")],
        "reward_model": {"style": "rule", "ground_truth": "22:00"},
        "extra_info": {"split": "train", "index": 0, "id": 7, "tags": ["hours"]},
    }
    full = {"answer": "answer", "data_source": "me/faq", "ability": "faq", "system": "Be brief.", "split": "test"}
    row = run(ROWS, tmp_path / "out.parquet", template="{question} {{{id}}} Answer briefly.", **full)[1]
    assert row["prompt"] == [{"role": "system", "content": "Be brief."}, user("1+1? {8} Answer briefly.")]
    assert row["ability"] == "faq"
    assert row["reward_model"]["ground_truth"] == "2"  # one column, one type: beside "22:00" it is text
    # A template takes its columns' text, and they stay known
    assert row["extra_info"] == {"split": "test", "index": 1, "question": "1+1?", "id": 8, "tags": []}


def test_sft_and_preference_rows(tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    extra = {"split": "train", "index": 0}
    assert run([{"q": "Hi", "a": "Hello"}], output, prompt="q", response="a") == [
        {"prompt": [user("Hi")], "response": "Hello", "extra_info": extra}
    ]
    talk = [user("Hi"), {"role": "assistant", "content": "Hello"}]
    assert run([{"talk": talk}], output, messages="talk", system="Be kind.") == [
        {"messages": [{"role": "system", "content": "Be kind."}, *talk], "extra_info": extra}
    ]
    pair = {"talk": talk[:1], "good": talk[1:], "bad": [{"role": "assistant", "content": "What?"}]}
    assert run([pair], output, prompt="talk", chosen="good", rejected="bad") == [
        {"prompt": talk[:1], "chosen": pair["good"], "rejected": pair["bad"], "extra_info": extra}
    ]
    texts = {"q": "Hi", "good": "Hello", "bad": "What?"}
    assert run([texts], output, prompt="q", chosen="good", rejected="bad") == [
        {"prompt": [user("Hi")], "chosen": "Hello", "rejected": "What?", "extra_info": extra}
    ]


def test_columns_with_a_meaning_stay_and_extra_info_grows(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
    row = {"q": "Time?", "a": "5", "tools": [tool], "agent_name": "tool_agent", "extra_info": {"index": 41, "level": 2}}
    assert run([row], tmp_path / "out.parquet", prompt="q", answer="a", data_source="me/x") == [
        {
            "data_source": "me/x",
            "prompt": [user("Time?")],
            "reward_model": {"style": "rule", "ground_truth": "5"},
            "tools": [tool],
            "agent_name": "tool_agent",
            "extra_info": {"split": "train", "index": 41, "level": 2},
        }
    ]


@pytest.mark.parametrize(
    ("row", "names", "problem"),
    [
        ({"q": "a", "b": "c"}, {"prompt": "question"}, "there is no column 'question'; there are 'q', 'b'"),
        ({"q": None, "b": "c"}, {"prompt": "q"}, "column 'q': text is expected, not nothing"),
        ({"q": 5, "b": "c"}, {"prompt": "q"}, "column 'q': text is expected, not int 5"),
        ({"q": "  ", "b": "c"}, {"prompt": "q"}, "column 'q': text is expected, not str '  '"),
        ({"q": "a", "b": ""}, {"prompt": "q"}, "column 'b': an answer is expected, not an empty text"),
        ({"q": [{"role": "user"}], "b": "c"}, {"prompt": "q"}, "column 'q'[0].content: text is expected"),
        ({"q": "a", "b": "c"}, {"template": "{x}"}, "no column 'x'; there are 'q', 'b'. For braces"),
        ({"q": ["a"], "b": "c"}, {"template": "{q}"}, "column 'q': text or a number is expected, not list"),
        ({"q": "a", "b": "c", "extra_info": "d"}, {"prompt": "q"}, "column 'extra_info': a dict is expected"),
        (
            {"q": [{"role": "system", "content": "a"}], "b": "c"},
            {"prompt": "q", "system": "s"},
            "the messages begin with a system message already",
        ),
    ],
)
def test_a_row_that_does_not_fit(row: Row, names: dict[str, str], problem: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 0: .*" + re.escape(problem)):
        run([row], tmp_path / "out.parquet", answer="b", data_source="me/x", **names)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ({"prompt": "q"}, "Given: none"),
        ({"prompt": "q", "answer": "a", "response": "b"}, "Given: --answer and --response"),
        ({"prompt": "q", "answer": "a"}, "--answer and --data_source"),
        ({"prompt": "q", "chosen": "a"}, "both --chosen and --rejected"),
        ({"response": "a"}, "--prompt COLUMN or --template TEXT"),
        ({"response": "a", "prompt": "q", "template": "{q}"}, "--prompt COLUMN or --template TEXT"),
        ({"messages": "m", "prompt": "q"}, "with --messages neither"),
        ({"response": "a", "prompt": "q", "ability": "x"}, "--ability is for RL rows"),
    ],
)
def test_a_mapping_that_makes_no_row(names: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        ColumnMapping(**names)


def test_braces_of_a_template() -> None:
    assert fill(r"{q}: \boxed{{}}, {{x}} and {n}", {"q": "{a}", "n": 1.5}) == r"{a}: \boxed{}, {x} and 1.5"


def test_as_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    (tmp_path / "b.csv").write_text("question,answer,id\n几点开门,8:00,9\n", encoding="utf-8")
    output = tmp_path / "out.parquet"
    mapping = ["--prompt", "question", "--answer", "answer", "--data_source", "me/faq"]
    assert main([str(tmp_path / "a.jsonl"), str(tmp_path / "b.csv"), str(output), *mapping]) == 0
    assert capsys.readouterr().out.startswith("out.parquet: 3 rows read, 3 written")
    assert [row["extra_info"]["id"] for row in read_rows(output)] == ["7", "8", "9"]
    output.unlink()
    (tmp_path / "a.jsonl").write_text('{"question": "?"}\n')
    assert main([str(tmp_path / "a.jsonl"), str(output), *mapping]) == 1
    assert "a.jsonl, row 0 (line 1): DataError: there is no column 'answer'; there are 'question'" in (
        capsys.readouterr().err
    )
    assert not output.exists()
    assert main([str(tmp_path / "a.jsonl"), str(output), "--prompt", "question"]) == 1
    assert "--answer (RL), --response (SFT)" in capsys.readouterr().err
