"""Rows shown as the model is given them."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from verl_data.config import DataConfig
from verl_data.errors import DataError
from verl_data.row_writer import write_rows
from verl_data.show import show_rows

MakeRows = Callable[[int], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def reading(chatml: Any) -> Any:
    """`chatml` with a decoder that writes characters side by side."""
    from tokenizers import decoders

    tokenizer = copy.deepcopy(chatml)
    tokenizer.backend_tokenizer.decoder = decoders.Fuse()
    return tokenizer


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_rendered_prompt_with_its_special_tokens(reading: Any, make_rows: MakeRows, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_rows(make_rows(5), path)
    rows = show_rows(path, reading)
    assert [row.place for row in rows] == [f"{path}, row {i}" for i in range(3)]
    (part,) = rows[1].parts
    assert part.text == "<|im_start|>user\n1+1=<|im_end|>\n<|im_start|>assistant\n"
    expected = reading.apply_chat_template(
        make_rows(2)[1]["prompt"], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert part.tokens == len(expected)
    assert rows[1].columns["data_source"] == "'verl/arithmetic'" and "'2'" in rows[1].columns["reward_model"]
    assert "prompt" not in rows[1].columns
    assert f"prompt, {part.tokens} tokens:\n    <|im_start|>user\n    1+1=<|im_end|>" in str(rows[1])


def test_rows_by_number(make_rows: MakeRows, tmp_path: Path) -> None:
    write_rows(make_rows(5), tmp_path / "a.parquet")
    path = jsonl(tmp_path / "a.jsonl", *make_rows(5))
    for file, line in ((tmp_path / "a.parquet", ""), (path, " (line 5)")):
        (row,) = show_rows(file, first=4)
        assert row.place == f"{file}, row 4{line}"
        assert [(part.name, part.tokens, part.text) for part in row.parts] == [("prompt", None, "user: 4+4=")]
        with pytest.raises(DataError, match="has 5 rows, counted from 0, so there is no row 5"):
            show_rows(file, first=5)
    with pytest.raises(ValueError, match="count at least 1"):
        show_rows(path, count=0)
    with pytest.raises(ValueError, match="schema must be one of"):
        show_rows(path, schema="x")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="names 2 files; show one at a time"):
        show_rows(tmp_path / "a.*")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        show_rows(tmp_path / "none.parquet")


def test_what_is_trained_is_marked(reading: Any, tmp_path: Path) -> None:
    user, answer = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
    path = jsonl(tmp_path / "sft.jsonl", {"messages": [user, answer, user, answer]}, {"prompt": "q", "response": "a"})
    turn = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n⟦a<|im_end|>⟧\n"
    rows = show_rows(path, reading)
    assert [(row.schema, [(part.name, part.text) for part in row.parts]) for row in rows] == [
        ("sft", [("conversation", turn * 2)]),
        ("sft", [("conversation", turn)]),
    ]


def test_both_sides_of_a_pair(reading: Any, tmp_path: Path) -> None:
    history = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "y"},
        {"role": "user", "content": "q"},
    ]
    row = {"prompt": history, "chosen": "good", "rejected": "bad", "score": 1}
    (shown,) = show_rows(jsonl(tmp_path / "a.jsonl", row), reading)
    # Only the answers that differ are marked, not the assistant's turn in the prompt.
    start = (
        "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\ny<|im_end|>\n"
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    )
    assert [(part.name, part.text) for part in shown.parts] == [
        ("chosen", f"{start}⟦good<|im_end|>⟧\n"),
        ("rejected", f"{start}⟦bad<|im_end|>⟧\n"),
    ]
    assert shown.columns == {"score": "1"}


def test_finished_text(reading: Any, tmp_path: Path) -> None:
    config = DataConfig(prompt_format="rendered")
    pair = {"prompt": "<|im_start|>q", "chosen": "a<|im_end|>", "rejected": "b"}
    (shown,) = show_rows(jsonl(tmp_path / "a.jsonl", pair), reading, config=config)
    assert [part.text for part in shown.parts] == ["<|im_start|>q⟦a<|im_end|>⟧", "<|im_start|>q⟦b<|im_end|>⟧"]
    (shown,) = show_rows(jsonl(tmp_path / "b.jsonl", {"prompt": "q", "response": "a"}), reading, config=config)
    assert [part.text for part in shown.parts] == ["q⟦a<|im_end|>⟧"]


def test_a_row_that_cannot_be_rendered_does_not_hide_the_next(
    make_bos_tokenizer: Callable[[str | None], Any], make_rows: MakeRows, tmp_path: Path
) -> None:
    rows = make_rows(4)
    for row, text in zip(rows, ("hi", "there", "a", "b"), strict=True):
        row["prompt"][0]["content"] = text
    tokenizer = make_bos_tokenizer(
        "{% if messages[0]['content'] == 'there' %}{{ raise_exception('no there') }}{% endif %}"
        "<s>{{ messages[0]['content'] }}"
    )
    rows[2]["prompt"] = "hi"
    path = jsonl(tmp_path / "a.jsonl", *rows)
    path.write_bytes(path.read_bytes() + b"{\n")
    shown = show_rows(path, tokenizer, count=9)
    assert [row.place for row in shown] == [f"{path}, row {i} (line {i + 1})" for i in range(5)]
    assert [len(row.problems) for row in shown] == [0, 1, 1, 0, 1]
    assert "refuses these messages: no there" in shown[1].problems[0] and shown[1].parts[0].text == "user: there"
    assert shown[2].problems[0].startswith("field prompt: a list of messages is expected, not text")
    assert "it is not JSON" in shown[4].problems[0]
    assert "  problem: " in str(shown[1]) and shown[3].parts[0].tokens == 2


def test_raw_rows_are_shown_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("question,answer\n1+1?,2\n")
    (shown,) = show_rows(tmp_path / "a.csv")
    assert shown.schema is None and shown.columns == {"question": "'1+1?'", "answer": "'2'"}
    assert "rl needs data_source, prompt and reward_model" in shown.problems[0]


def test_long_values_are_shortened_and_nothing_is_sent_to_the_terminal(make_rows: MakeRows, tmp_path: Path) -> None:
    rows = make_rows(1)
    rows[0]["prompt"] = [
        {"role": "system", "content": [{"type": "text", "text": "hi"}]},
        {"role": "user", "content": "a\x1b[31mb\u202ec\td中文\ud83d\u2028e\u200bf"},
        {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]},
    ]
    rows[0]["extra_info"] = {"long": "x" * 10_000, "list": list(range(1000))}
    (shown,) = show_rows(jsonl(tmp_path / "a.jsonl", *rows))
    assert shown.parts[0].text == (
        "system: [{'text': 'hi', 'type': 'text'}]\n"
        "user: a\\x1b[31mb\\u202ec\td中文\\ud83d\\u2028e\\u200bf\n"
        "assistant:  {'tool_calls': [{'name': 'f'}]}"
    )
    assert len(shown.columns["extra_info"]) < 400
    assert "\x1b" not in str(shown)
    str(shown).encode()


def test_names_of_files_do_not_reach_the_terminal_either(make_rows: MakeRows, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a\x1b[31m\nb.jsonl", *make_rows(1))
    (shown,) = show_rows(path)
    assert shown.place == f"{tmp_path}/a\\x1b[31m\\nb.jsonl, row 0 (line 1)"
