"""What is allowed in a sound row, and yet makes for bad training: one sentence each, naming the field."""

from collections.abc import Mapping
from typing import Any

from verl_data.config import DataConfig
from verl_data.schema.pairs import CHOSEN, REJECTED
from verl_data.schema.sft import MESSAGES, RESPONSE

_ROLES = frozenset(
    ("system", "developer", "user", "assistant", "tool", "function", "ipython", "environment", "observation", "model")
)


def rl_row_hazards(row: Mapping[str, Any], config: DataConfig) -> list[str]:
    """Say what is doubtful about a sound RL row."""
    hazards = []
    reward = row["reward_model"]
    truth = reward["ground_truth"]
    if truth is None:
        hazards.append(
            f"field reward_model.ground_truth: it is empty; a reward function for style {reward['style']} must do "
            f"without"
        )
    elif isinstance(truth, (str, list, dict)) and not (truth.strip() if isinstance(truth, str) else truth):
        hazards.append("field reward_model.ground_truth: it holds nothing to compare an answer with")
    prompt = row[config.prompt_key]
    if isinstance(prompt, list) and prompt[-1]["role"] == "assistant":
        hazards.append(
            f"field {config.prompt_key}: the last message is the assistant's, so the model is asked to answer itself; "
            f"it may be the answer, which belongs into reward_model or extra_info"
        )
    return hazards + _odd_roles(config.prompt_key, prompt)


def sft_row_hazards(row: Mapping[str, Any], config: DataConfig) -> list[str]:
    """Say what is doubtful about a sound SFT row."""
    hazards: list[str] = []
    messages = row.get(MESSAGES)
    if messages is None:
        if not row[RESPONSE].strip():
            hazards.append("field response: it is empty, so the model learns to end at once")
        return hazards + _odd_roles(config.prompt_key, row[config.prompt_key])
    for number, message in enumerate(messages):
        if message["role"] == "assistant" and not message.get("tool_calls") and _is_blank(message.get("content")):
            hazards.append(f"field messages[{number}].content: the assistant says nothing, and the model learns that")
    if messages[-1]["role"] != "assistant":
        hazards.append("field messages: the last message is not the assistant's, so nothing is learnt from it")
    return hazards + _odd_roles(MESSAGES, messages)


def pair_row_hazards(row: Mapping[str, Any], config: DataConfig) -> list[str]:
    """Say what is doubtful about a sound preference or reward-model row."""
    better, worse = (
        next((name, row[name]) for name in choices if row.get(name) is not None) for choices in (CHOSEN, REJECTED)
    )
    hazards = _odd_roles(config.prompt_key, row.get(config.prompt_key)) + _odd_roles(*better) + _odd_roles(*worse)
    if better[1] == worse[1]:
        return [*hazards, f"field {worse[0]}: it is the same as {better[0]}, so there is nothing to prefer"]
    return hazards + [f"field {name}: it is empty" for name, answer in (better, worse) if _is_blank(answer)]


def _odd_roles(name: str, messages: Any) -> list[str]:
    """Say which role of a list of messages no chat template is known to have."""
    if not isinstance(messages, list):
        return []
    for number, message in enumerate(messages):
        if message["role"] not in _ROLES:
            odd = f"{message['role']!r:.40} is no role that chat templates know (user, assistant, system, tool)"
            return [f"field {name}[{number}].role: {odd}; they may leave the message out"]
    return []


def _is_blank(text: Any) -> bool:
    return isinstance(text, str) and not text.strip()
