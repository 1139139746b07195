"""`verl-cli generate`: every row with its responses, in one Parquet file that is whole or not there."""

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer
from typer.testing import CliRunner
from verl_cli.evaluation import generation
from verl_cli.main import app
from verl_data import read_rows, write_rows


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def run(*arguments: object) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def failure(*arguments: object) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stderr.count("error: ") == 1
    return str(result.stderr[result.stderr.index("error: ") :])


SAMPLED = ("--n", 3, "--temperature", 1, "--max-tokens", 6, "data.max_prompt_length=16", "trainer.device=cpu")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """Rows with a prompt and columns of their own, but nothing to score by."""
    rows = [
        {"id": number, "prompt": [{"role": "user", "content": f"1{number}+11="}], "tags": ["x"] * number, "note": None}
        for number in range(7)
    ]
    write_rows(rows, tmp_path / "prompts.parquet")
    return tmp_path / "prompts.parquet"


@pytest.mark.alone
def test_every_row_keeps_its_columns_and_gets_its_responses(assets: Path, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out.parquet"
    told = run("generate", assets / "model", prompts, out, *SAMPLED)
    assert f"{out}: 7 rows with 21 responses" in told
    before, after = list(read_rows(prompts)), list(read_rows(out))
    assert [{name: row[name] for name in before[0]} for row in after] == before
    assert list(after[0]) == [*before[0], "responses", "response_token_ids", "finish_reasons"]
    tokenizer = AutoTokenizer.from_pretrained(assets / "model")
    for row in after:
        assert len(row["responses"]) == len(row["response_token_ids"]) == len(row["finish_reasons"]) == 3
        texts = tokenizer.batch_decode(row["response_token_ids"], skip_special_tokens=True)
        assert row["responses"] == texts
        for ids, reason in zip(row["response_token_ids"], row["finish_reasons"], strict=True):
            assert reason == ("stop" if ids[-1] == tokenizer.eos_token_id else "length")
            assert reason == "stop" or len(ids) == 6
    assert any(len(set(row["responses"])) > 1 for row in after)
    assert [path.name for path in out.parent.iterdir()] == ["out.parquet"]


def test_the_responses_are_those_that_an_evaluation_scores(assets: Path, tmp_path: Path) -> None:
    common = (assets / "model", assets / "validation.parquet")
    run("generate", *common, tmp_path / "out.parquet", *SAMPLED)
    run("eval", *common, *SAMPLED, "--out", tmp_path / "eval")
    samples = [json.loads(line) for line in (tmp_path / "eval" / "val_samples.jsonl").read_text().splitlines()]
    generated = [text for row in read_rows(tmp_path / "out.parquet") for text in row["responses"]]
    assert generated == [sample["generation"] for sample in samples]


def test_a_few_prompts_at_a_time_give_the_same_file(assets: Path, prompts: Path, tmp_path: Path) -> None:
    whole, pieces = tmp_path / "whole.parquet", tmp_path / "pieces.parquet"
    run("generate", assets / "model", prompts, whole, *SAMPLED)
    run("generate", assets / "model", prompts, pieces, *SAMPLED, "actor_rollout_ref.rollout.max_num_seqs=1")
    assert pq.read_table(whole).equals(pq.read_table(pieces))


def test_json_lines_and_finished_text(assets: Path, tmp_path: Path) -> None:
    rows: Sequence[dict[str, Any]] = [{"text": "10+10=", "level": 1}, {"text": "10+11=", "hint": "carry"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out.parquet"
    run(
        *("generate", assets / "model", tmp_path / "rows.jsonl", out),
        *("data.prompt_key=text", "data.prompt_format=rendered", "--max-tokens", 3, "data.max_prompt_length=16"),
    )
    found = list(read_rows(out))
    assert [row["text"] for row in found] == ["10+10=", "10+11="]
    assert [(row["level"], row["hint"]) for row in found] == [(1, None), (None, "carry")]
    assert all(len(row["responses"]) == 1 for row in found)


def test_rows_that_are_left_out_are_told(assets: Path, tmp_path: Path) -> None:
    rows = [{"prompt": [{"role": "user", "content": "1" * length}]} for length in (2, 40, 3)]
    write_rows(rows, tmp_path / "rows.parquet")
    arguments = ("generate", assets / "model", tmp_path / "rows.parquet", tmp_path / "out.parquet", *SAMPLED)
    assert "row 1: the prompt has 40 tokens" in failure(*arguments)
    assert not (tmp_path / "out.parquet").exists()
    result = invoke(*arguments, "data.filter_overlong_prompts=true")
    assert "1 of the prompts are longer than data.max_prompt_length and left out" in result.stderr
    assert [row["prompt"] for row in read_rows(tmp_path / "out.parquet")] == [rows[0]["prompt"], rows[2]["prompt"]]


def test_a_file_is_replaced_only_when_asked(assets: Path, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    out.write_text("precious")
    assert "exists already" in failure("generate", assets / "model", prompts, out, *SAMPLED)
    assert out.read_text() == "precious"
    run("generate", assets / "model", prompts, out, *SAMPLED, "--overwrite")
    assert len(list(read_rows(out))) == 7


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appears_meanwhile_is_left_alone(
    assets: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    out = tmp_path / "out.parquet"

    def slow(*arguments: Any) -> int:
        written = write_rows(*arguments)
        out.write_text("precious")
        return written

    def no_links(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(generation, "write_rows", slow)
    if not links:  # as on some network file systems
        monkeypatch.setattr(os, "link", no_links)
    message = failure("generate", assets / "model", prompts, out, *SAMPLED)
    assert out.read_text() == "precious"
    (kept,) = tmp_path.glob(".out.parquet.*")
    assert f"was left alone. The responses are in {kept}." in message
    assert len(list(read_rows(kept))) == 7


def test_a_file_system_without_links_works_as_well(
    assets: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", no_links)
    run("generate", assets / "model", prompts, tmp_path / "out.parquet", *SAMPLED)
    assert len(list(read_rows(tmp_path / "out.parquet"))) == 7


def test_what_fails_half_way_leaves_nothing(assets: Path, prompts: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    message = failure(
        *("generate", assets / "model", prompts, tmp_path / "out.parquet", *SAMPLED[:-2], "trainer.device=cpu"),
        *("data.max_prompt_length=70", "actor_rollout_ref.model.override_config={max_position_embeddings: 3}"),
    )
    assert "no response fits" in message
    assert sorted(tmp_path.iterdir()) == before


def test_names_that_cannot_be(assets: Path, prompts: Path, tmp_path: Path) -> None:
    assert "ends with .parquet" in failure("generate", assets / "model", prompts, "data.max_prompt_length=16")
    folder = tmp_path / "folder.parquet"
    folder.mkdir()
    assert "is a folder" in failure("generate", assets / "model", prompts, folder)
    assert "is the file that the prompts come from" in failure(
        "generate", assets / "model", prompts, prompts, *SAMPLED, "--overwrite"
    )
    answered = tmp_path / "answered.parquet"
    run("generate", assets / "model", prompts, answered, *SAMPLED)
    again = failure("generate", assets / "model", answered, tmp_path / "again.parquet", *SAMPLED)
    assert "there is a column responses already" in again


def test_keys_of_scoring_are_refused(assets: Path, prompts: Path, tmp_path: Path) -> None:
    message = failure(
        *("generate", assets / "model", prompts, tmp_path / "out.parquet", *SAMPLED),
        *(f"reward.custom_reward_function.path={assets / 'reward.py'}", "algorithm.gamma=0.9"),
    )
    assert "has no effect in this run. Nothing is scored here. Leave it out, or use verl-cli eval." in message
    assert "algorithm.gamma=0.9 has no effect in this run. It belongs to training" in message
