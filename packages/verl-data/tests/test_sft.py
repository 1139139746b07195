"""Which tokens of a conversation are trained."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conversations import assistant, tool, trained, user
from verl_data.errors import DataError
from verl_data.sft import (
    NothingToTrainError,
    SftSequence,
    render_sft,
    sft_messages,
    tokenize_sft,
    truncate_sft,
)

MakeTokenizer = Callable[..., Any]


def test_grouped_tool_results_and_thinking_of_the_last_turn(make_tokenizer: MakeTokenizer) -> None:
    """Bug bank A07: ids are those of the full render, and the mask follows from where characters stand in it."""
    tokenizer = make_tokenizer("grouped_tools")
    conversation = [
        user("q"),
        assistant("c", think="r1"),
        tool("x"),
        tool("y"),
        assistant("d", think="r2"),
    ]
    sequence = render_sft(tokenizer, conversation)
    text = "<u>q</u><a>c</a><u><t>x</t><t>y</t></u><a><think>r2</think>d</a>"
    assert tokenizer.decode(sequence.input_ids) == text
    assert sequence.input_ids == tokenizer.encode(text, add_special_tokens=False)
    assert trained(tokenizer, sequence) == ["c</a>", "<think>r2</think>d</a>"]


def test_thinking_and_tool_calls_are_trained_where_the_template_shows_them(
    make_tokenizer: MakeTokenizer, weather: dict[str, Any]
) -> None:
    tokenizer, tools = make_tokenizer("qwen3"), weather["tools"]
    calls = (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris", "days": 2}}\n</tool_call>\n'
        '<tool_call>\n{"name": "weather", "arguments": {"city": "北京", "days": 2}}\n</tool_call><|im_end|>'
    )
    whole = render_sft(tokenizer, weather["messages"], tools=tools)
    assert trained(tokenizer, whole) == [calls, "Sun.<|im_end|>", "<think>\npolite\n</think>\n\nWelcome!<|im_end|>"]
    one_query = render_sft(tokenizer, weather["messages"][:5], tools=tools)
    assert trained(tokenizer, one_query) == [
        f"<think>\ntwo cities\n</think>\n\n{calls}",
        "<think>\ndone\n</think>\n\nSun.<|im_end|>",
    ]


def test_what_the_generation_prompt_gives_is_not_trained(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("qwen3")
    conversation = [user("q"), assistant("a"), user("r"), assistant("b")]
    thinking = render_sft(tokenizer, conversation)
    assert trained(tokenizer, thinking) == ["a<|im_end|>", "<think>\n\n</think>\n\nb<|im_end|>"]
    without = render_sft(tokenizer, conversation, template_kwargs={"enable_thinking": np.bool_(False)})
    assert without.input_ids == thinking.input_ids
    assert trained(tokenizer, without) == ["a<|im_end|>", "b<|im_end|>"]
    # The assistant is made to think, but earlier turns stand there without their thoughts.
    tokenizer = make_tokenizer("deepseek_r1")
    conversation = [user("q"), assistant("<think>\nhm\n</think>a"), user("r"), assistant("b")]
    assert trained(tokenizer, render_sft(tokenizer, conversation)) == ["a</s>", "b</s>"]


def test_a_call_with_nothing_but_numbers(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("qwen3")
    call = {"function": {"name": "f", "arguments": {"n": 1}}}
    conversation = [user("q"), assistant("", tool_calls=[call]), tool("1"), assistant("<think>\nx\n</think>\n\nok")]
    assert trained(tokenizer, render_sft(tokenizer, conversation)) == [
        '<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call><|im_end|>',
        "<think>\nx\n</think>\n\nok<|im_end|>",
    ]


def test_arguments_as_json_text_and_texts_that_the_template_looks_into(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("qwen3")
    call = {"function": {"name": "f", "arguments": '{"n": 1}'}}
    conversation = [
        user("q"),
        assistant("<think>\nwhy\n</think>\n\nI look.", tool_calls=[call]),
        user("<tool_response>\n2\n</tool_response>"),  # the template takes it for a result, and keeps the thoughts
        assistant("2", reasoning_content="so"),
    ]
    assert trained(tokenizer, render_sft(tokenizer, conversation)) == [
        '<think>\nwhy\n</think>\n\nI look.\n<tool_call>\n{"name": "f", "arguments": {"n": 1}}\n</tool_call><|im_end|>',
        "<think>\nso\n</think>\n\n2<|im_end|>",
    ]


def test_a_system_message_that_the_template_moves(make_tokenizer: MakeTokenizer, weather: dict[str, Any]) -> None:
    tokenizer = make_tokenizer("mistral_tools")
    called = [*weather["messages"][:4], assistant("Sun.")]
    sequence = render_sft(tokenizer, [{"role": "system", "content": "S"}, *called])
    calls = ", ".join(
        f'{{"name": "weather", "arguments": {{"city": "{city}", "days": 2}}}}' for city in ("Paris", "北京")
    )
    found = [text.strip() for text in trained(tokenizer, sequence)]
    assert found == [f"[TOOL_CALLS] [{calls}]</s>", "Sun.</s>"]
    conversation = [{"role": "system", "content": "S"}, user("q"), assistant("a"), user("r"), assistant("b")]
    sequence = render_sft(tokenizer, conversation)
    assert tokenizer.decode(sequence.input_ids) == "<s>[INST] q[/INST] a</s>[INST] S\n\nr[/INST] b</s>"
    assert [text.strip() for text in trained(tokenizer, sequence)] == ["a</s>", "b</s>"]


@pytest.mark.parametrize("template", ["chatml", "qwen3", "llama3", "gemma", "mistral", "phi3", "deepseek_r1", "tags"])
def test_an_empty_answer_still_ends_its_turn(make_tokenizer: MakeTokenizer, template: str) -> None:
    tokenizer = make_tokenizer(template)
    end = "<|end|>" if template == "phi3" else tokenizer.eos_token
    first = render_sft(tokenizer, [user("q"), assistant(""), user("r"), assistant("b")])
    assert trained(tokenizer, first)[0].strip() == end
    last = render_sft(tokenizer, [user("q"), assistant("a"), user("r"), assistant(" ")])
    assert trained(tokenizer, last)[0].strip() == f"a{end}"
    assert trained(tokenizer, last)[1].endswith(end)


def test_more_at_the_very_end_than_the_end_of_turn(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("phi3")
    sequence = render_sft(tokenizer, [user("q"), assistant("a"), user("r"), assistant("b")])
    assert tokenizer.decode(sequence.input_ids[-3:]) == "<|end|>\n<|endoftext|>"
    assert trained(tokenizer, sequence) == ["a<|end|>", "b<|end|>"]


def test_turns_of_the_assistant_in_a_row_or_at_the_beginning(make_tokenizer: MakeTokenizer) -> None:
    for template in ("chatml", "qwen3", "tags"):
        tokenizer = make_tokenizer(template)
        sequence = render_sft(tokenizer, [assistant("a"), assistant("b"), user("q"), assistant("c"), user("r")])
        assert trained(tokenizer, sequence)[:2] == ["a<|im_end|>", "b<|im_end|>"]


def test_weights_choose_the_turns_and_stay_out_of_the_template(make_tokenizer: MakeTokenizer) -> None:
    for template in ("chatml", "tags"):
        tokenizer = make_tokenizer(template)
        conversation = [user("q"), assistant("a", weight=0), user("r"), assistant("b", weight=1.0)]
        sequence = render_sft(tokenizer, conversation)
        assert trained(tokenizer, sequence) == ["b<|im_end|>"]
        assert conversation[1]["weight"] == 0  # the caller's own rows stay as they are
        assert sequence.input_ids == render_sft(tokenizer, [user("q"), assistant("a"), *conversation[2:]]).input_ids
    tokenizer = make_tokenizer("{% for m in messages %}{{ m | tojson }}{{ eos_token }}{% endfor %}")
    assert "weight" not in tokenizer.decode(render_sft(tokenizer, [user("q"), assistant("a", weight=1)]).input_ids)
    with pytest.raises(DataError, match=r"messages\[1\]\.weight must be 1.*but is 0\.5"):
        render_sft(tokenizer, [user("q"), assistant("a", weight=0.5)])
    with pytest.raises(DataError, match=r"messages\[0\]\.weight is 1, but its role is user"):
        render_sft(tokenizer, [{**user("q"), "weight": 1}, assistant("a")])


def test_nothing_to_train_is_an_error(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("chatml")
    with pytest.raises(NothingToTrainError, match="No message has the role assistant"):
        render_sft(tokenizer, [user("q")])
    with pytest.raises(NothingToTrainError, match="writes nothing"):
        render_sft(tokenizer, [user("q"), assistant("a", weight=0)])


OTHER_BEGINNING = (
    "{% for m in messages %}{{ ('#' if m.role == 'assistant' and loop.length > 3 else '') + m.role + ': ' }}"
    "{{ m.content }}{% endfor %}{{ 'Answer: ' if add_generation_prompt }}"
)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for m in messages %}{{ m.content | length }}{{ eos_token }}{% endfor %}", "depends on characters inside"),
        # No end-of-turn token but for the last turn: what ends the first one cannot be told.
        (
            "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}{{ eos_token }}",
            "end of message 1 depends on what follows",
        ),
        # The generation prompt is not how a turn begins.
        (
            OTHER_BEGINNING,
            "does not begin as the template lets the assistant begin",
        ),
        (
            "{% for m in messages %}{{ '<|im_start|>' + m.content + m.content + '<|im_end|>' }}{% endfor %}",
            "what stands before message 1 depends on what follows it",
        ),
        (
            "{% for m in messages | reverse %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}",
            "message",
        ),
    ],
)
def test_a_template_that_cannot_be_followed_is_refused(
    make_tokenizer: MakeTokenizer, template: str, reason: str
) -> None:
    conversation = [user("q"), assistant("a"), user("r"), assistant("b")]
    with pytest.raises(DataError, match=rf"cannot be told: .*{reason}.*\{{% generation %\}}"):
        render_sft(make_tokenizer(template), conversation)


def test_a_template_that_changes_a_text(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("{% for m in messages %}{{ m.content | upper + eos_token }}{% endfor %}")
    assert trained(tokenizer, render_sft(tokenizer, [user("q"), assistant("a")])) == ["A</s>"]


def test_errors_of_the_tokenizer(make_tokenizer: MakeTokenizer) -> None:
    conversation = [user("q"), assistant("a")]
    with pytest.raises(DataError, match=r"no chat template.*chat_template\.jinja"):
        render_sft(make_tokenizer(None), conversation)
    with pytest.raises(DataError, match=r"fails on these messages: TypeError"):
        render_sft(make_tokenizer("{{ 'a' + 1 }}"), conversation)

    class Slow:
        is_fast = False
        name_or_path = "old"

    slow: Any = Slow()
    with pytest.raises(DataError, match="tokenizer in old is not a fast one"):
        render_sft(slow, conversation)
    with pytest.raises(DataError, match="tokenizer in old is not a fast one"):
        tokenize_sft(slow, "q", "a")


def test_rows_from_pandas_and_parquet(make_tokenizer: MakeTokenizer) -> None:
    """Bug bank A19, and keys that Parquet filled with None."""
    tokenizer = make_tokenizer("qwen3")
    rows = np.array(
        [
            {"role": "user", "content": np.str_("q"), "tool_calls": None, "weight": None},
            {"role": "assistant", "content": "a", "tool_calls": None, "weight": np.float64(1)},
        ],
        dtype=object,
    )
    assert render_sft(tokenizer, rows) == render_sft(tokenizer, [user("q"), assistant("a")])  # type: ignore[arg-type]


def test_content_in_parts(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(
        "{% for m in messages %}{{ m.role + ':' }}"
        "{% for part in m.content %}{{ part.text if part.type == 'text' else '<image>' }}{% endfor %}"
        "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
    )
    parts = [{"type": "image"}, {"type": "text", "text": "What?"}]
    answer = [{"type": "text", "text": "A "}, {"type": "text", "text": "cat."}]
    sequence = render_sft(tokenizer, [{"role": "user", "content": parts}, {"role": "assistant", "content": answer}])
    assert trained(tokenizer, sequence) == ["A cat.</s>"]


def test_prompt_and_response_are_tokenised_in_one_piece(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(None, adds_bos=True)
    sequence = tokenize_sft(tokenizer, "the ans", "wer is 42")
    ids = tokenizer.encode("the answer is 42", add_special_tokens=False)
    assert sequence.input_ids == [*ids, tokenizer.eos_token_id]  # and no BOS, as in tokenize_rendered
    assert trained(tokenizer, sequence) == [" answer is 42</s>"]  # the token in the middle has text of the response
    ended = tokenize_sft(tokenizer, "<s>the", " answer</s>")
    assert tokenizer.decode(ended.input_ids) == "<s>the answer</s>"
    assert trained(tokenizer, ended) == [" answer</s>"]
    assert trained(tokenizer, tokenize_sft(tokenizer, "the</s>", "")) == ["</s>"]
    with pytest.raises(NothingToTrainError, match="empty"):
        tokenize_sft(tokenizer, "", "")


def test_nothing_undefined_becomes_a_token(make_tokenizer: MakeTokenizer) -> None:
    """Bug bank A04, for BOS; and a tokenizer without EOS is an error rather than a None."""
    tokenizer = make_tokenizer(None, bos=None)
    assert tokenizer.bos_token_id is None
    assert None not in tokenize_sft(tokenizer, "hello", " world").input_ids
    tokenizer.eos_token = None
    with pytest.raises(DataError, match="has no EOS token"):
        tokenize_sft(tokenizer, "hello", " world")


def test_conversations_of_rows() -> None:
    conversation = [user("q"), assistant("a")]
    assert sft_messages({"messages": np.array(conversation, dtype=object)}) == conversation
    assert sft_messages({"prompt": "q", "response": "a", "messages": None}) == conversation
    assert sft_messages({"question": "q", "answer": "a"}, prompt_key="question", response_key="answer") == conversation
    system = {"role": "system", "content": "s"}
    assert sft_messages({"prompt": [system, user("q")], "response": "a"}) == [system, *conversation]
    with pytest.raises(DataError, match=r"holds messages .*prompt and response .*has prompt, answer"):
        sft_messages({"prompt": "q", "answer": "a"})


def test_truncation_cuts_ids_and_mask_alike() -> None:
    """Bug bank A05."""
    sequence = SftSequence([1, 2, 3, 4, 5, 6, 7, 8], [False] * 4 + [True] * 4)
    left = truncate_sft(sequence, 5, "left")
    assert (left.input_ids, left.loss_mask) == ([4, 5, 6, 7, 8], [False, True, True, True, True])
    right = truncate_sft(sequence, 5, "right")
    assert (right.input_ids, right.loss_mask) == ([1, 2, 3, 4, 5], [False, False, False, False, True])
    middle = truncate_sft(sequence, 5, "middle")
    assert (middle.input_ids, middle.loss_mask) == ([1, 2, 6, 7, 8], [False, False, True, True, True])
    assert truncate_sft(sequence, 8, "error") is sequence
    with pytest.raises(DataError, match="has 8 tokens, but at most 5"):
        truncate_sft(sequence, 5, "error")
    with pytest.raises(NothingToTrainError, match=r"Cut to 4 of 8 tokens \(truncation right\)"):
        truncate_sft(sequence, 4, "right")


def test_the_first_token_is_never_a_trained_one() -> None:
    assert SftSequence([1, 2], [True, False]).trained_tokens == 0
    assert truncate_sft(SftSequence([1, 2, 3], [False, True, True]), 2, "left").trained_tokens == 1
    with pytest.raises(ValueError, match="2 tokens has a mask of 1"):
        SftSequence([1, 2], [True])


@pytest.mark.parametrize("last", ["", "y"])
def test_a_system_message_that_moves_past_turns_without_text(make_tokenizer: MakeTokenizer, last: str) -> None:
    conversation = [{"role": "system", "content": "S"}, user(""), assistant(""), user(""), assistant(last)]
    tokenizer = make_tokenizer("mistral_tools")
    found = trained(tokenizer, render_sft(tokenizer, conversation))
    assert [text.strip() for text in found] == ["</s>", f"{last}</s>"]


def test_an_end_of_turn_that_depends_on_what_follows_is_no_part_of_a_longer_one(make_tokenizer: MakeTokenizer) -> None:
    """A call that a result follows ends with another token than one that ends the conversation."""
    tokenizer = make_tokenizer(
        "{% for m in messages %}{{ m.role + ':' + m.content }}"
        "{% if m.tool_calls %}{{ '<tool_call>' + m.tool_calls[0].function.name + '</think>' }}"
        "{{ '<|end|>' if loop.last else '</s>' }}{% else %}{{ '<|im_end|>' }}{% endif %}{% endfor %}"
        "{{ 'assistant:' if add_generation_prompt }}"
    )
    call = {"function": {"name": "f", "arguments": {}}}
    conversation = [user("q"), assistant("", tool_calls=[call]), tool("1"), assistant("a")]
    with pytest.raises(DataError, match="the end of message 1 depends on what follows it"):
        render_sft(tokenizer, conversation)
    assert trained(tokenizer, render_sft(tokenizer, conversation[:2])) == ["<tool_call>f</think><|end|>"]
