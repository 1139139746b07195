"""Marks around the texts of messages: characters that occur nowhere else in a conversation."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from verl_data.errors import DataError
from verl_data.prompts import Message

Span = tuple[int, int]
#: Renders messages to text, with a generation prompt or without; DataError where the template refuses them.
Render = Callable[[Sequence[Message], bool], str]
#: What the thinking of a message is called, whichever key has it.
REASONING = "thinking"

_THINKING_TAGS = re.compile("(</?think>)")
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
# Ideographs that hardly any text uses, then private-use planes: characters that no template strips, escapes or changes.
_MARKS = (range(0x20000, 0x2A6E0), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


class Around(NamedTuple):
    """The text on both sides of a mark, up to the next ones."""

    preceding: str | None
    """The mark before; None at the beginning."""
    before: str
    behind: str


class View(NamedTuple):
    """A render with marks, taken apart."""

    text: str
    """Without the marks."""
    marks: list[tuple[int, str]]
    """Each mark and its position in `text`, in order."""

    @property
    def last(self) -> tuple[int, str | None]:
        """The last mark; the beginning if there is none."""
        return self.marks[-1] if self.marks else (0, None)

    @property
    def rest(self) -> str:
        """What follows the last mark."""
        return self.text[self.last[0] :]

    def around(self, mark: str) -> Around | None:
        """What stands around a mark; None unless it is there just once."""
        places = [i for i, (_, found) in enumerate(self.marks) if found == mark]
        if len(places) != 1:
            return None
        marks = [(0, None), *self.marks, (len(self.text), None)]
        (begin, preceding), (position, _), (end, _) = marks[places[0] : places[0] + 3]
        return Around(preceding, self.text[begin:position], self.text[position:end])


class Marks:
    """The marks of one conversation, each of which belongs to a message.

    `probe` and `follower` belong to none: they are texts to be rendered in messages that are not in the conversation.
    """

    def __init__(self, messages: Sequence[Message], text: str, *, everything: bool, fill: bool = False) -> None:
        """Mark the texts of `messages`, whose render is `text`: of all, or only what the assistant says, without the
        names of tools; with `fill` also contents without text. DataError if there are more texts than marks.
        """
        self._fill = fill
        used = set(text).union(*(_texts(message) for message in messages))
        self._free = (mark for mark in map(chr, chain(*_MARKS)) if mark not in used)
        self.probe, self.follower = self._new_mark(), self._new_mark()
        self.owners: dict[str, int] = {}
        """The message that each mark belongs to."""
        self.parts: dict[str, tuple[int, str]] = {}
        """The message of each mark, and the part of it: content, thinking, or one of its tool calls."""
        self.messages = [
            self._mark(number, message, names=everything)
            if everything or message.get("role") == "assistant"
            else message
            for number, message in enumerate(messages)
        ]
        """The messages with marks."""
        self._pattern = re.compile(f"[{self.probe}{self.follower}{''.join(self.owners)}]")

    def take_apart(self, rendered: str) -> View:
        """Tell the marks in a render from its text."""
        found = enumerate(self._pattern.finditer(rendered))
        return View(self._pattern.sub("", rendered), [(match.start() - count, match[0]) for count, match in found])

    def _new_mark(self) -> str:
        mark = next(self._free, None)
        if mark is None:
            raise DataError("it holds more texts than there are characters to mark them with")
        return mark

    def _mark(self, number: int, message: Message, *, names: bool) -> Message:
        """Wrap the texts of a message.

        Marks stand inside of outer white space, which templates strip, and on both sides of thinking tags, at which
        they split.
        """

        def wrap(value: Any, part: str) -> Any:
            if isinstance(value, dict):
                return {key: wrap(entry, part) for key, entry in value.items()}
            if isinstance(value, list):
                return [wrap(entry, part) for entry in value]
            if not isinstance(value, str):
                return value
            pieces = _THINKING_TAGS.split(value)
            answer = 0  # the first piece that is no thinking: templates take all before the last closing tag for it
            if part == "content" and message.get("role") == "assistant":
                answer = max((i for i, piece in enumerate(pieces) if piece == "</think>"), default=0)
            return "".join(enclose(piece, part if i >= answer else REASONING) for i, piece in enumerate(pieces))

        def enclose(piece: str, part: str) -> str:
            body = piece.strip()
            if not body or _THINKING_TAGS.fullmatch(piece):
                return piece
            lead = piece.index(body)
            before, after = self._new_mark(), self._new_mark()
            self.owners[before] = self.owners[after] = number
            self.parts[before] = self.parts[after] = number, part
            return f"{piece[:lead]}{before}{body}{after}{piece[lead + len(body) :]}"

        marked = dict(message)
        for key in ("content", *_REASONING_KEYS):
            value, part = message.get(key), "content" if key == "content" else REASONING
            if isinstance(value, str):
                marked[key] = wrap(value, part)
            elif isinstance(value, list):
                marked[key] = [
                    {**piece, "text": wrap(piece["text"], part)}
                    if isinstance(piece, dict) and "text" in piece
                    else piece
                    for piece in value
                ]
        if isinstance(calls := message.get("tool_calls"), list):
            said = ("name", "arguments") if names else ("arguments",)
            marked["tool_calls"] = [
                _mark_call(call, said, partial(wrap, part=f"tool_calls[{place}]")) if isinstance(call, dict) else call
                for place, call in enumerate(calls)
            ]
        if self._fill and isinstance(content := message.get("content"), str) and not content.strip():
            filled = self._new_mark()
            self.owners[filled] = number
            marked["content"] = filled + content
        return marked


def _mark_call(call: dict[str, Any], said: Collection[str], wrap: Callable[[Any], Any]) -> dict[str, Any]:
    marked = {key: wrap(value) if key in said else value for key, value in call.items()}
    if isinstance(call.get("function"), dict):
        marked["function"] = _mark_call(call["function"], said, wrap)
    return marked


def _texts(value: Any) -> Iterable[str]:
    """All texts in `value`, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from chain(value, *(_texts(entry) for entry in value.values()))
    elif isinstance(value, list):
        for entry in value:
            yield from _texts(entry)
