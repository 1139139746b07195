import pickle
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_data import DataConfig, DataError, render_prompt, tokenize_rendered, truncate
from verl_data.prompts import PromptError, prompts_of_rows, render_prompts, tokenize_rendered_prompts
from verl_data.rendering import measure_rows

HI = [{"role": "user", "content": "hi"}]


def test_rendering_equals_template_then_tokens(chatml: Any) -> None:
    ids = render_prompt(chatml, [{"role": "user", "content": "2+2=?"}])
    text = "<|im_start|>user\n2+2=?<|im_end|>\n<|im_start|>assistant\n"
    assert chatml.decode(ids).replace(" ", "") == text
    assert ids == tokenize_rendered(chatml, text)
    assert all(type(token) is int for token in ids)


def test_one_bos(make_bos_tokenizer: Callable[[str | None], Any]) -> None:
    """Bug bank A03: the tokenizer adds BOS by itself, and so does the template."""
    tokenizer = make_bos_tokenizer("<s>{{ messages[0]['content'] }}")
    assert tokenizer("hi").input_ids == [1, 5]
    assert tokenizer("<s>hi").input_ids == [1, 1, 5]  # the trap
    assert render_prompt(tokenizer, HI) == [1, 5]
    assert tokenize_rendered(tokenizer, "<s>hi") == [1, 5]


def test_no_bos_where_the_template_writes_none(make_bos_tokenizer: Callable[[str | None], Any], chatml: Any) -> None:
    """Bug bank A04: nothing is inserted, so nothing undefined can be."""
    tokenizer = make_bos_tokenizer("{{ messages[0]['content'] }} there")
    assert render_prompt(tokenizer, HI) == [5, 6]
    assert tokenize_rendered(tokenizer, "hi there") == [5, 6]
    assert chatml.bos_token_id is None
    assert None not in render_prompt(chatml, HI)


def test_native_types_reach_the_template(make_bos_tokenizer: Callable[[str | None], Any]) -> None:
    """Bug bank A19: rows that went through pandas."""
    tokenizer = make_bos_tokenizer(
        "{% if messages %}{{ messages[0]['content'] }}{% endif %}{% if enable_thinking is true %} there{% endif %}"
        "{% if messages[0]['parts'] %} a{% endif %}"
    )
    messages = np.array([{"role": "user", "content": np.str_("hi"), "parts": np.array([1, 2])}], dtype=object)
    ids = render_prompt(tokenizer, messages, template_kwargs={"enable_thinking": np.bool_(True)})  # type: ignore[arg-type]
    assert ids == [5, 6, 7]


def test_keys_that_parquet_filled_with_none_are_gone(make_bos_tokenizer: Callable[[str | None], Any]) -> None:
    tokenizer = make_bos_tokenizer("{% if 'tool_calls' in messages[0] %}tool{% else %}user{% endif %}")
    assert render_prompt(tokenizer, [{"role": "user", "content": "hi", "tool_calls": None}]) == [3]


def test_tools_and_switches_are_rendered(make_bos_tokenizer: Callable[[str | None], Any]) -> None:
    tokenizer = make_bos_tokenizer(
        "{{ messages[0]['content'] }}{% for tool in tools or [] %} tool{% endfor %}{% if loud %} b{% endif %}"
    )
    tool = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    assert render_prompt(tokenizer, HI, tools=[tool, tool]) == [5, 4, 4]
    assert render_prompt(tokenizer, HI, template_kwargs={"loud": True}) == [5, 9 - 1]


def test_no_chat_template_says_what_to_do(make_bos_tokenizer: Callable[[str | None], Any], tmp_path: Any) -> None:
    make_bos_tokenizer(None).save_pretrained(tmp_path / "base-model")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "base-model")
    with pytest.raises(
        DataError, match=r"base-model has no chat template.*chat_template\.jinja.*prompt_format=rendered"
    ):
        render_prompt(tokenizer, HI)


def test_a_template_that_raises_gives_its_reason(make_bos_tokenizer: Callable[[str | None], Any]) -> None:
    tokenizer = make_bos_tokenizer("{{ raise_exception('System role not supported') }}")
    with pytest.raises(DataError, match="refuses these messages: System role not supported"):
        render_prompt(tokenizer, HI)


def test_truncation_cases() -> None:
    """verl-facts X1 and bug bank A10."""
    ids = [1, 2, 3, 4, 5, 6, 7]
    assert truncate(ids, 4, "left") == [4, 5, 6, 7]
    assert truncate(ids, 4, "right") == [1, 2, 3, 4]
    assert truncate(ids, 4, "middle") == [1, 2, 6, 7]
    assert truncate(range(10), 4, "middle") == [0, 1, 8, 9]
    with pytest.raises(DataError, match=r"has 10 tokens.*is 4\."):
        truncate(range(10), 4, "error")
    assert truncate(ids, 7, "error") == ids


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=12), st.integers(1, 12), st.sampled_from(["left", "right", "middle"]))
def test_truncation_keeps_what_fits(ids: list[int], limit: int, mode: Any) -> None:
    cut = truncate(ids, limit, mode)
    assert len(cut) == min(len(ids), limit)
    assert truncate(cut, limit, mode) == cut
    if mode != "left":
        assert cut[: limit // 2] == ids[: limit // 2]
    if mode != "right" and cut:
        assert cut[-1] == ids[-1]


TOOL_TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }} {% endfor %}{{ bos_token }}"
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}{% if loud %} b{% endif %}"
)
TEXTS = st.text(st.characters(blacklist_categories=["Cs"]), max_size=12)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"]), "content": TEXTS}),
    min_size=1,
    max_size=3,
)
# The same schema with its keys in another order is shown in that order.
TOOLS = st.sampled_from([None, [], [{"name": "f", "type": "x"}], [{"type": "x", "name": "f"}], [{"name": "g"}]])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(MESSAGES, TOOLS), max_size=6), st.booleans(), st.booleans())
def test_many_at_once_are_what_each_is_by_itself(conversations: list[Any], loud: bool, slow: bool) -> None:
    tokenizer = slow_tokenizer(TOOL_TEMPLATE) if slow else fast_tokenizer(TOOL_TEMPLATE)
    switches = {"loud": loud}
    rendered = render_prompts(
        tokenizer,
        [messages for messages, _ in conversations],
        tools=[tools for _, tools in conversations],
        template_kwargs=switches,
    )
    texts = [
        tokenizer.apply_chat_template(m, tools=t or None, add_generation_prompt=True, tokenize=False, **switches)
        for m, t in conversations
    ]
    assert rendered == [
        render_prompt(tokenizer, messages, tools=tools, template_kwargs=switches) for messages, tools in conversations
    ]
    assert rendered == [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    assert rendered == tokenize_rendered_prompts(tokenizer, texts)
    assert all(type(token) is int for ids in rendered for token in ids)


@cache
def slow_tokenizer(template: str) -> Any:
    """One of bytes, in Python, that adds an end of its own to every text."""
    from transformers import ByT5Tokenizer

    made: Any = ByT5Tokenizer()
    made.chat_template = template
    return made


@cache
def fast_tokenizer(template: str) -> Any:
    """One of bytes that adds BOS to every text by itself."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({"<s>": 0, **{byte: i for i, byte in enumerate(alphabet, 1)}}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer.add_special_tokens(["<s>"])
    fast: Any = PreTrainedTokenizerFast
    return fast(tokenizer_object=tokenizer, bos_token="<s>", chat_template=template)


PICKY = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{{ '<' + messages[0]['content'] + '>' }}{{ tools | tojson if tools }}"
)


@pytest.mark.parametrize("tools", [None, [None, [{"name": "f"}], None]])
def test_the_conversation_that_is_refused_is_told(tools: Any) -> None:
    tokenizer = fast_tokenizer(PICKY)
    system, parts = {"role": "system", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": "x"}]}
    with pytest.raises(PromptError, match="refuses these messages: no system role") as refused:
        render_prompts(tokenizer, [HI, HI, [system]], tools=tools)
    assert refused.value.index == 2
    with pytest.raises(PromptError, match="fails on these messages: TypeError: can only concatenate str") as failed:
        render_prompts(tokenizer, [HI, [parts], HI], tools=tools)
    assert failed.value.index == 1
    assert pickle.loads(pickle.dumps(failed.value)).index == 1  # as between processes
    with pytest.raises(PromptError, match="no messages") as empty:
        render_prompts(tokenizer, [HI, [], HI], tools=tools)
    assert empty.value.index == 1
    with pytest.raises(PromptError, match="fails on this text") as text:
        tokenize_rendered_prompts(tokenizer, ["a", "b", "\ud800"])
    assert text.value.index == 2
    with pytest.raises(ValueError, match=r"shorter|longer"):
        render_prompts(tokenizer, [HI, HI], tools=[None])


def test_tools_that_the_template_does_not_write_are_refused() -> None:
    tools = [{"name": "f"}]
    with pytest.raises(PromptError, match="writes nothing of the tools that are given") as ignored:
        render_prompts(fast_tokenizer("{{ messages[0]['content'] }}"), [HI, HI, HI], tools=[None, [], tools])
    assert ignored.value.index == 2
    with pytest.raises(PromptError, match="refuses these messages: no tools"):
        render_prompt(fast_tokenizer("{{ raise_exception('no tools') if tools }}"), HI, tools=tools)
    needed = fast_tokenizer("{{ tools | tojson if tools else raise_exception('no tools') }}")
    assert render_prompt(needed, HI, tools=tools)


def test_rows_whose_tools_are_not_written_do_not_hide_the_others() -> None:
    tokenizer = fast_tokenizer("{{ messages[0]['content'] }}")
    rows = [{"prompt": HI, "tools": [{"name": "f"}] if i % 3 == 0 else None} for i in range(300)]
    measured = list(measure_rows(rows, "rl", tokenizer, DataConfig()))
    assert [isinstance(length, DataError) for length in measured] == [i % 3 == 0 for i in range(300)]
    assert measured[1] == len(render_prompt(tokenizer, HI))


def test_what_is_no_conversation_is_refused() -> None:
    tokenizer = fast_tokenizer(PICKY)
    wrong: Any
    for wrong in ("hi", HI[0], None):
        with pytest.raises(PromptError, match="A list of messages is expected, but this is") as refused:
            render_prompts(tokenizer, [HI, wrong])
        assert refused.value.index == 1
    with pytest.raises(PromptError, match=r"messages\[0\] must be a dict with role and content, but is str: 'hi'"):
        render_prompts(tokenizer, [["hi"]])  # type: ignore[list-item]


def test_a_character_without_a_token_is_named() -> None:
    """A slow tokenizer without an unknown token gives None for it."""
    from transformers import PreTrainedTokenizer

    base: Any = PreTrainedTokenizer

    class Ascii(base):  # type: ignore[misc]
        vocab_size = 128

        def get_vocab(self) -> dict[str, int]:
            return {chr(i): i for i in range(128)}

        def _tokenize(self, text: str) -> list[str]:
            return list(text)

        def _convert_token_to_id(self, token: str) -> int | None:
            return ord(token) if ord(token) < 128 else None

        def _convert_id_to_token(self, index: int) -> str:
            return chr(index)

    tokenizer = Ascii(chat_template="<{{ messages[0]['content'] }}>")
    named = r"no token for '中', and no unknown token"
    with pytest.raises(PromptError, match=named) as refused:
        render_prompts(tokenizer, [HI, [{"role": "user", "content": "a中"}]])
    assert refused.value.index == 1
    with pytest.raises(PromptError, match=named) as text:
        tokenize_rendered_prompts(tokenizer, ["a", "a", "b中"])
    assert text.value.index == 2
    with pytest.raises(PromptError, match=named):  # where transformers would fail by itself
        tokenize_rendered(tokenizer, "中")
    assert tokenize_rendered(tokenizer, "ab") == [97, 98]


def test_an_unknown_mode_of_truncation() -> None:
    mode: Any = "bogus"
    for limit in (1, 9):
        with pytest.raises(ValueError, match="one of error, left, right, middle, but is 'bogus'"):
            truncate([1, 2, 3], limit, mode)


def test_nothing_to_render_is_nothing() -> None:
    assert render_prompts(fast_tokenizer(PICKY), []) == tokenize_rendered_prompts(fast_tokenizer(PICKY), []) == []


def test_rows_are_rendered_as_the_keys_say() -> None:
    tokenizer = fast_tokenizer(TOOL_TEMPLATE)
    tools = [{"name": "f"}]
    rows: list[dict[str, Any]] = [{"ask": HI, "tools": tools}, {"ask": HI}, {"ask": HI, "tools": None}]
    config = DataConfig(prompt_key="ask", apply_chat_template_kwargs={"loud": True})
    switches = {"loud": True}
    assert prompts_of_rows(tokenizer, rows, config) == [
        render_prompt(tokenizer, HI, tools=tools, template_kwargs=switches),
        *[render_prompt(tokenizer, HI, template_kwargs=switches)] * 2,
    ]
    finished = [{"ask": "<s>hi"}, {"ask": ""}]
    config = DataConfig(prompt_key="ask", prompt_format="rendered")
    assert prompts_of_rows(tokenizer, finished[:1], config) == [tokenizer.encode("<s>hi", add_special_tokens=False)]
    with pytest.raises(PromptError, match="renders to 0 tokens") as empty:
        prompts_of_rows(tokenizer, finished, config)
    assert empty.value.index == 1
