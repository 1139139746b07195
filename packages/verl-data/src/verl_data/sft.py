"""Conversations as training sequences: the tokens of the full render, and which of them the assistant wrote."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from verl_data.config import Truncation
from verl_data.errors import DataError
from verl_data.prompts import (
    FAULTS,
    IGNORED_TOOLS,
    Message,
    Tokenizer,
    ignores_tools,
    native_messages,
    require_mode,
    to_native,
    truncate,
    without_none,
)
from verl_data.sft_marks import Span
from verl_data.sft_parts import require_shown
from verl_data.sft_spans import assistant_spans
from verl_data.sft_tags import has_tags, tagged_spans

#: The key of an assistant message that chooses whether it is trained: 1, the default, or 0. It is the published name
#: of fine-tuning services, and no chat template sees it.
WEIGHT_KEY = "weight"


class NothingToTrainError(DataError):
    """A sequence in which no token is trained."""


class SftTokenizer(Tokenizer, Protocol):
    """What is used of a fast Hugging Face tokenizer."""

    @property
    def is_fast(self) -> bool:
        """Whether it knows which characters a token comes from."""
        ...

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a sequence."""
        ...

    @property
    def all_special_tokens(self) -> list[str]:
        """BOS, EOS and the like."""
        ...

    @property
    def added_tokens_decoder(self) -> Mapping[int, Any]:
        """Tokens beside the vocabulary, by id."""
        ...

    def get_chat_template(self, chat_template: str | None, tools: Any) -> str:
        """The template for conversations with `tools`, or without."""
        ...


@dataclass(frozen=True)
class SftSequence:
    """One sequence to train on."""

    input_ids: list[int]
    """(L,) the tokens."""
    loss_mask: list[bool]
    """(L,) true on the tokens that are trained: what the assistant writes, its end-of-turn tokens included."""

    def __post_init__(self) -> None:
        """Raise ValueError unless the two are of one length."""
        if len(self.input_ids) != len(self.loss_mask):
            raise ValueError(f"A sequence of {len(self.input_ids)} tokens has a mask of {len(self.loss_mask)}.")

    def __len__(self) -> int:
        """L, the tokens."""
        return len(self.input_ids)

    @property
    def trained_tokens(self) -> int:
        """Tokens that a loss counts; the first of a sequence never is one, because nothing predicts it."""
        return sum(self.loss_mask[1:])


def render_sft(
    tokenizer: SftTokenizer,
    messages: Sequence[Mapping[str, Any]],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> SftSequence:
    """Render a conversation in one call of the chat template, tokenise it once, and mark what the assistant writes.

    `input_ids` are the tokens of the full render, with nothing added. `loss_mask` is true on what the assistant
    writes in it: text, thinking and tool calls up to and including the end-of-turn token, but neither what
    `render_prompts` would give (the role header, by a generation prompt) nor white space behind the turn. It is taken
    from where characters stand in that render, never from pieces: by the template's own ``{% generation %}`` tags where
    it has them, else as described in `verl_data.sft_spans`. A token that only begins before the assistant's text, or
    only ends behind it, is trained.

    A message of the assistant with ``"weight": 0`` is context only, and not trained.

    Raises DataError if the tokenizer has no chat template or is not a fast one; if the template refuses the messages,
    cannot be followed, or writes nothing of `tools`, of a message's content, of a tool call, or of the thinking of the
    last turn (see `verl_data.sft_parts`); and for a weight that is neither 0 nor 1. NothingToTrainError if no token is
    trained.
    """
    _require_fast(tokenizer)
    if not tokenizer.chat_template:
        raise DataError(
            f"The tokenizer in {tokenizer.name_or_path or 'memory'} has no chat template, so messages cannot become a "
            "sequence. Write one into its folder as chat_template.jinja; or give prompt and response as text."
        )
    native = native_messages(messages)
    schemas = without_none(to_native(list(tools))) if tools is not None and len(tools) else None
    if not any(message.get("role") == "assistant" for message in native):
        raise NothingToTrainError("No message has the role assistant, so there is nothing to train.")
    trained = {number: _weight(number, message) for number, message in enumerate(native)}
    arguments = {"tools": schemas, **to_native(dict(template_kwargs or {}))}

    def render(part: Sequence[Message], generation_prompt: bool, **other: Any) -> str:
        chosen = {"tokenize": False, "add_generation_prompt": generation_prompt, **arguments, **other}
        return str(_apply(tokenizer, part, **chosen))

    text = render(native, False)
    if schemas and ignores_tools(partial(render, native, False), schemas):
        raise DataError(f"{_template_of(tokenizer)} {IGNORED_TOOLS}")
    ids, extents = _tokenize(tokenizer, text)
    template = tokenizer.get_chat_template(arguments.get("chat_template"), schemas)
    if has_tags(template):
        spans = tagged_spans(
            native, text, trained, template, lambda part, source: render(part, False, chat_template=source)
        )
    else:
        special = {*tokenizer.all_special_tokens, *map(str, tokenizer.added_tokens_decoder.values())}
        found = assistant_spans(native, text, special, render)
        spans = [span for number, span in found.items() if trained[number]]
    require_shown(native, text, render)
    sequence = SftSequence(ids, _mask(extents, spans))
    if not sequence.trained_tokens:
        raise NothingToTrainError("The assistant writes nothing in this conversation that is to be trained.")
    return sequence


def tokenize_sft(tokenizer: SftTokenizer, prompt: str, response: str) -> SftSequence:
    """Tokenise a prompt and a response that are finished text, in one piece; the response and its EOS are trained.

    As in `tokenize_rendered` special tokens in the text become their ids and no other is added, but for the EOS, which
    is appended unless the response ends with it.

    Raises DataError if the tokenizer is not a fast one or has no EOS, NothingToTrainError if both texts are empty.
    """
    _require_fast(tokenizer)
    if tokenizer.eos_token_id is None:
        raise DataError(
            f"The tokenizer in {tokenizer.name_or_path or 'memory'} has no EOS token, so a response cannot be ended: "
            "the model would never learn to stop. Set its eos_token."
        )
    for name, given in (("prompt", prompt), ("response", response)):
        if not isinstance(given, str):
            raise DataError(f"The {name} must be text, but is {type(given).__name__}: {given!r:.80}.")
    text = prompt + response
    ids, extents = _tokenize(tokenizer, text)
    mask = _mask(extents, [(len(prompt), len(text))])
    if not (response and ids and ids[-1] == tokenizer.eos_token_id):
        ids, mask = [*ids, tokenizer.eos_token_id], [*mask, True]
    sequence = SftSequence(ids, mask)
    if not sequence.trained_tokens:
        raise NothingToTrainError("Prompt and response are empty, so there is nothing to train.")
    return sequence


def sft_messages(
    row: Mapping[str, Any],
    *,
    messages_key: str = "messages",
    prompt_key: str = "prompt",
    response_key: str = "response",
) -> list[Message]:
    """Return the conversation of a row: its messages; or its prompt, text or messages, and the response to it.

    Raises DataError naming the columns of a row that has neither.
    """
    if (messages := row.get(messages_key)) is not None:
        return list(to_native(messages))
    prompt, response = row.get(prompt_key), row.get(response_key)
    if prompt is None or not isinstance(response, str):
        raise DataError(
            f"A row for fine-tuning holds {messages_key} (a list of messages), or {prompt_key} and {response_key} "
            f"(text), but this one has {', '.join(row) or 'no columns'}."
        )
    asked = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(to_native(prompt))
    return [*asked, {"role": "assistant", "content": response}]


def truncate_sft(sequence: SftSequence, max_tokens: int, mode: Truncation) -> SftSequence:
    """Shorten a sequence to at most `max_tokens`, ids and mask by the same cut; see `truncate` for the modes.

    Raises DataError in mode error for a sequence that is longer, NothingToTrainError where the cut leaves no token to
    train, ValueError for any other mode.
    """
    require_mode(mode)
    if len(sequence) <= max_tokens:
        return sequence
    if mode == "error":
        raise DataError(
            f"the sequence has {len(sequence)} tokens, but at most {max_tokens} are allowed. Allow more, drop such "
            "conversations, or cut them with the truncation left, right or middle."
        )
    kept = truncate(range(len(sequence)), max_tokens, mode)
    cut = SftSequence([sequence.input_ids[i] for i in kept], [sequence.loss_mask[i] for i in kept])
    if not cut.trained_tokens:
        raise NothingToTrainError(
            f"Cut to {max_tokens} of {len(sequence)} tokens (truncation {mode}), the sequence has none that is trained."
        )
    return cut


def _apply(tokenizer: SftTokenizer, messages: Sequence[Message], **arguments: Any) -> Any:
    from jinja2 import TemplateError

    who = _template_of(tokenizer)
    try:
        return tokenizer.apply_chat_template(list(messages), **arguments)
    except TemplateError as error:
        raise DataError(f"{who} refuses these messages: {error}") from error
    except FAULTS as error:
        raise DataError(f"{who} fails on these messages: {type(error).__name__}: {error}") from error


def _template_of(tokenizer: SftTokenizer) -> str:
    return f"The chat template of {tokenizer.name_or_path or 'the tokenizer'}"


def _tokenize(tokenizer: SftTokenizer, text: str) -> tuple[list[int], list[Span]]:
    """Return the tokens of `text`, and from which to before which character each extends.

    Tokenizers that leave outer white space out of offsets give a token of white space none at all: each token is taken
    to begin at the latest where those before it end. The bytes of one character share it.
    """
    try:
        encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    except FAULTS as error:
        surrogate = next((c for c in text if "\ud800" <= c <= "\udfff"), None)
        why = (
            f"{type(error).__name__}: {error}"
            if surrogate is None
            else f"it has {surrogate!r}, half a character, which no tokenizer takes. Repair or drop such texts"
        )
        raise DataError(f"The tokenizer in {tokenizer.name_or_path or 'memory'} fails on this text: {why}.") from error
    extents: list[Span] = []
    reached = 0
    for start, end in encoding["offset_mapping"]:
        extents.append((min(start, reached), end))
        reached = max(reached, end)
    return list(encoding["input_ids"]), extents


def _mask(extents: Sequence[Span], spans: Sequence[Span]) -> list[bool]:
    """Which tokens share a character with one of `spans`."""
    return [any(begin < end and stop > start for start, end in spans) for begin, stop in extents]


def _weight(number: int, message: Message) -> bool:
    weight = message.pop(WEIGHT_KEY, None)
    if weight is None:
        return message.get("role") == "assistant"
    if weight not in (0, 1):
        raise DataError(f"messages[{number}].{WEIGHT_KEY} must be 1, to be trained, or 0, but is {weight!r}.")
    if weight and message.get("role") != "assistant":
        raise DataError(
            f"messages[{number}].{WEIGHT_KEY} is {weight}, but its role is {message.get('role')}: only what the "
            "assistant writes is trained."
        )
    return bool(weight)


def _require_fast(tokenizer: SftTokenizer) -> None:
    if not tokenizer.is_fast:
        raise DataError(
            f"The tokenizer in {tokenizer.name_or_path or 'memory'} is not a fast one: it does not tell which "
            "characters are a token, so that what is to be trained cannot be told. Load it with a tokenizer.json."
        )
