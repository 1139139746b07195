"""Prompts and conversations through templates in the manner of published ones, with and without BOS."""

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_data.errors import DataError
from verl_data.prompts import render_prompt, tokenize_rendered
from verl_data.sft import render_sft

MakeTokenizer = Callable[..., Any]
TEMPLATES = ("chatml", "tags", "qwen3", "llama3", "gemma", "mistral", "mistral_tools", "phi3", "deepseek_r1")
NO_SYSTEM = ("gemma", "mistral")
SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = [{"role": "user", "content": "2+2=?"}]
#: What each template writes for ASKED, BOS as {bos}, with what makes the assistant speak.
PROMPTS = {
    "chatml": "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n2+2=?<|im_end|>\n"
    "<|im_start|>assistant\n",
    "tags": "<|im_start|>user\n2+2=?<|im_end|>\n<|im_start|>assistant\n",
    "qwen3": "<|im_start|>user\n2+2=?<|im_end|>\n<|im_start|>assistant\n",
    "llama3": "{bos}<|start_header_id|>user<|end_header_id|>\n\n2+2=?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "gemma": "{bos}<start_of_turn>user\n2+2=?<end_of_turn>\n<start_of_turn>model\n",
    "mistral": "{bos}[INST] 2+2=? [/INST]",
    "mistral_tools": "{bos}[INST] 2+2=?[/INST]",
    "phi3": "<|user|>\n2+2=?<|end|>\n<|assistant|>\n",
    "deepseek_r1": "{bos}<|User|>2+2=?<|Assistant|><think>\n",
}
#: The tokenizer puts BOS before texts by itself; it does not; it has none.
BOS: dict[str, dict[str, Any]] = {
    "adds BOS": {"adds_bos": True},
    "has BOS": {"adds_bos": False},
    "no BOS": {"bos": None},
}
every = pytest.mark.parametrize("template", TEMPLATES)
each_bos = pytest.mark.parametrize("bos", BOS)


def turn_end(template: str, tokenizer: Any) -> str:
    return "<|end|>" if template == "phi3" else str(tokenizer.eos_token)


def trained(tokenizer: Any, ids: list[int], mask: list[bool]) -> list[str]:
    groups = groupby(zip(ids, mask, strict=True), key=lambda pair: pair[1])
    return [tokenizer.decode([token for token, _ in group]) for wanted, group in groups if wanted]


@every
@each_bos
def test_prompts_are_what_the_template_writes(make_tokenizer: MakeTokenizer, template: str, bos: str) -> None:
    """Bug bank A03 and A04: one BOS where the template writes it, none where there is none, and never a None."""
    tokenizer = make_tokenizer(template, **BOS[bos])
    written = PROMPTS[template].format(bos=tokenizer.bos_token or "")
    ids = render_prompt(tokenizer, ASKED)
    assert tokenizer.decode(ids) == written
    assert ids == tokenize_rendered(tokenizer, written) == tokenizer.encode(written, add_special_tokens=False)
    assert ids.count(tokenizer.bos_token_id) == ("{bos}" in PROMPTS[template] and tokenizer.bos_token is not None)
    assert all(type(token) is int for token in ids)


@every
@each_bos
def test_a_conversation_continues_its_prompt(make_tokenizer: MakeTokenizer, template: str, bos: str) -> None:
    tokenizer = make_tokenizer(template, **BOS[bos])
    prompt = render_prompt(tokenizer, ASKED)
    sequence = render_sft(tokenizer, [*ASKED, {"role": "assistant", "content": "4"}])
    if template != "deepseek_r1":  # which makes the assistant think, but shows no thoughts
        assert sequence.input_ids[: len(prompt)] == prompt
        assert not any(sequence.loss_mask[: len(prompt)])
    thoughts = "<think>\n\n</think>\n\n" if template == "qwen3" else ""
    [text] = trained(tokenizer, sequence.input_ids, sequence.loss_mask)
    assert text.strip() == f"{thoughts}4{turn_end(template, tokenizer)}"


@pytest.mark.parametrize("template", NO_SYSTEM)
def test_a_template_without_system_role_says_so(make_tokenizer: MakeTokenizer, template: str) -> None:
    tokenizer = make_tokenizer(template)
    answer = {"role": "assistant", "content": "4"}
    for render in (render_prompt, render_sft):
        with pytest.raises(DataError, match=r"refuses these messages: .*(System|Only user and assistant)"):
            render(tokenizer, [SYSTEM, *ASKED, answer])
        with pytest.raises(DataError, match=r"refuses these messages: .*must alternate"):
            render(tokenizer, [*ASKED, *ASKED, answer])


def test_a_default_system_message_stands_where_none_is_given(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("chatml")
    answer = {"role": "assistant", "content": "4"}
    assert "You are a helpful assistant." in tokenizer.decode(render_sft(tokenizer, [*ASKED, answer]).input_ids)
    own = tokenizer.decode(render_sft(tokenizer, [SYSTEM, *ASKED, answer]).input_ids)
    assert "You are" not in own and "Be brief." in own


def test_tools_are_measured_with_the_messages(make_tokenizer: MakeTokenizer, weather: dict[str, Any]) -> None:
    """Bug bank A09: the same call renders tools for prompts and for conversations."""
    tokenizer = make_tokenizer("qwen3")
    with_tools = render_prompt(tokenizer, ASKED, tools=weather["tools"])
    assert "Weather of a city." in tokenizer.decode(with_tools)
    sequence = render_sft(tokenizer, [*ASKED, {"role": "assistant", "content": "4"}], tools=weather["tools"])
    assert sequence.input_ids[: len(with_tools)] == with_tools
    assert len(with_tools) > len(render_prompt(tokenizer, ASKED))


def test_a_template_that_raises(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("{{ raise_exception('not today') }}")
    for render in (render_prompt, render_sft):
        with pytest.raises(DataError, match="refuses these messages: not today"):
            render(tokenizer, [*ASKED, {"role": "assistant", "content": "4"}])


words = st.text(st.sampled_from(" \n\tabhelo42.,:{}\"\\é中🙂<>|[]/#'"), max_size=12)
texts = words | st.sampled_from(
    ["hello world", " the answer ", "<|im_start|>", "user\n", "assistant", "\n\n", "[/INST]"]
)


@every
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_conversation(make_tokenizer: MakeTokenizer, template: str, data: st.DataObject) -> None:
    """Ids are those of the full render; what is trained reads as the assistant's texts with their end-of-turn token."""
    settings_of_bos = BOS[data.draw(st.sampled_from(sorted(BOS)))]
    tokenizer = make_tokenizer(template, trim_offsets=data.draw(st.booleans()), **settings_of_bos)
    conversation = [SYSTEM] if template not in NO_SYSTEM and data.draw(st.booleans()) else []
    for _ in range(data.draw(st.integers(1, 3))):
        conversation.append({"role": "user", "content": data.draw(texts)})
        conversation.append({"role": "assistant", "content": data.draw(texts)})
    try:
        sequence = render_sft(tokenizer, conversation)
    except DataError as error:  # a system message that moves, and no other text that could tell where a turn lies
        assert template == "mistral_tools" and "{% generation %}" in str(error)
        assert conversation[0] == SYSTEM and not all(message["content"].strip() for message in conversation)
        return
    assert sequence.input_ids == tokenizer.apply_chat_template(conversation, tokenize=True, return_dict=False)
    assert all(type(token) is int for token in sequence.input_ids)
    if tokenizer.bos_token_id is not None:
        assert sequence.input_ids.count(tokenizer.bos_token_id) <= 1
    answers = [message["content"] for message in conversation if message["role"] == "assistant"]
    shown = [
        "<think>\n\n</think>\n\n" * (template == "qwen3" and n == len(answers)) for n in range(1, len(answers) + 1)
    ]
    found = trained(tokenizer, sequence.input_ids, sequence.loss_mask)
    assert len(found) == len(answers)
    for text, before, answer in zip(found, shown, answers, strict=True):
        # A token at the edge may hold white space of the header too: "\n" before an answer that begins with "\n".
        written = before + answer.strip() + " " + turn_end(template, tokenizer)
        assert text.split() == written.split() or text.replace(" ", "").split() == written.replace(" ", "").split()
        assert text.endswith(turn_end(template, tokenizer))


def with_tags() -> str:
    """The thinking template with {% generation %} tags, put where its author would."""
    source = (Path(__file__).parent / "templates" / "qwen3.jinja").read_text()
    begin, end = (
        "{{- '<|im_start|>assistant\\n' }}\n{%- if loop",
        "{{- '<|im_end|>\\n' }}\n{%- elif message.role == 'tool' %}",
    )
    assert source.count(begin) == source.count(end) == 1
    tagged = source.replace(begin, begin.replace("}}\n", "}}{% generation %}\n"))
    return tagged.replace(end, "{{- '<|im_end|>' }}{% endgeneration %}{{- '\\n' }}{%- elif message.role == 'tool' %}")


spoken = texts | st.builds("<think>\n{}\n</think>\n\n{}".format, texts, texts)
calls = st.lists(
    st.fixed_dictionaries(
        {
            "function": st.fixed_dictionaries(
                {
                    "name": st.sampled_from(["weather", "f"]),
                    "arguments": st.dictionaries(st.sampled_from("abc"), texts | st.integers(0, 9), max_size=2)
                    | st.just('{"a": 1}'),
                }
            )
        }
    ),
    min_size=1,
    max_size=2,
)
answers = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": spoken}, optional={"reasoning_content": texts, "tool_calls": calls}
)
asides = st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": texts})


@settings(deadline=None, max_examples=200)
@given(
    before=st.lists(asides, min_size=1, max_size=2),
    turns=st.lists(st.tuples(answers, st.lists(asides, max_size=3)), min_size=1, max_size=3),
    enable_thinking=st.booleans(),
    trim_offsets=st.booleans(),
)
def test_what_marks_find_is_what_tags_say(
    make_tokenizer: MakeTokenizer,
    before: list[dict[str, Any]],
    turns: list[tuple[dict[str, Any], list[dict[str, Any]]]],
    enable_thinking: bool,
    trim_offsets: bool,
) -> None:
    """Conversations with thinking and tools, by marks where the template has no tags, and by its tags where it has."""
    conversation = [*before, *(message for answer, aside in turns for message in (answer, *aside))]
    plain = make_tokenizer("qwen3", trim_offsets=trim_offsets)
    switches = {"enable_thinking": enable_thinking}
    by_tags = render_sft(make_tokenizer(with_tags()), conversation, template_kwargs=switches)
    try:
        by_marks = render_sft(plain, conversation, template_kwargs=switches)
    except DataError as error:  # some of these no marks can follow; but they are never wrong
        assert "{% generation %}" in str(error)
        return
    assert by_marks.input_ids == by_tags.input_ids
    for one, other in zip(*(trained(plain, s.input_ids, s.loss_mask) for s in (by_marks, by_tags)), strict=True):
        assert other.endswith(one)
        assert other[: len(other) - len(one)].strip() in ("", "<think>\n\n</think>")  # the prompt's, without thinking
