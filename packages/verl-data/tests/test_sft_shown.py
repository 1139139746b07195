"""What a template leaves out is not trained around, and what is not to be trained is told by message."""

from collections.abc import Callable
from typing import Any

import pytest
from conversations import Message, assistant, tool, trained, user
from verl_data.errors import DataError
from verl_data.prompts import render_prompt
from verl_data.sft import NothingToTrainError, SftSequence, render_sft, tokenize_sft, truncate_sft

MakeTokenizer = Callable[..., Any]
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Weather.", "parameters": {}}}
BEGIN, END = "{% generation %}", "{% endgeneration %}"


@pytest.mark.parametrize("template", ["llama3", "chatml", "phi3", "deepseek_r1", "tags"])
def test_a_template_that_writes_no_calls_is_refused(make_tokenizer: MakeTokenizer, template: str) -> None:
    """Else the turn is empty, and the model learns to end at once."""
    conversation = [user("q"), assistant("", tool_calls=[CALL]), tool("sunny"), assistant("Sun.")]
    with pytest.raises(DataError, match=r"writes nothing of the tool_calls\[0\] of messages\[1\] \(assistant\)"):
        render_sft(make_tokenizer(template), conversation)
    with pytest.raises(DataError, match=r"messages\[1\]"):
        render_sft(make_tokenizer(template), [user("q"), assistant("I look.", tool_calls=[CALL]), user("r")])


def test_a_template_that_writes_one_call_of_two_is_refused(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(
        "{% for m in messages %}{{ m.role + ':' + m.content }}{{ m.tool_calls[0] | tojson if m.tool_calls }}"
        "{{ eos_token }}{% endfor %}{{ 'assistant:' if add_generation_prompt }}"
    )
    once = render_sft(tokenizer, [user("q"), assistant("", tool_calls=[CALL])])
    assert trained(tokenizer, once)[0].endswith('"city": "Paris"}}}</s>')
    with pytest.raises(DataError, match=r"writes nothing of the tool_calls\[1\] of messages\[1\]"):
        render_sft(tokenizer, [user("q"), assistant("", tool_calls=[CALL, CALL])])


@pytest.mark.parametrize("template", ["llama3", "chatml", "tags", "mistral_tools"])
def test_tools_that_the_template_does_not_write_are_refused(make_tokenizer: MakeTokenizer, template: str) -> None:
    tokenizer = make_tokenizer(template)
    with pytest.raises(DataError, match="chat template of the tokenizer writes nothing of the tools"):
        render_sft(tokenizer, [user("q"), assistant("a")], tools=[TOOL])
    assert render_sft(tokenizer, [user("q"), assistant("a")], tools=[]) == render_sft(
        tokenizer, [user("q"), assistant("a")]
    )


def test_thinking_may_be_dropped_from_earlier_turns_only(make_tokenizer: MakeTokenizer) -> None:
    thoughtful = assistant("a", reasoning_content="hm")
    tokenizer = make_tokenizer("qwen3")  # which drops it there by design
    sequence = render_sft(tokenizer, [user("q"), thoughtful, user("r"), thoughtful])
    assert trained(tokenizer, sequence) == ["a<|im_end|>", "<think>\nhm\n</think>\n\na<|im_end|>"]
    both = assistant("a", reasoning="hm", reasoning_content="hm")  # two names of one text, of which one is read
    assert trained(tokenizer, render_sft(tokenizer, [user("q"), both])) == ["<think>\nhm\n</think>\n\na<|im_end|>"]
    for template in ("llama3", "chatml", "deepseek_r1", "tags"):
        tokenizer = make_tokenizer(template)
        render_sft(tokenizer, [user("q"), thoughtful, user("r"), assistant("b")])
        with pytest.raises(DataError, match=r"writes nothing of the thinking of messages\[1\]"):
            render_sft(tokenizer, [user("q"), thoughtful])
    inside = assistant("<think>\nhm\n</think>a")
    with pytest.raises(DataError, match=r"writes nothing of the thinking of messages\[1\]"):
        render_sft(make_tokenizer("deepseek_r1"), [user("q"), inside])
    assert len(render_sft(make_tokenizer("chatml"), [user("q"), inside])) > 0


@pytest.mark.parametrize("role", ["system", "user", "tool"])
def test_a_message_that_the_template_leaves_out_is_told(make_tokenizer: MakeTokenizer, role: str) -> None:
    text = "{{ '<|' + m.role + '|>' + m.content + eos_token }}"
    tagged = f"{{% if m.role == 'assistant' %}}{BEGIN}{text}{END}{{% else %}}{text}{{% endif %}}"
    for written in (text, tagged):
        tokenizer = make_tokenizer(
            f"{{% for m in messages %}}{{% if m.role != '{role}' %}}{written}{{% endif %}}{{% endfor %}}"
        )
        conversation = [{"role": role, "content": "the answer"}, user("q") if role != "user" else tool("q")]
        with pytest.raises(DataError, match=rf"writes nothing of the content of messages\[0\] \({role}\)"):
            render_sft(tokenizer, [*conversation, assistant("the answer")])  # which shows, but not from there
        blank = [{"role": role, "content": " "}, *conversation[1:], assistant("a")]
        assert len(render_sft(tokenizer, blank)) > 0  # nothing is lost


def test_words_that_a_template_drops_beside_a_call(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("mistral_tools")
    with pytest.raises(DataError, match=r"nothing of the content of messages\[1\] \(assistant\)"):
        render_sft(tokenizer, [user("q"), assistant("I look.", tool_calls=[CALL])])


#: Tags around the thinking, and around the text: a turn has none, one or two stretches.
TWO_STRETCHES = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' }}{% if m.role == 'assistant' %}"
    f"{{% if m.reasoning_content %}}{BEGIN}{{{{ m.reasoning_content }}}}{END}//{{% endif %}}"
    f"{BEGIN}{{{{ m.content }}}}{END}{{% else %}}{{{{ m.content }}}}{{% endif %}}\n{{% endfor %}}"
)


def test_weights_with_tags_hit_their_own_turn(make_tokenizer: MakeTokenizer) -> None:
    """Two turns and two stretches, but both stretches are of one turn."""
    tokenizer = make_tokenizer(TWO_STRETCHES)
    thoughtful = assistant("the answer", reasoning_content="hello")

    def of(*turns: Message) -> list[str]:
        asked = [message for turn in turns for message in (user("q"), turn)]
        return trained(tokenizer, render_sft(tokenizer, asked))

    assert of(assistant("", weight=0), thoughtful) == ["hello", "the answer"]
    assert of(thoughtful, assistant("", weight=0)) == ["hello", "the answer"]
    assert of({**thoughtful, "weight": 0}, assistant("42")) == ["42"]
    assert of(thoughtful, assistant("42", weight=0), thoughtful) == ["hello", "the answer"] * 2
    assert of({**thoughtful, "weight": 0}, assistant(""), assistant("42")) == ["42"]
    with pytest.raises(NothingToTrainError):
        of({**thoughtful, "weight": 0}, assistant(""))


def test_weights_with_tags_around_two_turns_are_refused(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer(f"{BEGIN}{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}{END}")
    conversation = [user("q"), assistant("a"), assistant("b", weight=0)]
    with pytest.raises(DataError, match=r"cannot be told.*Take the weights out"):
        render_sft(tokenizer, conversation)


def test_an_empty_turn_of_weight_0_keeps_its_end_untrained(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("tags")
    sequence = render_sft(tokenizer, [user("q"), assistant("", weight=0), user("r"), assistant("b")])
    assert trained(tokenizer, sequence) == ["b<|im_end|>"]


def test_tags_keep_the_white_space_around_them(make_tokenizer: MakeTokenizer) -> None:
    """Stretches are found by characters written at the tags, which must not change what those strip."""
    for begin in (
        "{% generation %}",
        "{%- generation %}",
        "{% generation -%}",
        "{%- generation -%}",
        "{%+ generation %}",
    ):
        for end in ("{% endgeneration %}", "{%- endgeneration %}", "{% endgeneration -%}"):
            tokenizer = make_tokenizer(
                "{% for m in messages %}\n<|{{ m.role }}|>\n  {% if m.role == 'assistant' %}\n  "
                f"{begin}\n  {{{{ m.content }}}}\n  {end}\n  "
                "{% else %}{{ m.content }}{% endif %}\n{% endfor %}"
            )
            conversation = [user("q"), assistant("the answer"), user("r"), assistant("42")]
            sequence = render_sft(tokenizer, conversation)
            text = tokenizer.apply_chat_template(conversation, tokenize=False)
            assert sequence.input_ids == tokenizer.encode(text, add_special_tokens=False)
            assert [found.strip() for found in trained(tokenizer, sequence)] == ["the answer", "42"]


def test_a_tag_in_a_comment_is_none(make_tokenizer: MakeTokenizer) -> None:
    tokenizer = make_tokenizer("{# {% generation %} #}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}")
    assert trained(tokenizer, render_sft(tokenizer, [user("q"), assistant("a")])) == ["a</s>"]


VICUNA = (
    "{% for m in messages %}"
    "{{ 'USER: ' + m.content + ' ' if m.role == 'user' else 'ASSISTANT: ' + m.content + '</s>' }}"
    "{% endfor %}{{ 'ASSISTANT:' if add_generation_prompt }}"
)


def test_a_first_turn_begins_as_later_ones_do(make_tokenizer: MakeTokenizer) -> None:
    """Behind the generation prompt, though there is none before the first message."""
    tokenizer = make_tokenizer(VICUNA)
    sequence = render_sft(tokenizer, [assistant("42"), user("q"), assistant("42")])
    assert trained(tokenizer, sequence) == [" 42</s>", " 42</s>"]
    # Without a generation prompt the model would write the header itself.
    tokenizer = make_tokenizer("{% for m in messages %}{{ m.role + ':' + m.content + eos_token }}{% endfor %}")
    sequence = render_sft(tokenizer, [assistant("42"), user("q"), assistant("42")])
    assert trained(tokenizer, sequence) == ["assistant:42</s>"] * 2


@pytest.mark.parametrize("template", ["chatml", "qwen3", "llama3", "gemma", "mistral", "mistral_tools", "phi3", VICUNA])
def test_what_is_trained_begins_where_the_prompt_ends(make_tokenizer: MakeTokenizer, template: str) -> None:
    """Every token that a rollout would draw is trained, and none that it is given, in each turn of a conversation."""
    tokenizer = make_tokenizer(template)
    conversation = [user("q"), assistant("the answer"), user("r"), assistant("42")]
    for turns in (1, 2):
        asked = conversation[: 2 * turns - 1]
        prompt = render_prompt(tokenizer, asked)
        sequence = render_sft(tokenizer, [*asked, conversation[2 * turns - 1]])
        assert sequence.input_ids[: len(prompt)] == prompt
        assert sequence.loss_mask[len(prompt)] and not sequence.loss_mask[len(prompt) - 1]


def test_what_is_no_conversation_is_refused(make_tokenizer: MakeTokenizer) -> None:
    tokenizer: Any = make_tokenizer("chatml")
    wrong: Any
    for wrong in ("hello", user("q"), None, 3):
        with pytest.raises(DataError, match="A list of messages is expected, but this is"):
            render_sft(tokenizer, wrong)
    with pytest.raises(DataError, match=r"messages\[1\] must be a dict with role and content, but is str: 'a'"):
        wrong = [user("q"), "a"]
        render_sft(tokenizer, wrong)
    with pytest.raises(DataError, match=r"tokenizer in memory fails on this text: it has '\\ud800', half a"):
        render_sft(tokenizer, [user("q"), assistant("\ud800")])
    with pytest.raises(DataError, match=r"tokenizer in memory fails on this text: it has '\\ud800', half a"):
        tokenize_sft(tokenizer, "q", "\ud800")
    with pytest.raises(DataError, match="The prompt must be text, but is NoneType"):
        wrong = None
        tokenize_sft(tokenizer, wrong, "a")
    with pytest.raises(DataError, match="The response must be text, but is list"):
        wrong = ["a"]
        tokenize_sft(tokenizer, "q", wrong)


def test_an_unknown_mode_of_truncation() -> None:
    mode: Any = "bogus"
    for limit in (1, 9):
        with pytest.raises(ValueError, match="one of error, left, right, middle, but is 'bogus'"):
            truncate_sft(SftSequence([1, 2, 3], [True] * 3), limit, mode)
