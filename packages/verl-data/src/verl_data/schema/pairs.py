"""What a row must hold that compares two answers: for preference losses (DPO) and for reward models.

========================  ==============================================================================================
chosen, rejected          the better and the worse answer, both text or both lists of messages; chosen_response and
                          rejected_response are other names. Messages are the answer alone, or the whole conversation
prompt                    text or a list of messages. Without one, a preference row gets what chosen and rejected share
                          at their beginning; a reward-model row needs none
any other                 as in RL rows: images, videos, audios, agent_name, tools_kwargs, tools
========================  ==============================================================================================

Text is one turn: the prompt the user's, the answers the assistant's. Where data.prompt_format is rendered, all three
are finished text.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from verl_data.config import DataConfig
from verl_data.errors import DataError
from verl_data.schema.fields import OPTIONAL_COLUMNS, kind, messages_problem, optional_problems, text_problems

Side = TypeVar("Side", str, list[dict[str, Any]])
_Messages = list[dict[str, Any]]

CHOSEN, REJECTED = ("chosen", "chosen_response"), ("rejected", "rejected_response")


class _Unsound(Exception):  # noqa: N818 - never leaves this module
    """The problems of a row, on their way to who asked."""

    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = list(problems)


def pair_columns(config: DataConfig) -> tuple[str, ...]:
    """The columns that the functions of this module look at."""
    return config.prompt_key, *CHOSEN, *REJECTED, "extra_info", *OPTIONAL_COLUMNS


def preference_row_problems(row: Mapping[str, Any], config: DataConfig) -> list[str]:
    """Return what is wrong with a preference row, each naming the field; empty if it is sound."""
    return _problems(row, config, prompt_needed=True)


def reward_row_problems(row: Mapping[str, Any], config: DataConfig) -> list[str]:
    """Return what is wrong with a row for a reward model, each naming the field; empty if it is sound."""
    return _problems(row, config, prompt_needed=False)


def preference_row(row: Mapping[str, Any], config: DataConfig) -> dict[str, Any]:
    """Return a preference row in the one form that training uses: prompt, chosen, rejected, and its other columns.

    All three are lists of messages, the answers beginning behind the prompt; where data.prompt_format is rendered, all
    three are text, and prompt + chosen is the whole. Raises DataError for a row that is not sound.
    """
    return _canonical(row, config, prompt_needed=True)


def reward_row(row: Mapping[str, Any], config: DataConfig) -> dict[str, Any]:
    """Return a row for a reward model in the form of `preference_row`; without a prompt, that is empty and the answers
    are what is judged.
    """
    return _canonical(row, config, prompt_needed=False)


def split_shared_prefix(chosen: Side, rejected: Side) -> tuple[Side, Side, Side]:
    """Split two answers that begin alike into ``(prompt, chosen, rejected)``; prompt + answer gives back each.

    Of texts the prompt is what all characters up to the first difference are; a space before that belongs to the
    answers, because tokenizers write it into the word behind it. Of lists of messages it is the messages that are
    alike, where a key that is None is as good as none.
    """
    length = 0
    for one, other in zip(chosen, rejected, strict=False):
        if one != other and (isinstance(one, str) or not _same_message(one, other)):
            break
        length += 1
    if isinstance(chosen, str) and length > 0 and chosen[length - 1] == " ":
        length -= 1
    return chosen[:length], chosen[length:], rejected[length:]


def _problems(row: Mapping[str, Any], config: DataConfig, *, prompt_needed: bool) -> list[str]:
    problems = []
    try:
        _triple(row, config, prompt_needed)
    except _Unsound as found:
        problems = found.problems
    problems += optional_problems(row)
    for name in (config.prompt_key, *CHOSEN, *REJECTED, "tools"):
        problems += text_problems(name, row.get(name))
    return problems


def _canonical(row: Mapping[str, Any], config: DataConfig, *, prompt_needed: bool) -> dict[str, Any]:
    if problems := _problems(row, config, prompt_needed=prompt_needed):
        raise DataError(f"{'; '.join(problems)}.")
    prompt, chosen, rejected = _triple(row, config, prompt_needed)
    used = {config.prompt_key, *CHOSEN, *REJECTED}
    rest = {name: value for name, value in row.items() if name not in used}
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected, **rest}


def _triple(row: Mapping[str, Any], config: DataConfig, prompt_needed: bool) -> tuple[Any, Any, Any]:
    """Return (prompt, chosen, rejected) in their final form; _Unsound if there is no such thing."""
    names = [_name(row, choices) for choices in (CHOSEN, REJECTED)]
    if missing := [choices[0] for name, choices in zip(names, (CHOSEN, REJECTED), strict=True) if name is None]:
        raise _Unsound(
            f"lacks {' and '.join(missing)}; it has {', '.join(row) or 'no columns'}. The better answer is chosen (or "
            f"chosen_response), the worse one rejected (or rejected_response)"
        )
    better, worse = (name for name in names if name is not None)
    if config.prompt_format == "rendered":
        return _rendered(row, config.prompt_key, better, worse, prompt_needed)
    problems = [f"field {name}{problem}" for name in (better, worse) if (problem := _problem(row[name])) is not None]
    prompt = row.get(config.prompt_key)
    if prompt is not None and (prompt == "" or (problem := _problem(prompt)) is not None):
        problems.append(f"field {config.prompt_key}{_problem(prompt or None)}")
    if problems:
        raise _Unsound(*problems)
    chosen, rejected = row[better], row[worse]
    if isinstance(chosen, str) != isinstance(rejected, str):
        raise _Unsound(
            f"field {worse}: {better} is {_form(chosen)} but this is {_form(rejected)}; write both in the same way"
        )
    if isinstance(chosen, str):
        if prompt is None and prompt_needed:
            prompt, chosen, rejected = split_shared_prefix(chosen, rejected)
            if not prompt.strip():
                raise _Unsound(_no_prompt(config.prompt_key, better, worse))
        return (
            _as_messages(prompt or [], "user"),
            _as_messages(chosen, "assistant"),
            _as_messages(rejected, "assistant"),
        )
    return _conversations(config.prompt_key, prompt, (better, chosen), (worse, rejected), prompt_needed)


def _rendered(row: Mapping[str, Any], name: str, better: str, worse: str, prompt_needed: bool) -> tuple[str, str, str]:
    prompt, chosen, rejected = row.get(name), row[better], row[worse]
    problems = [
        f"field {field}: finished text is expected because data.prompt_format is rendered, not {kind(value)}"
        for field, value in ((better, chosen), (worse, rejected), (name, "" if prompt is None else prompt))
        if not isinstance(value, str)
    ]
    if problems:
        raise _Unsound(*problems)
    if not prompt and prompt_needed:
        prompt, chosen, rejected = split_shared_prefix(chosen, rejected)
        if not prompt:
            raise _Unsound(_no_prompt(name, better, worse))
    return prompt or "", chosen, rejected


def _conversations(
    name: str,
    prompt: str | _Messages | None,
    better: tuple[str, _Messages],
    worse: tuple[str, _Messages],
    prompt_needed: bool,
) -> tuple[_Messages, _Messages, _Messages]:
    """Two lists of messages: answers alone, or whole conversations, whose shared beginning is the prompt."""
    shared, *rests = split_shared_prefix(better[1], worse[1])
    alone = better[1][0]["role"] == worse[1][0]["role"] == "assistant"
    if prompt is None:
        if alone and not prompt_needed:
            return [], better[1], worse[1]
        if alone or not shared:
            raise _Unsound(_no_prompt(name, better[0], worse[0]))
    elif alone:
        return _as_messages(prompt, "user"), better[1], worse[1]
    else:
        given = _as_messages(prompt, "user")
        if _begins_with(shared, given):
            shared, *rests = given, better[1][len(given) :], worse[1][len(given) :]
        elif not (isinstance(prompt, str) and any(_is_user_turn(message, prompt) for message in shared)):
            field, messages = worse if better[1][0]["role"] == "assistant" else better
            raise _Unsound(
                f"field {field}[0]: it is a message of {messages[0]['role']!r:.40}, so this is a whole conversation, "
                f"but {better[0]} and {worse[0]} do not both begin with {name}. Give the answers alone, or "
                f"conversations that begin with {name}"
            )
    for (field, messages), rest in zip((better, worse), rests, strict=True):
        if not rest or rest[0]["role"] != "assistant":
            found = "ends there" if not rest else f"goes on with a message of {rest[0]['role']!r:.40}"
            raise _Unsound(
                f"field {field}[{len(messages) - len(rest)}]: an answer of the assistant is expected behind the prompt "
                f"of {len(shared)} messages, but the conversation {found}. The pair must differ in what the assistant "
                f"says"
            )
    return shared, rests[0], rests[1]


def _as_messages(value: Any, role: str) -> list[dict[str, Any]]:
    """Return a list of messages as it is, and text as one message of `role`."""
    return [{"role": role, "content": value}] if isinstance(value, str) else list(value)


def _name(row: Mapping[str, Any], choices: Sequence[str]) -> str | None:
    """Return under which of its names a row has a field; one that is not empty, if there is any."""
    there = [name for name in choices if name in row]
    return next((name for name in there if row[name] is not None), there[0] if there else None)


def _problem(value: Any) -> str | None:
    if isinstance(value, str):
        return None
    problem = messages_problem(value)
    return problem and problem.replace(": a list of messages", ": text or a list of messages", 1)


def _no_prompt(name: str, better: str, worse: str) -> str:
    return (
        f"lacks {name}, and {better} and {worse} have no beginning in common that could be it. Add a column {name}, or "
        f"name yours with data.prompt_key"
    )


def _form(value: Any) -> str:
    return "text" if isinstance(value, str) else "a list of messages"


def _begins_with(messages: _Messages, beginning: _Messages) -> bool:
    return len(messages) >= len(beginning) and all(map(_same_message, messages, beginning))


def _is_user_turn(message: Mapping[str, Any], text: str) -> bool:
    return message["role"] == "user" and message.get("content") == text


def _same_message(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(one.get(key) == other.get(key) for key in {*one, *other})
