"""Preference and reward-model rows: their problems, their one form, and the prompt that two answers share."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_data.config import DataConfig
from verl_data.errors import DataError
from verl_data.schema import (
    preference_row,
    preference_row_problems,
    reward_row,
    reward_row_problems,
    split_shared_prefix,
)

CONFIG = DataConfig()
RENDERED = DataConfig(prompt_format="rendered")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


# The shared prefix


@pytest.mark.parametrize(
    ("chosen", "rejected", "split"),
    [
        ("Paris ", "London", ("", "Paris ", "London")),
        ("London", "Paris ", ("", "London", "Paris ")),
        ("The sky is blue.", "The sky is green.", ("The sky is", " blue.", " green.")),
        ("a", "a", ("a", "", "")),
        (" a", " b", ("", " a", " b")),
        ("yes", "yes, sure", ("yes", "", ", sure")),
        ("", "a", ("", "", "a")),
        ("首都是巴黎", "首都是伦敦", ("首都是", "巴黎", "伦敦")),
    ],
)
def test_texts_that_begin_alike(chosen: str, rejected: str, split: tuple[str, str, str]) -> None:
    """Bug bank A01: where the very first character differs, nothing wraps around to the end of the text."""
    assert split_shared_prefix(chosen, rejected) == split


@settings(deadline=None)
@given(st.text("ab ", max_size=6), st.text("ab ", max_size=6), st.text("ab ", max_size=6))
def test_prompt_and_answer_give_back_the_text(beginning: str, one: str, other: str) -> None:
    """Bug bank A01."""
    prompt, chosen, rejected = split_shared_prefix(beginning + one, beginning + other)
    assert (prompt + chosen, prompt + rejected) == (beginning + one, beginning + other)
    assert len(prompt) >= len(beginning) - 1
    # Only the one space that was given back can be common to both.
    assert not (chosen and rejected and chosen[0] == rejected[0] != " ")
    assert not prompt.endswith(" ") or (chosen[:1], rejected[:1]) == (" ", " ")


_MESSAGES = st.lists(st.sampled_from([user("a"), user("b"), assistant("a")]), max_size=5)


@settings(deadline=None)
@given(_MESSAGES, _MESSAGES, _MESSAGES)
def test_prompt_and_answer_give_back_the_conversation(beginning: Any, one: Any, other: Any) -> None:
    """Bug bank A01, for lists of messages."""
    prompt, chosen, rejected = split_shared_prefix(beginning + one, beginning + other)
    assert (prompt + chosen, prompt + rejected) == (beginning + one, beginning + other)
    assert len(prompt) >= len(beginning)
    assert not (chosen and rejected and chosen[0] == rejected[0])


def test_a_none_that_parquet_filled_in_makes_no_difference() -> None:
    chosen = [{**user("a"), "name": None}, assistant("b")]
    prompt, *_ = split_shared_prefix(chosen, [user("a"), assistant("c")])
    assert prompt == chosen[:1]


# The one form


EXPECTED = {"prompt": [user("q")], "chosen": [assistant("good")], "rejected": [assistant("bad")]}


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "q", "chosen": "good", "rejected": "bad"},
        {"prompt": [user("q")], "chosen": "good", "rejected": "bad"},
        {"prompt": "q", "chosen_response": "good", "rejected_response": "bad"},
        {"prompt": "q", "chosen": None, "chosen_response": "good", "rejected": "bad"},
        {"prompt": "q", "chosen": [assistant("good")], "rejected": [assistant("bad")]},
        {"prompt": [user("q")], "chosen": [assistant("good")], "rejected": [assistant("bad")]},
        # Whole conversations, with the prompt beside them or without.
        {"prompt": "q", "chosen": [user("q"), assistant("good")], "rejected": [user("q"), assistant("bad")]},
        {"prompt": [user("q")], "chosen": [user("q"), assistant("good")], "rejected": [user("q"), assistant("bad")]},
        {"chosen": [user("q"), assistant("good")], "rejected": [user("q"), assistant("bad")]},
        {"prompt": None, "chosen": [user("q"), assistant("good")], "rejected": [user("q"), assistant("bad")]},
    ],
)
def test_every_way_to_write_a_pair_has_one_form(row: dict[str, Any]) -> None:
    assert preference_row({**row, "score": 2}, CONFIG) == {**EXPECTED, "score": 2}
    if row.get("prompt") is not None:
        assert reward_row(row, CONFIG) == EXPECTED
    # What has its form keeps it.
    assert preference_row(EXPECTED, CONFIG) == EXPECTED


def test_a_system_message_before_the_prompt() -> None:
    """As in published data: the prompt is the question alone, and the conversations have a system message."""
    system = {"role": "system", "content": "s"}
    row = {
        "prompt": "q",
        "chosen": [system, user("q"), assistant("a")],
        "rejected": [system, user("q"), assistant("b")],
    }
    assert preference_row(row, CONFIG)["prompt"] == [system, user("q")]


def test_a_pair_of_texts_without_a_prompt_gets_the_beginning_that_they_share() -> None:
    row = {"chosen": "The sky is blue.", "rejected": "The sky is green."}
    parts = {"prompt": [user("The sky is")], "chosen": [assistant(" blue.")], "rejected": [assistant(" green.")]}
    assert preference_row(row, CONFIG) == parts
    assert preference_row(row, RENDERED) == {"prompt": "The sky is", "chosen": " blue.", "rejected": " green."}


def test_a_reward_model_row_needs_no_prompt() -> None:
    """Bug bank A01: nothing is cut from what is judged."""
    row = {"chosen": "Paris ", "rejected": "Pisa"}
    assert reward_row(row, CONFIG) == {"prompt": [], "chosen": [assistant("Paris ")], "rejected": [assistant("Pisa")]}
    split = {"prompt": "", "chosen": "Paris ", "rejected": "London"}
    for given_prompt in ({}, {"prompt": None}, {"prompt": ""}):
        assert reward_row({"chosen": "Paris ", "rejected": "London", **given_prompt}, RENDERED) == split
    alone = {"chosen": [assistant("a")], "rejected": [assistant("b")]}
    assert reward_row(alone, CONFIG) == {"prompt": [], **alone}
    conversations = {"chosen": [user("q"), assistant("good")], "rejected": [user("q"), assistant("bad")]}
    assert reward_row(conversations, CONFIG) == EXPECTED


@settings(deadline=None)
@given(st.lists(st.sampled_from("ab"), max_size=3), st.sampled_from("xy"), st.sampled_from("xy"))
def test_the_conversations_of_a_reward_model_row_are_whole(turns: list[str], one: str, other: str) -> None:
    prompt = [message for text in turns for message in (user(text), assistant(text))] + [user("q")]
    row = {"chosen": [*prompt, assistant(one)], "rejected": [*prompt, assistant(other)]}
    if one == other:
        assert reward_row_problems(row, CONFIG)
        return
    found = reward_row(row, CONFIG)
    assert {side: found["prompt"] + found[side] for side in row} == row


# Problems

_NO_ANSWER = (
    "field chosen[1]: an answer of the assistant is expected behind the prompt of 1 messages, but the conversation"
)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "q", "chosen": "a"}, "lacks rejected; it has prompt, chosen. The better answer is chosen (or"),
        ({"question": "q"}, "lacks chosen and rejected; it has question"),
        ({}, "lacks chosen and rejected; it has no columns"),
        (
            {"prompt": "q", "chosen": None, "rejected": "b"},
            "field chosen: text or a list of messages is expected, not no",
        ),
        (
            {"prompt": "q", "chosen": "a", "rejected": 5},
            "field rejected: text or a list of messages is expected, not int",
        ),
        (
            {"prompt": "q", "chosen": "a", "rejected": []},
            "field rejected: text or a list of messages is expected, not an",
        ),
        (
            {"prompt": 5, "chosen": "a", "rejected": "b"},
            "field prompt: text or a list of messages is expected, not int 5",
        ),
        ({"prompt": "", "chosen": "a", "rejected": "b"}, "field prompt: text or a list of messages is expected, not"),
        (
            {"prompt": "q", "chosen": "a", "rejected": [assistant("b")]},
            "field rejected: chosen is text but this is a list",
        ),
        (
            {"prompt": "q", "chosen": [{"role": "assistant"}], "rejected": [assistant("b")]},
            "field chosen[0].content: text",
        ),
        (
            {"prompt": "q", "chosen": [user("p"), assistant("a")], "rejected": [user("p"), assistant("b")]},
            "field chosen[0]: it is a message of 'user', so this is a whole conversation, but chosen and rejected do",
        ),
        (
            {"prompt": "q", "chosen": [assistant("a")], "rejected": [user("q"), assistant("b")]},
            "field rejected[0]: it is a message of 'user'",
        ),
        (
            {"prompt": "q", "chosen": [user("q")], "rejected": [user("q"), assistant("b")]},
            f"{_NO_ANSWER} ends there",
        ),
        (
            {"chosen": [user("q"), user("r"), assistant("a")], "rejected": [user("q"), user("s"), assistant("b")]},
            f"{_NO_ANSWER} goes on with a message of 'user'",
        ),
        ({"prompt": "q", "chosen": "a\ud83d", "rejected": "b"}, "field chosen holds half of a surrogate pair"),
    ],
)
def test_wrong_pairs_name_the_field(row: dict[str, Any], message: str) -> None:
    problems = preference_row_problems(row, CONFIG)
    assert len(problems) == 1 and problems[0].startswith(message)
    assert reward_row_problems(row, CONFIG) == problems
    for canonical in (preference_row, reward_row):
        with pytest.raises(DataError) as caught:
            canonical(row, CONFIG)
        assert str(caught.value) == f"{problems[0]}."


@pytest.mark.parametrize(
    "pair",
    [
        {"chosen": "Paris ", "rejected": "London"},
        {"chosen": [assistant("a")], "rejected": [assistant("b")]},
        {"chosen": [user("q"), assistant("a")], "rejected": [user("r"), assistant("b")]},
    ],
)
def test_a_preference_without_a_prompt_in_common(pair: dict[str, Any]) -> None:
    """Bug bank A01."""
    (problem,) = preference_row_problems(pair, CONFIG)
    assert problem.startswith("lacks prompt, and chosen and rejected have no beginning in common that could be it.")


def test_pairs_of_finished_text() -> None:
    row = {"prompt": "<s>q", "chosen": "a</s>", "rejected": "b</s>"}
    assert preference_row(row, RENDERED) == row == reward_row(row, RENDERED)
    problems = preference_row_problems({"prompt": [user("q")], "chosen": [assistant("a")], "rejected": "b"}, RENDERED)
    assert [problem.split(":")[0] for problem in problems] == ["field chosen", "field prompt"]
    assert all("finished text is expected because data.prompt_format is rendered" in problem for problem in problems)
