"""From messages to prompt tokens: one rendering call and one place that truncates."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from verl_data.config import Truncation
from verl_data.errors import DataError

Message = dict[str, Any]

#: What to do about a prompt over data.max_prompt_length.
OVERLONG_REMEDIES = (
    "Raise data.max_prompt_length, set data.filter_overlong_prompts=true to drop such prompts, or data.truncation to "
    "left, right or middle to cut them."
)


class Tokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    @property
    def chat_template(self) -> Any:
        """A Jinja template, several by name, or None."""
        ...

    @property
    def name_or_path(self) -> str:
        """The folder it was loaded from."""
        ...

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """Render messages, and tokenise them."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Tokenise text."""
        ...


def render_prompt(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> list[int]:
    """Render messages up to where the assistant begins to answer, and tokenise them, in one call of the chat template.

    The template writes every special token itself, so no second BOS can appear. Only native Python types reach it;
    keys of messages and tools whose value is None are dropped, because Parquet fills in a None for every key that any
    other message has, and templates ask whether a key is there.

    Raises DataError if the tokenizer has no chat template, or if the template refuses the messages.
    """
    if not tokenizer.chat_template:
        raise DataError(
            f"The tokenizer in {tokenizer.name_or_path or 'memory'} has no chat template, so messages cannot become a "
            "prompt. Write one into its folder as chat_template.jinja; or, if the prompt column holds finished "
            "text, set data.prompt_format=rendered."
        )
    from jinja2 import TemplateError

    try:
        ids = tokenizer.apply_chat_template(
            [_without_none(to_native(message)) for message in messages],
            tools=[_without_none(to_native(tool)) for tool in tools] if tools else None,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **to_native(dict(template_kwargs or {})),
        )
    except TemplateError as error:
        raise DataError(
            f"The chat template of {tokenizer.name_or_path or 'the tokenizer'} refuses these messages: {error}"
        ) from error
    return list(ids)


def tokenize_rendered(tokenizer: Tokenizer, text: str) -> list[int]:
    """Tokenise a prompt that is finished text: nothing is added, and special tokens written in it become their ids.

    Equal to `render_prompt` where the text is what the chat template writes.
    """
    return list(tokenizer.encode(text, add_special_tokens=False))


def truncate(ids: Sequence[int], max_tokens: int, mode: Truncation) -> list[int]:
    """Shorten `ids` to at most `max_tokens`.

    left keeps the last tokens, right the first, middle the first ``max_tokens // 2`` and the last rest; error raises
    DataError naming both lengths.
    """
    if len(ids) <= max_tokens:
        return list(ids)
    if mode == "left":
        return list(ids[len(ids) - max_tokens :])
    if mode == "right":
        return list(ids[:max_tokens])
    if mode == "middle":
        head = max_tokens // 2
        return [*ids[:head], *ids[len(ids) - (max_tokens - head) :]]
    raise DataError(
        f"the prompt has {len(ids)} tokens, but data.max_prompt_length is {max_tokens}. {OVERLONG_REMEDIES}"
    )


def to_native(value: Any) -> Any:
    """Turn numpy arrays and scalars, tuples and mappings, at any depth, into lists, plain scalars and dicts."""
    if isinstance(value, np.ndarray):
        return [to_native(entry) for entry in value.tolist()]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: to_native(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_native(entry) for entry in value]
    return value


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return [_without_none(entry) for entry in value]
    return value
