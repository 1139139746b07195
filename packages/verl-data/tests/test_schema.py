"""RL and SFT rows: what is wrong with them, and the one form that training uses."""

from typing import Any

import pytest
from verl_data.config import DataConfig
from verl_data.errors import DataError
from verl_data.schema import (
    SCHEMAS,
    preference_row_problems,
    prompt_row_problems,
    recognise_schema,
    reward_row_problems,
    rl_row_problems,
    row_columns,
    sft_row,
    sft_row_problems,
)

CONFIG = DataConfig()
RENDERED = DataConfig(prompt_format="rendered")
USER = {"role": "user", "content": "hi"}
ASSISTANT = {"role": "assistant", "content": "there"}


def rl(**fields: Any) -> dict[str, Any]:
    return {
        "data_source": "a",
        "prompt": [USER],
        "reward_model": {"style": "rule", "ground_truth": "1"},
        **fields,
    }


def test_a_row_of_the_tutorials_is_sound() -> None:
    row = rl(ability="math", extra_info={"split": "train", "index": 0, "answer": "#### 1", "question": "hi"})
    assert rl_row_problems(row, CONFIG) == []


def test_a_row_without_reward_columns() -> None:
    """Bug bank A16: the problem names every missing column and what the row has instead."""
    (problem,) = rl_row_problems({"question": "1+1?", "answer": "2"}, CONFIG)
    assert problem.startswith("lacks data_source, prompt, reward_model; it has question, answer.")
    assert "data.prompt_key" in problem and "data.reward_fn_key" in problem


OPTIONAL = [
    ("images", "a.png", "field images: a list is expected"),
    ("videos", {"path": "a"}, "field videos: a list is expected"),
    ("audios", 5, "field audios: a list is expected"),
    ("agent_name", ["tool_agent"], "field agent_name: text is expected, not list"),
    ("tools_kwargs", "search", "field tools_kwargs: a dict by tool name is expected, not str 'search'"),
    ("extra_info", {"tools_kwargs": ["search"]}, "field extra_info.tools_kwargs: a dict by tool name is expected"),
    ("tools", {"type": "function"}, "field tools: a list of tool schemas (dicts) is expected"),
]


@pytest.mark.parametrize(("column", "value", "message"), OPTIONAL)
def test_optional_columns_of_a_wrong_kind_are_named_in_every_schema(column: str, value: Any, message: str) -> None:
    for problems, row in (
        (rl_row_problems, rl()),
        (prompt_row_problems, rl()),
        (sft_row_problems, {"messages": [USER, ASSISTANT]}),
        (preference_row_problems, {"prompt": "a", "chosen": "b", "rejected": "c"}),
        (reward_row_problems, {"chosen": "b", "rejected": "c"}),
    ):
        found = problems({**row, column: value}, CONFIG)
        assert len(found) == 1 and found[0].startswith(message)
        assert problems({**row, column: None}, CONFIG) == []


def test_optional_columns_pass_through() -> None:
    optional = {
        "images": [b"png"],
        "videos": [],
        "audios": None,
        "agent_name": "tool_agent",
        "tools_kwargs": {"search": {"create_kwargs": {"ground_truth": "1"}}},
        "tools": [{"type": "function", "function": {"name": "search"}}],
    }
    assert rl_row_problems(rl(**optional, extra_info={"tools_kwargs": {"search": {}}}), CONFIG) == []
    assert sft_row({"messages": [USER, ASSISTANT], **optional}, CONFIG) == {"messages": [USER, ASSISTANT], **optional}
    assert {*optional, "reward_model"} <= set(row_columns(CONFIG))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": "a"}, "lacks messages (or prompt and response); it has question"),
        ({"prompt": "a"}, "lacks messages (or prompt and response); it has prompt"),
        ({"messages": None}, "field messages: a list of messages is expected, not nothing"),
        ({"messages": "hi"}, "field messages: a list of messages is expected, not text. Write it as [{role: user"),
        ({"messages": []}, "field messages: a list of messages is expected, not an empty list"),
        ({"messages": [USER, {"role": "assistant"}]}, "field messages[1].content: text is expected, not nothing"),
        ({"messages": [USER]}, "field messages: no message is the assistant's, so there is nothing to learn; it has"),
        ({"prompt": "", "response": "b"}, "field prompt: text or a list of messages is expected, not an empty text"),
        ({"prompt": [], "response": "b"}, "field prompt: text or a list of messages is expected, not an empty list"),
        ({"prompt": [{"content": "a"}], "response": "b"}, "field prompt[0].role: text is expected, not nothing"),
        ({"prompt": "a", "response": 5}, "field response: text is expected, not int 5"),
        ({"prompt": "a", "response": [ASSISTANT]}, "field response: text is expected, not list"),
        ({"prompt": "a", "response": "b\ud83d"}, "field response holds half of a surrogate pair"),
        ({"messages": [USER, ASSISTANT], "tools": "f"}, "field tools: a list of tool schemas"),
    ],
)
def test_wrong_sft_rows_name_the_field(row: dict[str, Any], message: str) -> None:
    problems = sft_row_problems(row, CONFIG)
    assert len(problems) == 1 and problems[0].startswith(message)
    with pytest.raises(DataError) as caught:
        sft_row(row, CONFIG)
    assert str(caught.value) == f"{problems[0]}."


def test_every_fault_of_a_row_is_told() -> None:
    assert len(sft_row_problems({"prompt": 1, "response": 2, "images": 3}, CONFIG)) == 3


def test_sft_rows_become_conversations() -> None:
    conversation = {"messages": [USER, ASSISTANT]}
    assert sft_row(conversation, CONFIG) == conversation
    assert sft_row({"prompt": "hi", "response": "there", "id": 1}, CONFIG) == {**conversation, "id": 1}
    assert sft_row({"prompt": [USER], "response": "there"}, CONFIG) == conversation
    # Parquet fills a column that some rows do not have with None.
    assert sft_row({"messages": None, "prompt": "hi", "response": "there"}, CONFIG) == conversation
    assert sft_row({**conversation, "prompt": None, "response": None}, CONFIG) == conversation
    named = DataConfig(prompt_key="question")
    assert sft_row({"question": "hi", "response": "there"}, named) == conversation


def test_finished_text_stays_text_where_the_prompt_format_says_so() -> None:
    row = {"prompt": "<s>hi", "response": "there</s>", "id": 1}
    assert sft_row(row, RENDERED) == row
    (problem,) = sft_row_problems({"prompt": [USER], "response": "b"}, RENDERED)
    assert problem.startswith("field prompt: finished text is expected because data.prompt_format is rendered")


def test_nothing_that_was_handed_over_is_changed() -> None:
    prompt = [dict(USER)]
    sft_row({"prompt": prompt, "response": "there"}, CONFIG)["messages"].append("more")
    assert prompt == [USER]


@pytest.mark.parametrize(
    ("columns", "schema"),
    [
        (["data_source", "prompt", "reward_model", "extra_info"], "rl"),
        (["data_source", "prompt"], "rl"),
        (["reward_model"], "rl"),
        (["messages", "tools"], "sft"),
        (["prompt", "response"], "sft"),
        (["prompt", "chosen", "rejected"], "preference"),
        (["chosen_response", "rejected_response"], "preference"),
        (["chosen"], None),
        (["question", "answer"], None),
        (["prompt"], None),
        ([], None),
    ],
)
def test_the_columns_tell_the_schema(columns: list[str], schema: str | None) -> None:
    assert recognise_schema(columns, CONFIG) == schema


def test_the_columns_tell_the_schema_under_other_names() -> None:
    config = DataConfig(prompt_key="question", reward_fn_key="origin")
    assert recognise_schema(["question", "origin"], config) == "rl"
    assert recognise_schema(["question", "response"], config) == "sft"


def test_a_schema_looks_at_no_other_columns_than_it_says() -> None:
    rows: dict[str, dict[str, Any]] = {
        "rl": rl(),
        "sft": {"messages": [USER, ASSISTANT]},
        "preference": {"prompt": "a", "chosen": "b", "rejected": "c"},
        "reward": {"chosen": "b", "rejected": "c"},
    }
    assert rows.keys() == SCHEMAS.keys()
    for name, schema in SCHEMAS.items():
        columns = schema.columns(CONFIG)
        assert set(rows[name]) <= set(columns) and set(schema.content(CONFIG)) <= set(columns)
        assert schema.problems({**rows[name], "other": object()}, CONFIG) == []
