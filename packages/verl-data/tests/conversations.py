"""Messages in short, and what of a conversation is trained."""

from itertools import groupby
from typing import Any

from verl_data.sft import SftSequence

Message = dict[str, Any]


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def assistant(content: str, **fields: Any) -> Message:
    return {"role": "assistant", "content": content, **fields}


def tool(content: str) -> Message:
    return {"role": "tool", "content": content}


def trained(tokenizer: Any, sequence: SftSequence) -> list[str]:
    """The texts of the stretches of tokens that are trained."""
    pairs = zip(sequence.input_ids, sequence.loss_mask, strict=True)
    groups = groupby(pairs, key=lambda pair: pair[1])
    return [tokenizer.decode([token for token, _ in group]) for wanted, group in groups if wanted]
