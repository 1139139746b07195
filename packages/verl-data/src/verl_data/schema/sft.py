"""What a row for supervised fine-tuning must hold.

========================  ==============================================================================================
messages                  the conversation: a list of messages {role, content}, one of them the assistant's. Or else:
prompt, response          text and text, or a list of messages and text. Text is one turn: the user's, the assistant's;
                          where data.prompt_format is rendered, both are finished text
any other                 as in RL rows: images, videos, audios, agent_name, tools_kwargs, tools
========================  ==============================================================================================
"""

from collections.abc import Mapping
from typing import Any

from verl_data.config import DataConfig
from verl_data.errors import DataError
from verl_data.schema.fields import (
    DICT,
    OPTIONAL_COLUMNS,
    PROCESS,
    kind,
    messages_problem,
    optional_problems,
    text_problems,
)
from verl_data.sft import sft_messages

MESSAGES, RESPONSE = "messages", "response"


def sft_columns(config: DataConfig) -> tuple[str, ...]:
    """The columns that `sft_row_problems` looks at."""
    return MESSAGES, config.prompt_key, RESPONSE, "extra_info", *OPTIONAL_COLUMNS


def sft_row_problems(row: Mapping[str, Any], config: DataConfig) -> list[str]:
    """Return what is wrong with a row, one sentence per field, each naming the field; empty if it is sound."""
    prompt = config.prompt_key
    if MESSAGES in row and (row[MESSAGES] is not None or RESPONSE not in row):
        names: tuple[str, ...] = (MESSAGES,)
        problems = _conversation_problems(row[MESSAGES])
    elif prompt in row and RESPONSE in row:
        names = (prompt, RESPONSE)
        problems = _turn_problems(row, prompt, config)
    else:
        has = ", ".join(row) or "no columns"
        renamed = "If the column of prompts has another name, set data.prompt_key"
        return [f"lacks messages (or {prompt} and response); it has {has}. {renamed}. {PROCESS}"]
    problems += optional_problems(row)
    for name in (*names, "tools"):
        problems += text_problems(name, row.get(name))
    return problems


def sft_row(row: Mapping[str, Any], config: DataConfig) -> dict[str, Any]:
    """Return the row in the one form that training uses: with `messages`, the whole conversation.

    Where data.prompt_format is rendered, a row of prompt and response keeps them, both finished text. Other columns
    stay as they are. Raises DataError for a row that is not sound.
    """
    if problems := sft_row_problems(row, config):
        raise DataError(f"{'; '.join(problems)}.")
    if row.get(MESSAGES) is not None:
        return {name: value for name, value in row.items() if name not in (config.prompt_key, RESPONSE)}
    rest = {name: value for name, value in row.items() if name not in (MESSAGES, config.prompt_key, RESPONSE)}
    if config.prompt_format == "rendered":
        return {"prompt": row[config.prompt_key], RESPONSE: row[RESPONSE], **rest}
    return {MESSAGES: sft_messages(row, prompt_key=config.prompt_key), **rest}


def _conversation_problems(messages: Any) -> list[str]:
    if isinstance(messages, str):
        form = "[{role: user, content: ...}, {role: assistant, content: ...}]"
        return [f"field {MESSAGES}: a list of messages is expected, not text. Write it as {form}"]
    if (problem := messages_problem(messages)) is not None:
        return [f"field {MESSAGES}{problem}"]
    roles = dict.fromkeys(message["role"] for message in messages)
    if "assistant" not in roles:
        only = f"it has messages of {', '.join(roles):.60} only"
        return [f"field {MESSAGES}: no message is the assistant's, so there is nothing to learn; {only}"]
    return []


def _turn_problems(row: Mapping[str, Any], name: str, config: DataConfig) -> list[str]:
    problems = []
    prompt, response = row[name], row[RESPONSE]
    if config.prompt_format == "rendered":
        if not isinstance(prompt, str) or not prompt:
            found = kind(prompt)
            problems.append(
                f"field {name}: finished text is expected because data.prompt_format is rendered, not {found}"
            )
    elif not isinstance(prompt, str):
        if (problem := messages_problem(prompt)) is not None:
            problems.append(f"field {name}{problem.replace('a list of messages', 'text or a list of messages', 1)}")
    elif not prompt:
        problems.append(f"field {name}: text or a list of messages is expected, not an empty text")
    if not isinstance(response, str):
        hint = ". Put a whole conversation into messages" if isinstance(response, (list, *DICT)) else ""
        problems.append(f"field {RESPONSE}: text is expected, not {kind(response)}{hint}")
    return problems
