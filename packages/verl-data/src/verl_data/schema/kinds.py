"""The four kinds of training rows, and which of them a file holds."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from verl_data.config import DataConfig
from verl_data.schema.fields import MEDIA_COLUMNS
from verl_data.schema.hazards import pair_row_hazards, rl_row_hazards, sft_row_hazards
from verl_data.schema.pairs import CHOSEN, REJECTED, pair_columns, preference_row_problems, reward_row_problems
from verl_data.schema.rl import rl_row_problems, row_columns
from verl_data.schema.sft import MESSAGES, RESPONSE, sft_columns, sft_row_problems

SchemaName = Literal["rl", "sft", "preference", "reward"]
_About = Callable[[Mapping[str, Any], DataConfig], list[str]]


@dataclass(frozen=True)
class RowSchema:
    """What rows of one kind must hold."""

    needs: str
    """Its columns in words."""
    unit: str
    """What one row is, for messages."""
    columns: Callable[[DataConfig], tuple[str, ...]]
    """The columns that the functions below look at."""
    problems: _About
    """What is wrong with a row."""
    hazards: _About
    """What is doubtful about a row without problems."""
    content: Callable[[DataConfig], tuple[str, ...]]
    """The columns that make a row a copy of another one if they are alike."""


def _pair_content(config: DataConfig) -> tuple[str, ...]:
    return config.prompt_key, *CHOSEN, *REJECTED, *MEDIA_COLUMNS, "tools"


SCHEMAS: Mapping[SchemaName, RowSchema] = {
    "rl": RowSchema(
        "data_source, prompt and reward_model",
        "prompt",
        row_columns,
        rl_row_problems,
        rl_row_hazards,
        lambda config: (config.prompt_key, *MEDIA_COLUMNS, "tools"),
    ),
    "sft": RowSchema(
        "messages, or prompt and response",
        "conversation",
        sft_columns,
        sft_row_problems,
        sft_row_hazards,
        lambda config: (MESSAGES, config.prompt_key, RESPONSE, *MEDIA_COLUMNS, "tools"),
    ),
    "preference": RowSchema(
        "chosen, rejected and usually prompt",
        "pair",
        pair_columns,
        preference_row_problems,
        pair_row_hazards,
        _pair_content,
    ),
    "reward": RowSchema(
        "chosen and rejected", "pair", pair_columns, reward_row_problems, pair_row_hazards, _pair_content
    ),
}


def recognise_schema(columns: Collection[str], config: DataConfig) -> SchemaName | None:
    """Return what rows with these columns are for; None if they are none of `SCHEMAS`.

    Rows for preference and reward models look alike: they count as preference.
    """
    prompt = config.prompt_key in columns
    if "reward_model" in columns:
        return "rl"
    if all(any(name in columns for name in choices) for choices in (CHOSEN, REJECTED)):
        return "preference"
    if MESSAGES in columns or (prompt and RESPONSE in columns):
        return "sft"
    return "rl" if prompt and config.reward_fn_key in columns else None


def needs() -> str:
    """Say what rows of each schema need, for messages."""
    return "; ".join(f"{name} needs {schema.needs}" for name, schema in SCHEMAS.items())
