"""Whether everything that a conversation says shows in its render.

A template writes what it knows of. One that knows nothing of tool calls leaves a turn that only calls tools empty, and
the model would be trained to end there at once; one that drops a system message or a result trains answers to what
was never asked. Nothing fails in such a render, so it is looked for: every text is marked, and one of the marks of each
part of a message must show.

Thinking may be dropped from turns that others follow, which templates do by design (Qwen3, gpt-oss); that of the last
turn must show, because a template that drops it there shows none at all.
"""

from collections.abc import Sequence

from verl_data.errors import DataError
from verl_data.prompts import Message
from verl_data.sft_marks import REASONING, Marks, Render


def require_shown(messages: Sequence[Message], text: str, render: Render) -> None:
    """Raise DataError for the first part of a message of which nothing shows in `text`, the render of all."""
    expected: dict[tuple[int, str], None] = {}
    shown: set[tuple[int, str]] = set()
    for everything in (True, False):
        try:
            marks = Marks(messages, text, everything=everything)
            view = marks.take_apart(render(marks.messages, False))
        except DataError:  # marks may be what it fails on
            continue
        expected |= dict.fromkeys(marks.parts.values())
        shown |= {marks.parts[mark] for _, mark in view.marks if mark in marks.parts}
        if view.text == text:
            break  # else marks change what it writes, and it is asked again with fewer
    for number, part in expected:
        dropped_by_design = part == REASONING and number + 1 < len(messages)
        if (number, part) not in shown and not dropped_by_design:
            raise DataError(
                f"The chat template writes nothing of the {part} of messages[{number}] "
                f"({messages[number].get('role')}), so the model would be trained as if it were not there. Use a "
                "template that writes it, or take it out of the messages."
            )
