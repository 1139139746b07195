"""What the assistant writes, by the ``{% generation %}`` tags of a chat template."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

from verl_data.errors import DataError
from verl_data.prompts import Message
from verl_data.sft_marks import Marks, Span, View

_TAG = re.compile(r"\{%([-+]?)\s*(generation|endgeneration)\s*([-+]?)%\}")
_COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)


@dataclass
class _Stretch:
    """What one pair of tags encloses."""

    span: Span
    owners: set[int] = field(default_factory=set)
    """The messages whose texts are in it."""


def has_tags(template: str) -> bool:
    """Whether a template tells what the assistant writes."""
    return any(tag[2] == "generation" for tag in _TAG.finditer(_COMMENT.sub("", template)))


def tagged_spans(
    messages: Sequence[Message],
    text: str,
    trained: Mapping[int, bool],
    template: str,
    render: Callable[[Sequence[Message], str], str],
) -> list[Span]:
    """Return from which to before which character of `text` the assistant writes in turns that are trained.

    The template is rendered with a character written at each tag, so that stretches are exact. Which message one
    belongs to is told by marks in the texts of messages, because a turn may have several stretches, or none.

    Args:
        messages: the conversation.
        text: its full render, without a generation prompt.
        trained: of each message, whether it is.
        template: the source of the chat template, with tags.
        render: renders messages by a template.

    Raises DataError if the template looks at what is between its tags, or if some turns are not trained and stretches
    cannot be told apart by message.
    """
    marks = Marks(messages, text, everything=False)
    source = _write_at_tags(template, marks.probe, marks.follower)
    view = marks.take_apart(render(messages, source))
    if view.text != text:
        raise DataError("The chat template looks at what stands between its generation tags, which cannot be followed.")
    found = _stretches(view, marks)
    turns = [number for number, message in enumerate(messages) if message.get("role") == "assistant"]
    if not all(trained[number] for number in turns):
        found = [
            stretch
            for stretch, owners in _owned(messages, text, source, render, turns, found)
            if _agreed({trained[number] for number in owners})
        ]
    return [stretch.span for stretch in found]


def _write_at_tags(template: str, begin: str, end: str) -> str:
    """Have a template write `begin` and `end` where its tags are.

    Both stand inside of the tags, and blocks that write nothing keep the white space around as the tags had it.
    """

    def inside(tag: re.Match[str]) -> str:
        left, name, right = tag.groups()
        if name == "generation":
            return f"{{%{left} generation %}}{{{{ '{begin}' }}}}{{% if false %}}{{% endif {right}%}}"
        return f"{{%{left} if false %}}{{% endif %}}{{{{ '{end}' }}}}{{% endgeneration {right}%}}"

    return _TAG.sub(inside, template)


def _stretches(view: View, marks: Marks) -> list[_Stretch]:
    """What is between tags, whose characters are the probe and the follower of `marks`."""
    found: list[_Stretch] = []
    inside = False
    for position, mark in view.marks:
        if mark == marks.probe:
            inside = True
            found.append(_Stretch((position, position)))
        elif inside:
            found[-1].span = (found[-1].span[0], position)
            inside = mark != marks.follower
            if inside:
                found[-1].owners.add(marks.owners[mark])
    return found


def _owned(
    messages: Sequence[Message],
    text: str,
    source: str,
    render: Callable[[Sequence[Message], str], str],
    turns: Sequence[int],
    plain: Sequence[_Stretch],
) -> Iterator[tuple[_Stretch, Sequence[int] | set[int]]]:
    """Each stretch that has text, with the messages that it may belong to."""
    for everything, fill in product((True, False), repeat=2):
        marks = Marks(messages, text, everything=everything, fill=fill)
        try:
            view = marks.take_apart(render(marks.messages, source))
        except DataError:  # marks may be what it fails on
            continue
        found = _stretches(view, marks)
        if view.text == text and [stretch.span for stretch in found] == [stretch.span for stretch in plain]:
            break
    else:
        raise DataError(_UNTOLD)
    known = [(position, owner) for position, stretch in enumerate(found) for owner in stretch.owners]
    for position, stretch in enumerate(found):
        if stretch.span[0] == stretch.span[1]:
            continue
        after = max((owner for place, owner in known if place < position), default=0)
        before = min((owner for place, owner in known if place > position), default=len(messages))
        yield stretch, stretch.owners or [number for number in turns if after <= number <= before]


_UNTOLD = (
    "Which message each pair of the chat template's generation tags belongs to cannot be told, so that those of weight "
    "0 would be trained too. Take the weights out, or put the tags around the texts of one message each."
)


def _agreed(trained: set[bool]) -> bool:
    if len(trained) != 1:
        raise DataError(_UNTOLD)
    return trained.pop()
