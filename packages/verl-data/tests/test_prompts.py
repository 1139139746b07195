from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_data import DataError, render_prompt, tokenize_rendered, truncate

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
