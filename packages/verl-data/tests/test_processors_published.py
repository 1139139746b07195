"""MATH, HellaSwag, HH-RLHF, DAPO, AIME and the toy conversations: raw rows in their published shape, exact fields."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_data import DataError, read_rows
from verl_data.processors.aime2024_multiturn_w_tool import prepare_aime2024_multiturn_w_tool
from verl_data.processors.boxed import last_boxed
from verl_data.processors.dapo_multiturn_w_tool import prepare_dapo_multiturn_w_tool
from verl_data.processors.full_hh_rlhf import STAGES, prepare_full_hh_rlhf
from verl_data.processors.hellaswag import clean, prepare_hellaswag
from verl_data.processors.math_dataset import prepare_math_dataset
from verl_data.processors.multiturn import prepare_multiturn

Row = dict[str, Any]


def jsonl(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


# MATH


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        (r"So $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (r"First \boxed{3}, no: \boxed{4}.", "4"),
        (r"The answer is \fbox{ 12 }.", "12"),
        (r"\boxed{1} and then \fbox{2}", "2"),
        (r"We get $\boxed 5$ apples.", "5"),
        (r"\boxed 5", "5"),
        (r"$\boxed\frac12$", r"\frac12"),
        (r"\boxed{\left\{x \mid x^{2} > 1\right.}", r"\left\{x \mid x^{2} > 1\right."),
        (r"\boxed{\begin{pmatrix} 1 \\ {2} \end{pmatrix}}", r"\begin{pmatrix} 1 \\ {2} \end{pmatrix}"),
        (r"\boxed{a\\}", r"a\\"),
        (r"\boxed {7}", "7"),
        ("\\boxed{\n3\n}", "3"),
    ],
)
def test_the_last_box(solution: str, answer: str) -> None:
    assert last_boxed(solution) == answer


@pytest.mark.parametrize(
    ("solution", "problem"),
    [
        ("The answer is 5.", r"no \boxed answer; it ends with 'The answer is 5.'"),
        (r"\boxedfoo{5}", r"no \boxed answer"),
        (r"\boxed{1} or \boxed{\frac{1}{2}", "empty or never closed"),
        (r"\boxed{ }", "empty or never closed"),
        (r"\boxed", "empty or never closed"),
    ],
)
def test_a_solution_without_an_answer(solution: str, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        last_boxed(solution)


BALANCED = st.recursive(
    st.text("ab1 ^_", max_size=4),
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(lambda x: "{" + "".join(x) + "}"),
)


@given(st.lists(BALANCED, min_size=1, max_size=4), st.text("ab {}$.", max_size=10))
@settings(deadline=None)
def test_braces_balance(parts: list[str], before: str) -> None:
    answer = "x" + "".join(parts)
    assert last_boxed(f"{before}\\boxed{{{answer}}} is it.") == answer.strip()


PROBLEMS = [
    {"problem": "What is $1+1$?", "level": "Level 1", "type": "Algebra", "solution": r"It is $\boxed{2}$."},
    {"problem": "Half?", "level": "Level 2", "type": "Precalculus", "solution": r"$\boxed{\frac{1}{2}}$"},
]


def math_rows(split: str) -> list[Row]:
    return [
        {
            "data_source": "DigitalLearningGmbH/MATH-lighteval",
            "prompt": [
                {
                    "role": "user",
                    "content": f"{question} Let's think step by step and output the final answer within \\boxed{{}}.",
                }
            ],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": {"split": split, "index": index},
        }
        for index, (question, truth) in enumerate([("What is $1+1$?", "2"), ("Half?", r"\frac{1}{2}")])
    ]


def test_math_in_each_layout(tmp_path: Path) -> None:
    for split in ("train", "test"):
        jsonl(tmp_path / "lines" / f"{split}.jsonl", PROBLEMS)
        (tmp_path / "hub" / "data").mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(PROBLEMS), tmp_path / "hub" / "data" / f"{split}-00000-of-00001.parquet")
        for number, problem in (("10", PROBLEMS[0]), ("9", PROBLEMS[1])):
            file = tmp_path / "original" / split / problem["type"].lower() / f"{number}.json"
            file.parent.mkdir(parents=True)
            file.write_text(json.dumps(problem, indent=4))
    for layout in ("lines", "hub", "original"):
        manifests = prepare_math_dataset(tmp_path / "out", dataset_path=tmp_path / layout)
        assert [manifest.rows_written for manifest in manifests.values()] == [2, 2]
        for split in ("train", "test"):
            assert list(read_rows(tmp_path / "out" / f"{split}.parquet")) == math_rows(split)


def test_problems_of_the_original_come_by_subject_and_number(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for number in (10, 9, 100):
            file = tmp_path / split / "algebra" / f"{number}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps({"problem": f"P{number}?", "solution": f"\\boxed{{{number}}}"}))
    prepare_math_dataset(tmp_path, dataset_path=tmp_path)
    truths = [row["reward_model"]["ground_truth"] for row in read_rows(tmp_path / "train.parquet")]
    assert truths == ["9", "10", "100"]


def test_math_faults(tmp_path: Path) -> None:
    for split in ("train", "test"):
        jsonl(tmp_path / "lines" / f"{split}.jsonl", [*PROBLEMS, {"problem": "?", "solution": "No box."}])
        file = tmp_path / "original" / split / "algebra" / "1.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"problem": "?", "solution": "No box."}))
    with pytest.raises(DataError, match=r"train\.jsonl, row 2 \(line 3\): .*no \\boxed answer"):
        prepare_math_dataset(tmp_path / "out", dataset_path=tmp_path / "lines")
    assert not (tmp_path / "out" / "train.parquet").exists()
    manifests = prepare_math_dataset(tmp_path / "out", dataset_path=tmp_path / "lines", on_error="skip")
    assert (manifests["train"].rows_written, manifests["train"].rows_failed) == (2, 1)
    with pytest.raises(DataError, match=r"algebra/1\.json: the solution has no"):
        prepare_math_dataset(tmp_path / "out", dataset_path=tmp_path / "original")
    for content, problem in (("[1]", "a JSON object is expected, not list"), ("{", "is not JSON")):
        file.write_text(content)
        (tmp_path / "original" / "train" / "algebra" / "1.json").write_text(content)
        with pytest.raises(DataError, match=rf"algebra/1\.json:? {problem}"):
            prepare_math_dataset(tmp_path / "out", dataset_path=tmp_path / "original")
    with pytest.raises(FileNotFoundError, match=r"no copy of DigitalLearningGmbH/MATH-lighteval"):
        prepare_math_dataset(tmp_path / "out", dataset_path=tmp_path / "nowhere")


# HellaSwag

SWAG = {
    "ind": 4,
    "activity_label": "Removing ice from car",
    "ctx_a": "Then, the man writes over the snow.",
    "ctx_b": "then",
    "ctx": "Then, the man writes over the snow. then",
    "endings": [", he adds wax. [header] Next [title] He cuts it.", ", a person boards a lift.", "  stops.", "runs."],
    "source_id": "activitynet~v_1",
    "split": "train",
    "split_type": "indomain",
    "label": "3",
}


def test_hellaswag(tmp_path: Path) -> None:
    jsonl(tmp_path / "copy" / "train.jsonl", [SWAG])
    jsonl(tmp_path / "copy" / "validation.jsonl", [{**SWAG, "label": "0"}])
    jsonl(tmp_path / "copy" / "test.jsonl", [{**SWAG, "label": ""}, {**SWAG, "label": "1"}])
    manifests = prepare_hellaswag(tmp_path, dataset_path=tmp_path / "copy")
    assert [(name, m.rows_written, m.rows_dropped) for name, m in manifests.items()] == [
        ("train", 1, 0),
        ("validation", 1, 0),
        ("test", 1, 1),
    ]
    assert list(read_rows(tmp_path / "train.parquet")) == [
        {
            "data_source": "Rowan/hellaswag",
            "prompt": [
                {"role": "user", "content": "Removing ice from car: Then, the man writes over the snow. Then"},
            ],
            "ability": "nlp",
            "reward_model": {
                "style": "model",
                "eval": "multiple_choice",
                "ground_truth": 3,
                "choices": [", he adds wax. Next. He cuts it.", ", a person boards a lift.", "stops.", "runs."],
            },
            "extra_info": {"split": "train", "index": 0},
        }
    ]
    assert clean(" How to swim [title] Go [step] in.") == "How to swim. Go in."


def test_hellaswag_test_without_any_label_is_left_out(tmp_path: Path) -> None:
    for split, label in (("train", "3"), ("validation", "3"), ("test", "")):
        jsonl(tmp_path / "copy" / f"{split}.jsonl", [{**SWAG, "label": label}])
    assert list(prepare_hellaswag(tmp_path, dataset_path=tmp_path / "copy")) == ["train", "validation"]
    assert not (tmp_path / "test.parquet").exists()
    jsonl(tmp_path / "copy" / "train.jsonl", [{**SWAG, "label": "4"}])
    with pytest.raises(DataError, match=r"train\.jsonl, row 0 .*column 'endings': a list with an entry 4"):
        prepare_hellaswag(tmp_path, dataset_path=tmp_path / "copy")


# HH-RLHF


def dialogue(number: int) -> Row:
    return {
        "prompt": f"\n\nHuman: Question {number}?\n\nAssistant:",
        "response": f" Good {number}.",
        "chosen": f" Good {number}.",
        "rejected": f" Bad {number}.",
    }


def test_hh_rlhf(tmp_path: Path) -> None:
    jsonl(tmp_path / "copy" / "train.jsonl", [dialogue(number) for number in range(9)])
    out = {stage: tmp_path / stage for stage in STAGES}
    written = {}
    for stage, folder in out.items():
        manifests = prepare_full_hh_rlhf(folder, stage=stage, dataset_path=tmp_path / "copy")
        written[stage] = {name: manifest.rows_written for name, manifest in manifests.items()}
    assert written == {"sft": {"train": 18}, "rm": {"train": 6, "test": 3}, "rl": {"train": 9}}
    prompt = "\n\nHuman: Question 0?\n\nAssistant:"
    assert list(read_rows(out["sft"] / "train.parquet"))[:2] == [
        {"prompt": prompt, "response": " Good 0."},
        {"prompt": prompt, "response": " Bad 0."},
    ]
    pairs = [*read_rows(out["rm"] / "train.parquet"), *read_rows(out["rm"] / "test.parquet")]
    assert pairs == [{name: dialogue(n)[name] for name in ("prompt", "chosen", "rejected")} for n in range(9)]
    assert list(read_rows(out["rl"] / "train.parquet"))[8] == {
        "data_source": "Dahoas/full-hh-rlhf",
        "prompt": [{"role": "user", "content": dialogue(8)["prompt"]}],
        "ability": "alignment",
        "reward_model": {"style": "model", "ground_truth": " Good 8."},
        "extra_info": {"split": "train", "index": 8},
    }


def test_hh_rlhf_faults(tmp_path: Path) -> None:
    jsonl(tmp_path / "train.jsonl", [dialogue(0)])
    with pytest.raises(DataError, match="1 dialogues cannot be cut"):
        prepare_full_hh_rlhf(tmp_path / "out", stage="rm", dataset_path=tmp_path)
    jsonl(tmp_path / "train.jsonl", [dialogue(0), {"chosen": "a", "rejected": "b"}])
    with pytest.raises(DataError, match=r"row 1 .*there is no column 'prompt'; there are 'chosen', 'rejected'"):
        prepare_full_hh_rlhf(tmp_path / "out", stage="sft", dataset_path=tmp_path)


# DAPO and AIME


def rl_row(truth: str) -> Row:
    return {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": "Solve it. The last line is Answer: $Answer."}],
        "ability": "MATH",
        "reward_model": {"ground_truth": truth, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": f"id-{truth}"},
    }


@pytest.mark.parametrize("prepare", [prepare_dapo_multiturn_w_tool, prepare_aime2024_multiturn_w_tool])
def test_rows_that_are_rl_rows_already(tmp_path: Path, prepare: Any) -> None:
    rows = [rl_row("34"), rl_row("-1")]
    jsonl(tmp_path / "copy" / "train.jsonl", rows)
    assert list(prepare(tmp_path, dataset_path=tmp_path / "copy")) == ["train"]
    for row, was in zip(read_rows(tmp_path / "train.parquet"), rows, strict=True):
        truth = was["reward_model"]["ground_truth"]
        tools = {"code_interpreter": {"create_kwargs": {"ground_truth": truth}}}
        extra = {**was["extra_info"], "need_tools_kwargs": True, "tools_kwargs": tools}
        assert row == {**was, "extra_info": extra}
    prepare(tmp_path, dataset_path=tmp_path / "copy", tool=False)
    assert list(read_rows(tmp_path / "train.parquet")) == rows
    jsonl(tmp_path / "copy" / "train.jsonl", [{**rows[0], "prompt": "Solve it."}])
    with pytest.raises(DataError, match=r"row 0 .*field prompt: a list of messages is expected, not text"):
        prepare(tmp_path, dataset_path=tmp_path / "copy")


def test_toy_conversations(tmp_path: Path) -> None:
    manifests = prepare_multiturn(tmp_path)
    assert {name: manifest.rows_written for name, manifest in manifests.items()} == {"train": 2, "test": 1}
    rows = [*read_rows(tmp_path / "train.parquet"), *read_rows(tmp_path / "test.parquet")]
    for row in rows:
        assert list(row) == ["messages"]
        system, *turns = [message["role"] for message in row["messages"]]
        assert system == "system"
        assert turns == ["user", "assistant"] * (len(turns) // 2)
    assert max(len(row["messages"]) for row in rows) > 3
