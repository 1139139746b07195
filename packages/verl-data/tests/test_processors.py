import json
import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from verl_data import DataConfig, DataError, PromptLoader, read_rows
from verl_data.processors.arithmetic import addition_rows, prepare_addition, sft_pairs
from verl_data.processors.gsm8k import Gsm8kProcessor, final_answer, prepare_gsm8k
from verl_data.processors.gsm8k_multiturn_sft import prepare_gsm8k_multiturn_sft
from verl_data.processors.gsm8k_multiturn_w_tool import prepare_gsm8k_multiturn_w_tool
from verl_data.processors.gsm8k_tool_agent_loop import prepare_gsm8k_tool_agent_loop

ROWS = [
    {"question": "Tom has 2 apples and eats 1.\nHow many are left?", "answer": "2-1=<<2-1=1>>1\n#### 1"},
    {"question": "What is the price?", "answer": "It is negative.\n#### -1,234.5"},
    {"question": "How many \u2013 in total?", "answer": "Many.\n#### 1,000,000"},
]
#: GSM8K itself, where the machine has a copy: VERL_GSM8K names the folder.
GSM8K = Path(os.environ.get("VERL_GSM8K", "/nonexistent"))


def copy_of_gsm8k(folder: Path, test_rows: list[dict[str, str]] = ROWS) -> Path:
    folder.mkdir()
    for split, rows in (("train", ROWS), ("test", test_rows)):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_gsm8k_rows_have_the_published_columns(tmp_path: Path) -> None:
    manifests = prepare_gsm8k(tmp_path / "out", dataset_path=copy_of_gsm8k(tmp_path / "copy"))
    assert [manifest.rows_written for manifest in manifests.values()] == [3, 3]
    table = pq.read_table(tmp_path / "out" / "test.parquet")
    text = pa.string()
    assert table.schema.names == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
    assert table.schema.field("prompt").type.value_type == pa.struct([("role", text), ("content", text)])
    assert table.schema.field("reward_model").type == pa.struct([("style", text), ("ground_truth", text)])
    assert table.schema.field("extra_info").type == pa.struct(
        [("split", text), ("index", pa.int64()), ("answer", text), ("question", text)]
    )
    instruction = ' Let\'s think step by step and output the final answer after "####".'
    assert table.to_pylist()[1] == {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": ROWS[1]["question"] + instruction}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "-1234.5"},
        "extra_info": {"split": "test", "index": 1, "answer": ROWS[1]["answer"], "question": ROWS[1]["question"]},
    }
    assert [row["reward_model"]["ground_truth"] for row in table.to_pylist()] == ["1", "-1234.5", "1000000"]


def test_gsm8k_as_the_hub_lays_it_out(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / "hub" / "main").mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "hub" / "main" / f"{split}-00000-of-00001.parquet")
    prepare_gsm8k(tmp_path, dataset_path=tmp_path / "hub")
    assert len(list(read_rows(tmp_path / "train.parquet"))) == 3


def test_gsm8k_faults(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='no "#### " and number'):
        final_answer("The answer is 5.")
    copy = copy_of_gsm8k(tmp_path / "copy", [{"question": "?", "answer": "5"}])
    with pytest.raises(DataError, match=r"test.jsonl, row 0 \(line 1\): ValueError: the solution has no"):
        prepare_gsm8k(tmp_path, dataset_path=copy)
    with pytest.raises(FileNotFoundError, match=r"holds none of train\.parquet, train\.jsonl"):
        prepare_gsm8k(tmp_path, dataset_path=tmp_path / "none")


def test_gsm8k_rows_that_are_none_name_the_column(tmp_path: Path) -> None:
    for row, problem in (
        ({"problem": "?", "answer": "#### 5"}, "there is no column 'question'; there are 'problem', 'answer'"),
        ({"question": "?", "answer": 5}, "column 'answer': text is expected, not int 5"),
        ({"question": " ", "answer": "#### 5"}, "column 'question': text is expected, not str ' '"),
    ):
        with pytest.raises(DataError, match=re.escape(problem)):
            Gsm8kProcessor("train").run([row], tmp_path / "out.parquet")
    manifest = Gsm8kProcessor("train", on_error="skip").run([*ROWS, {}], tmp_path / "out.parquet")
    assert (manifest.rows_written, manifest.rows_failed) == (3, 1)


def test_a_folder_that_datasets_saved(tmp_path: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": rows, "test": rows}).save_to_disk(str(tmp_path / "saved"))
    manifests = prepare_gsm8k(tmp_path, dataset_path=tmp_path / "saved")
    assert [manifest.rows_written for manifest in manifests.values()] == [3, 3]


def test_gsm8k_with_a_tool(tmp_path: Path) -> None:
    copy = copy_of_gsm8k(tmp_path / "copy")
    prepare_gsm8k(tmp_path / "plain", dataset_path=copy)
    prepare_gsm8k_multiturn_w_tool(tmp_path / "tool", dataset_path=copy)
    prepare_gsm8k_tool_agent_loop(tmp_path / "agent", dataset_path=copy)
    for split in ("train", "test"):
        files = [tmp_path / kind / f"{split}.parquet" for kind in ("plain", "tool", "agent")]
        for plain, tool, agent in zip(*map(read_rows, files), strict=True):
            truth = plain["reward_model"]["ground_truth"]
            assert agent == {**tool, "agent_name": "tool_agent"}
            system, *prompt = tool.pop("prompt")
            assert prompt == plain.pop("prompt")
            assert system["role"] == "system" and "`calc_gsm8k_reward`" in system["content"]
            extra = tool.pop("extra_info")
            assert extra.pop("need_tools_kwargs") is True
            assert extra.pop("tools_kwargs") == {"calc_gsm8k_reward": {"create_kwargs": {"ground_truth": truth}}}
            assert extra == plain.pop("extra_info")
            assert tool == plain


def test_gsm8k_as_conversations(tmp_path: Path) -> None:
    prepare_gsm8k_multiturn_sft(tmp_path, dataset_path=copy_of_gsm8k(tmp_path / "copy"))
    instruction = ' Let\'s think step by step and output the final answer after "####".'
    assert list(read_rows(tmp_path / "train.parquet")) == [
        {
            "messages": [
                {"role": "user", "content": row["question"] + instruction},
                {"role": "assistant", "content": row["answer"]},
            ]
        }
        for row in ROWS
    ]


@pytest.mark.skipif(not GSM8K.is_dir(), reason="VERL_GSM8K does not name a copy of GSM8K")
def test_every_row_of_gsm8k(tmp_path: Path) -> None:
    manifests = prepare_gsm8k(tmp_path, dataset_path=GSM8K)
    assert {split: manifest.rows_written for split, manifest in manifests.items()} == {"train": 7473, "test": 1319}
    for split in manifests:
        raw = [json.loads(line) for line in (GSM8K / f"{split}.jsonl").read_text(encoding="utf-8").strip().split("\n")]
        for index, (row, source) in enumerate(zip(read_rows(tmp_path / f"{split}.parquet"), raw, strict=True)):
            assert row["prompt"][0]["content"].startswith(source["question"] + " Let's think step by step")
            assert row["reward_model"]["ground_truth"] == source["answer"].split("#### ")[-1].replace(",", "").strip()
            assert row["extra_info"] == {"split": split, "index": index, **source}


def test_addition_covers_all_pairs_in_disjoint_parts(tmp_path: Path) -> None:
    train, held_out = addition_rows(10, 39, validation=100, seed=3)
    assert (len(train), len(held_out)) == (800, 100)
    questions = [row["prompt"][0]["content"] for row in train + held_out]
    assert len(set(questions)) == 900
    for row in train + held_out:
        found = re.fullmatch(r"(\d+)\+(\d+)=", row["prompt"][0]["content"])
        assert found is not None
        assert all(10 <= int(operand) <= 39 for operand in found.groups())
        assert row["reward_model"] == {"style": "rule", "ground_truth": str(sum(map(int, found.groups())))}
        assert row["data_source"] == "verl/arithmetic"
    assert addition_rows(10, 39, validation=100, seed=3) == (train, held_out)
    assert addition_rows(10, 39, validation=100, seed=4)[1] != held_out
    assert sft_pairs(train[:1]) == [
        {"prompt": train[0]["prompt"], "response": train[0]["reward_model"]["ground_truth"]}
    ]
    for bad in ({"validation": 900}, {"validation": 0}):
        with pytest.raises(ValueError, match="Of 900 problems between 1 and 899"):
            addition_rows(10, 39, seed=0, **bad)
    with pytest.raises(ValueError, match="natural numbers"):
        addition_rows(5, 4, validation=1, seed=0)


def test_addition_loads_for_training(tmp_path: Path, chatml: Any) -> None:
    manifests = prepare_addition(tmp_path, low=10, high=19, validation=20, seed=0)
    assert {name: manifest.rows_written for name, manifest in manifests.items()} == {"train": 80, "validation": 20}
    loader = PromptLoader(tmp_path / "train.parquet", chatml, DataConfig(train_batch_size=8), training=True)
    assert loader.steps_per_epoch == 10
    assert len(PromptLoader(tmp_path / "validation.parquet", chatml, DataConfig(), training=False).all_prompts()) == 20
