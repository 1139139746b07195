"""A row as the model is given it, for people who look at their data and for what measures it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

from verl_data.config import DataConfig
from verl_data.errors import DataError
from verl_data.prompts import PromptError, prompts_of_rows, render_prompt
from verl_data.schema import SchemaName, preference_row, reward_row, sft_row
from verl_data.sft import SftTokenizer, render_sft, tokenize_sft

#: Prompts that are rendered in one call of the tokenizer.
_AT_ONCE = 256


class DecodingTokenizer(SftTokenizer, Protocol):
    """A Hugging Face tokenizer."""

    def decode(self, token_ids: Any, **kwargs: Any) -> Any:
        """Turn ids into text, special tokens included."""
        ...


@dataclass(frozen=True)
class RenderedPart:
    """One sequence that a row renders to: a prompt, a conversation, or one side of a pair."""

    name: str
    """prompt, conversation, chosen or rejected."""
    token_ids: list[int]
    trained: list[bool] | None
    """Of each token whether it is the answer, which is trained or compared; None for a prompt."""

    def stretches(self, tokenizer: DecodingTokenizer) -> list[tuple[str, bool]]:
        """Return the text, special tokens included, in stretches of tokens that are trained, or are not."""
        found: list[tuple[str, bool]] = []
        begin, end = "", 0
        for trained, group in groupby(self.trained or [False] * len(self.token_ids)):
            end += len(list(group))
            text = str(tokenizer.decode(self.token_ids[:end]))  # the first word of a text may lose its space: not here
            found.append((text[len(begin) :], trained))
            begin = text
        return found


def render_row(
    row: Mapping[str, Any], schema: SchemaName, tokenizer: DecodingTokenizer, config: DataConfig
) -> list[RenderedPart]:
    """Render a sound row by the calls that training uses: to one part, or to both sides of a pair.

    Raises DataError if the chat template refuses it, or there is none.
    """
    if schema == "rl":
        return [RenderedPart("prompt", prompts_of_rows(tokenizer, [row], config)[0], None)]
    if schema == "sft":
        row = sft_row(row, config)
        if "messages" in row:
            return [_conversation("conversation", row["messages"], 0, row, tokenizer, config)]
        return [_text("conversation", row["prompt"], row["response"], tokenizer)]
    row = preference_row(row, config) if schema == "preference" else reward_row(row, config)
    prompt, sides = row["prompt"], ("chosen", "rejected")
    if isinstance(prompt, str):
        return [_text(side, prompt, row[side], tokenizer) for side in sides]
    return [_conversation(side, [*prompt, *row[side]], len(prompt), row, tokenizer, config) for side in sides]


def measure_rows(
    rows: Sequence[Mapping[str, Any]], schema: SchemaName, tokenizer: DecodingTokenizer, config: DataConfig
) -> Iterator[int | DataError]:
    """Yield the length in tokens of what each sound row renders to (of a pair the longer side), or why it cannot be."""
    if schema == "rl":
        for begin in range(0, len(rows), _AT_ONCE):
            yield from _measure_prompts(rows[begin : begin + _AT_ONCE], tokenizer, config)
        return
    for row in rows:
        try:
            yield max(len(part.token_ids) for part in render_row(row, schema, tokenizer, config))
        except DataError as error:
            yield error


def _measure_prompts(
    rows: Sequence[Mapping[str, Any]], tokenizer: DecodingTokenizer, config: DataConfig
) -> Iterator[int | DataError]:
    try:
        yield from map(len, prompts_of_rows(tokenizer, rows, config))
    except PromptError as error:
        if len(rows) == 1:
            yield error
        else:  # each by itself: where one is refused most may be
            for row in rows:
                yield from _measure_prompts([row], tokenizer, config)
    except DataError as error:  # of the tokenizer, whatever it is given
        yield from [error] * len(rows)


def _conversation(
    name: str,
    messages: list[Any],
    asked: int,
    row: Mapping[str, Any],
    tokenizer: DecodingTokenizer,
    config: DataConfig,
) -> RenderedPart:
    """Render messages of which the first `asked` are a prompt, so that only what comes behind them is trained."""
    tools, switches = row.get("tools"), config.apply_chat_template_kwargs
    whole = render_sft(tokenizer, messages, tools=tools, template_kwargs=switches)
    begin = 0
    if asked:
        prompt = render_prompt(tokenizer, messages[:asked], tools=tools, template_kwargs=switches)
        pairs = zip(prompt, whole.input_ids, strict=False)
        begin = next((i for i, (one, other) in enumerate(pairs) if one != other), len(prompt))
    trained = [wanted and position >= begin for position, wanted in enumerate(whole.loss_mask)]
    return RenderedPart(name, whole.input_ids, trained)


def _text(name: str, prompt: str, answer: str, tokenizer: DecodingTokenizer) -> RenderedPart:
    whole = tokenize_sft(tokenizer, prompt, answer)
    return RenderedPart(name, whole.input_ids, whole.loss_mask)
