"""Where, in the render of a whole conversation, the text lies that the assistant writes.

A chat template is a program: what it writes for a message depends on the messages around it, so that pieces rendered
apart are not pieces of the whole. Positions are therefore read off the one full render. The texts of the messages are
wrapped in marks, characters that occur nowhere else, and the conversation is rendered once more: without the marks it
must be the full render again, and the marks tell which message each stretch of it comes from. What lies between marks
(role headers, tags, end-of-turn tokens) is told apart by rendering the conversation up to a turn:

- a turn begins where the prompt that a model answers would end: behind what the template writes for the messages
  before it, with the generation prompt if it has one. Where the turn does not continue that (a generation prompt that
  opens a thought where the turn has none), it begins behind what the template writes before any text of an
  assistant's; at the beginning of a conversation without what, in an answer to a prompt, is no part of the prompt;
- it ends with what the template writes behind the turn when the conversation ends there, as far as the full render has
  the same.

A template for which one of these does not hold is refused; none is followed by guessing.
"""

from collections.abc import Collection, Iterator, Sequence

from verl_data.errors import DataError
from verl_data.prompts import Message
from verl_data.sft_marks import Around, Marks, Render, Span, View


def assistant_spans(
    messages: Sequence[Message], text: str, special: Collection[str], render: Render
) -> dict[int, Span]:
    """Return, for each assistant message, from which to before which character of `text` the assistant writes.

    A span runs from behind the role header to the end of the end-of-turn token: texts, thinking and tool calls with
    the tags between them.

    Args:
        messages: the conversation.
        text: its full render, without a generation prompt.
        special: special tokens, as they stand in texts.
        render: the chat template.

    Raises DataError if the template cannot be followed, saying which turn and why.
    """
    # Some templates look into texts (does it begin with a tag? is this the name of a built-in tool?), which marks
    # disturb: then only what the assistant says is marked, which suffices unless the template moves other texts about.
    try:
        return _Conversation(messages, text, special, render, everything=True).spans()
    except DataError as error:
        reason = error
    try:
        return _Conversation(messages, text, special, render, everything=False).spans()
    except DataError:
        raise DataError(
            "Where the assistant's turns lie in what this chat template writes cannot be told: "
            f"{str(reason).rstrip('.')}. Put "
            "{% generation %} and {% endgeneration %} around what the assistant writes in the template."
        ) from reason


class _Conversation:
    def __init__(
        self, messages: Sequence[Message], text: str, special: Collection[str], render: Render, *, everything: bool
    ) -> None:
        self._messages = messages
        self._text = text
        self._special = special
        self._render = render
        self._marks = Marks(messages, text, everything=everything)
        self._owners = self._marks.owners
        self._full = self._view(self._marks.messages, False)
        if self._full.text != text:
            raise DataError("what it writes depends on characters inside the texts of messages")

    def spans(self) -> dict[int, Span]:
        """The span of every assistant message, checked to hold that message's text and no other's."""
        found = {
            number: self._span(number)
            for number, message in enumerate(self._messages)
            if message.get("role") == "assistant"
        }
        reached = 0
        for number, (start, end) in found.items():
            if start < reached:
                raise DataError(f"message {number} would lie before the end of the one before it")
            reached = end
            for position, mark in self._full.marks:
                inside = start <= position <= end if self._owners[mark] == number else not start < position < end
                if not inside:
                    raise DataError(f"the text of message {self._owners[mark]} lies where message {number} is sought")
        return found

    def _span(self, number: int) -> Span:
        before = self._before(number)
        place, anchor = 0, -1  # position of the last mark before the turn, and its index among all marks
        if before.marks:
            places = [i for i, (_, mark) in enumerate(self._full.marks) if mark == before.last[1]]
            if len(places) != 1:
                raise DataError(f"what stands before message {number} depends on what follows it")
            anchor = places[0]
            place = self._full.marks[anchor][0]
        own = self._own(number)
        if own != list(range(anchor + 1, anchor + 1 + len(own))):
            raise DataError(f"other messages stand between what precedes message {number} and its own text")
        behind = anchor + 1 + len(own)
        following = self._full.marks[behind][0] if behind < len(self._full.marks) else len(self._text)
        first = self._full.marks[own[0]][0] if own else following
        start = place + self._header(number, self._text[place:first], before)
        last, mark = self._full.marks[own[-1]] if own else (place, before.last[1])
        end = max(last, self._end(number, start, last, following, mark))
        return start, max(start, end)

    def _own(self, number: int) -> list[int]:
        """Which of the marks in the full render are those of a message."""
        return [i for i, (_, mark) in enumerate(self._full.marks) if self._owners[mark] == number]

    def _before(self, number: int) -> View:
        """The conversation up to the turn, with the generation prompt if the template can write one there."""
        if not number:
            return View("", [])
        try:
            return self._view(self._marks.messages[:number], True)
        except DataError:
            return self._view(self._marks.messages[:number], False)

    def _header(self, number: int, gap: str, before: View) -> int:
        """How many characters of `gap`, from the last mark before a turn to its own first, the assistant is given."""
        for header in self._headers(number, before):
            if gap.startswith(header):
                return len(header)
        raise DataError(f"message {number} does not begin as the template lets the assistant begin")

    def _headers(self, number: int, before: View) -> Iterator[str]:
        if number:
            yield before.rest
            if stripped := before.rest.rstrip():
                yield stripped
        # There is no prompt, or this turn does not continue it (earlier turns without their thinking): what precedes a
        # text that says nothing, in an earlier turn or in the last.
        lead = self._lead() if not number else ""
        for follows in (True, False):
            said = self._saying_nothing(number, follows)
            if said is not None and said.preceding == before.last[1]:
                header = said.before.removesuffix(lead)
                yield header
                yield header.rstrip()

    def _lead(self) -> str:
        """What stands between the prompt and the answer to it, which the model writes: white space, or a whole header
        where there is no generation prompt. Empty where no answer continues its prompt.
        """
        asked = {"role": "user", "content": self._marks.follower}
        try:
            prompt = self._view([asked], True)
            answered = self._view([asked, {"role": "assistant", "content": self._marks.probe}], False)
        except DataError:
            return ""
        around = answered.around(self._marks.probe)
        if around is None or around.preceding != prompt.last[1] or not around.before.startswith(prompt.rest):
            return ""
        return around.before.removeprefix(prompt.rest)

    def _saying_nothing(self, number: int, follows: bool) -> Around | None:
        """What stands around a text that the assistant says in place of the turn, the last or one that a user follows;
        None where the template takes no such turn.
        """
        said = [*self._marks.messages[:number], {"role": "assistant", "content": self._marks.probe}]
        try:
            view = self._view([*said, {"role": "user", "content": self._marks.follower}] if follows else said, False)
        except DataError:
            return None
        return view.around(self._marks.probe)

    def _end(self, number: int, start: int, last: int, following: int, mark: str | None) -> int:
        """Where the turn ends whose last mark is `mark`, at `last`, before the next mark at `following`."""
        tail = self._text[last:following]
        if number + 1 == len(self._messages):
            return self._closed(number, max(start, last), following) or last + len(tail.rstrip())
        alone = self._view(self._marks.messages[: number + 1], False)
        end = None
        if alone.last[1] == mark:
            ending, shared = alone.rest.rstrip(), _shared(alone.rest, tail)
            # Some templates write more at the end of a conversation than at the end of a turn.
            end = last + len(ending) if shared >= len(ending) else self._closed(number, max(start, last), last + shared)
        if (end is None or self._text[end:start].strip()) and not self._own(number):
            blank = len(self._text[start:following]) - len(self._text[start:following].lstrip())
            closed = self._closed(number, start, following)
            end = closed if closed and closed == start + blank + len(self._closing(number)) else None
        if end is None or self._text[end:start].strip():
            raise DataError(f"the end of message {number} depends on what follows it")
        return end

    def _closed(self, number: int, start: int, end: int) -> int | None:
        """Behind the first place in a stretch of the full render that closes a turn; None if there is none."""
        closing = self._closing(number)
        place = self._text.find(closing, start, end) if closing else -1
        return None if place < 0 else place + len(closing)

    def _closing(self, number: int) -> str:
        """What closes the turn if the assistant says a plain text, at the end of a conversation as before a user's
        turn: all that is written at the end, or else the last special token that both have; may be empty.
        """
        alone, followed = self._saying_nothing(number, False), self._saying_nothing(number, True)
        if alone is None or followed is None:
            return ""
        ending = alone.behind.rstrip()
        if followed.behind.startswith(ending):
            return ending
        shared = ending[: _shared(ending, followed.behind)]
        return shared[
            : max((shared.rfind(token) + len(token) for token in self._special if token in shared), default=0)
        ]

    def _view(self, messages: Sequence[Message], generation_prompt: bool) -> View:
        return self._marks.take_apart(self._render(messages, generation_prompt))


def _shared(a: str, b: str) -> int:
    """How many first characters two texts have in common."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
