"""From messages to prompt tokens: one rendering call and one place that truncates."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, get_args

import numpy as np

from verl_data.config import DataConfig, Truncation
from verl_data.errors import DataError

Message = dict[str, Any]


class PromptError(DataError):
    """One of several prompts cannot be made."""

    def __init__(self, message: str, index: int = 0) -> None:
        super().__init__(message)
        self.index = index
        """Its position among them, from 0."""


#: What to do about a prompt over data.max_prompt_length.
OVERLONG_REMEDIES = (
    "Raise data.max_prompt_length, set data.filter_overlong_prompts=true to drop such prompts, or data.truncation to "
    "left, right or middle to cut them."
)


class Tokenizer(Protocol):
    """What is used of a Hugging Face tokenizer, fast or slow."""

    @property
    def chat_template(self) -> Any:
        """A Jinja template, several by name, or None."""
        ...

    @property
    def name_or_path(self) -> str:
        """The folder it was loaded from."""
        ...

    def apply_chat_template(self, conversation: Any, **kwargs: Any) -> Any:
        """Render conversations, and tokenise them."""
        ...

    def __call__(self, text: Any, **kwargs: Any) -> Any:
        """Tokenise texts."""
        ...


def render_prompts(
    tokenizer: Tokenizer,
    conversations: Sequence[Sequence[Mapping[str, Any]]],
    *,
    tools: Sequence[Sequence[Mapping[str, Any]] | None] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> list[list[int]]:
    """Render each conversation up to where the assistant begins to answer, and tokenise it: one call of the chat
    template does both, for all conversations with the same tools, so that a fast tokenizer can use its threads.

    The template writes every special token itself, so no second BOS can appear. Only native Python types reach it;
    keys of messages and tools whose value is None are dropped, because Parquet fills in a None for every key that any
    other message has, and templates ask whether a key is there.

    Args:
        tokenizer: one with a chat template.
        conversations: the messages of each.
        tools: the tool schemas of each, or None where it has none.
        template_kwargs: what else the template reads, the same for all.

    Returns the token ids of each. Raises PromptError, which tells a conversation that is no list of messages, that the
    template refuses or fails on, whose tools it does not write, or for a character of which the tokenizer has no token;
    DataError if the tokenizer has no chat template.
    """
    if not tokenizer.chat_template:
        raise DataError(
            f"The tokenizer in {tokenizer.name_or_path or 'memory'} has no chat template, so messages cannot become a "
            "prompt. Write one into its folder as chat_template.jinja; or, if the prompt column holds finished "
            "text, set data.prompt_format=rendered."
        )
    native = []
    for index, messages in enumerate(conversations):
        try:
            native.append(native_messages(messages))
        except DataError as error:
            raise PromptError(str(error), index) from error
    if [] in native:
        raise PromptError("There are no messages to make a prompt of.", native.index([]))
    of_tools: dict[str, tuple[Any, list[int]]] = {}
    for index, schemas in zip(range(len(native)), tools or [None] * len(native), strict=True):
        plain = without_none(to_native(list(schemas))) if schemas is not None and len(schemas) else None
        of_tools.setdefault(repr(plain), (plain, []))[1].append(index)  # not by ==: templates show the order of keys
    who = f"The chat template of {tokenizer.name_or_path or 'the tokenizer'}"
    apply = partial(
        tokenizer.apply_chat_template,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
        **to_native(dict(template_kwargs or {})),
    )
    for plain, indices in of_tools.values():
        if plain and ignores_tools(partial(apply, native[indices[0]], tokenize=False), plain):
            raise PromptError(f"{who} {IGNORED_TOOLS}", indices[0])
    rendered: list[list[int]] = [[] for _ in native]
    for plain, indices in of_tools.values():
        chosen = {index: native[index] for index in indices}
        call = partial(apply, tools=plain)
        found = _each(call, chosen, who, "these messages", tokenizer, partial(call, tokenize=False))
        for index, ids in zip(indices, found, strict=True):
            rendered[index] = ids
    return rendered


def render_prompt(
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> list[int]:
    """`render_prompts` of one conversation."""
    return render_prompts(tokenizer, [messages], tools=[tools], template_kwargs=template_kwargs)[0]


def tokenize_rendered_prompts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Tokenise prompts that are finished text: nothing is added, and special tokens written in them become their ids.

    Equal to `render_prompts` where a text is what the chat template writes. Raises PromptError, which tells the first
    text that the tokenizer cannot take, or has no token for a character of.
    """
    who = f"The tokenizer in {tokenizer.name_or_path or 'memory'}"
    numbered = dict(enumerate(texts))

    def call(some: list[str]) -> Any:
        return tokenizer(some, add_special_tokens=False)["input_ids"]

    return _each(call, numbered, who, "this text", tokenizer, str)


def tokenize_rendered(tokenizer: Tokenizer, text: str) -> list[int]:
    """`tokenize_rendered_prompts` of one text."""
    return tokenize_rendered_prompts(tokenizer, [text])[0]


def prompts_of_rows(tokenizer: Tokenizer, rows: Sequence[Mapping[str, Any]], config: DataConfig) -> list[list[int]]:
    """Return the prompts of training rows as token ids before any truncation, as every reader of rows makes them.

    Raises PromptError, which tells the first row whose prompt is refused or has no tokens; DataError.
    """
    prompts = [row[config.prompt_key] for row in rows]
    if config.prompt_format == "rendered":
        ids = tokenize_rendered_prompts(tokenizer, prompts)
    else:
        tools = [row.get("tools") for row in rows]
        ids = render_prompts(tokenizer, prompts, tools=tools, template_kwargs=config.apply_chat_template_kwargs)
    if [] in ids:
        raise PromptError("the prompt renders to 0 tokens, so there is nothing to answer.", ids.index([]))
    return ids


#: What is said of a template that writes the same with tools as without.
IGNORED_TOOLS = (
    "writes nothing of the tools that are given, so the model would not know of them. Use a template that writes "
    "tools, or describe them in a message and leave the column tools empty."
)


def ignores_tools(render: Callable[..., str], tools: Any) -> bool:
    """Whether `render`, called with `tools` and without, writes the same."""
    from jinja2 import TemplateError

    try:
        return render(tools=tools) == render(tools=None)
    except (TemplateError, *FAULTS):
        return False  # it fails on the messages anyway, which is told elsewhere, or without the tools


#: What a template, or a tokenizer, raises where an input is not as it expects: it is a program like any other.
FAULTS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)


def _each(
    call: Callable[[list[Any]], Any],
    items: Mapping[int, Any],
    who: str,
    what: str,
    tokenizer: Tokenizer,
    text_of: Callable[[Any], Any],
) -> list[list[int]]:
    """Return what `call` makes of all items at once; PromptError for the first that it fails on by itself, or whose
    text, which `text_of` returns, has a character without a token.
    """
    if not items:
        return []
    from jinja2 import TemplateError

    try:
        found = [list(ids) for ids in call(list(items.values()))]
    except (TemplateError, *FAULTS):
        for index, item in items.items():
            try:
                call([item])
            except TemplateError as error:
                raise PromptError(f"{who} refuses {what}: {error}", index) from error
            except FAULTS as error:
                fault = f"{who} fails on {what}: {type(error).__name__}: {error}"
                raise PromptError(_missing_tokens(tokenizer, text_of, item) or fault, index) from error
        raise
    for (index, item), ids in zip(items.items(), found, strict=True):
        if None in ids:
            raise PromptError(_missing_tokens(tokenizer, text_of, item) or f"{who} makes no token of {what}.", index)
    return found


def _missing_tokens(tokenizer: Tokenizer, text_of: Callable[[Any], Any], item: Any) -> str | None:
    """Say which characters a tokenizer has no token for; None if it has one for each.

    A slow tokenizer without an unknown token gives None for them, or, where it makes a mask and the first id is None,
    fails without a word on the reason.
    """
    from jinja2 import TemplateError

    def lacks(text: str) -> bool:
        return None in tokenizer(text, add_special_tokens=False, return_attention_mask=False)["input_ids"]

    try:
        text = str(text_of(item))
        if not lacks(text):
            return None
    except (TemplateError, *FAULTS):
        return None
    characters = [repr(c) for c in dict.fromkeys(text) if lacks(c)]
    return (
        f"The tokenizer in {tokenizer.name_or_path or 'memory'} has no token for "
        f"{', '.join(characters[:3]) or 'a part of the text'}, and no unknown token. Drop or change such texts, or set "
        "its unk_token."
    )


def truncate(ids: Sequence[int], max_tokens: int, mode: Truncation) -> list[int]:
    """Shorten `ids` to at most `max_tokens`.

    left keeps the last tokens, right the first, middle the first ``max_tokens // 2`` and the last rest; error raises
    DataError naming both lengths. Raises ValueError for any other mode.
    """
    require_mode(mode)
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


def require_mode(mode: str) -> None:
    """Raise ValueError unless `mode` is one of truncation."""
    if mode not in get_args(Truncation):
        raise ValueError(f"Truncation must be one of {', '.join(get_args(Truncation))}, but is {mode!r}.")


def native_messages(messages: Any) -> list[Message]:
    """Return messages as native Python types, without keys whose value is None; DataError if they are no messages."""
    native = None if isinstance(messages, (str, Mapping)) else to_native(messages)
    if not isinstance(native, list):
        raise DataError(f"A list of messages is expected, but this is {type(messages).__name__}: {messages!r:.80}.")
    for number, message in enumerate(native):
        if not isinstance(message, dict):
            raise DataError(
                f"messages[{number}] must be a dict with role and content, but is {type(message).__name__}: "
                f"{message!r:.80}."
            )
    return [without_none(message) for message in native]


def to_native(value: Any) -> Any:
    """Turn numpy arrays and scalars, tuples and mappings, at any depth, into lists, plain scalars and dicts."""
    if isinstance(value, np.ndarray):
        return [to_native(entry) for entry in value] if value.ndim else to_native(value[()])
    if isinstance(value, np.generic):
        return value if value.dtype.kind in "mM" else value.item()  # as integers, times would lose their unit
    if isinstance(value, Mapping):
        return {key: to_native(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_native(entry) for entry in value]
    return value


def without_none(value: Any) -> Any:
    """Drop the keys of dicts whose value is None, at any depth."""
    if isinstance(value, dict):
        return {key: without_none(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return [without_none(entry) for entry in value]
    return value
