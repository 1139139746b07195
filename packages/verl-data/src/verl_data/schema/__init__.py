"""What the rows of training data must hold, by what they are for: rl, sft, preference or reward."""

from verl_data.schema.kinds import SCHEMAS, RowSchema, SchemaName, recognise_schema
from verl_data.schema.pairs import (
    preference_row,
    preference_row_problems,
    reward_row,
    reward_row_problems,
    split_shared_prefix,
)
from verl_data.schema.rl import prompt_row_problems, require_known_data_sources, rl_row_problems, row_columns
from verl_data.schema.sft import sft_row, sft_row_problems
from verl_data.schema.version import SCHEMA_VERSION

__all__ = [
    "SCHEMAS",
    "SCHEMA_VERSION",
    "RowSchema",
    "SchemaName",
    "preference_row",
    "preference_row_problems",
    "prompt_row_problems",
    "recognise_schema",
    "require_known_data_sources",
    "reward_row",
    "reward_row_problems",
    "rl_row_problems",
    "row_columns",
    "sft_row",
    "sft_row_problems",
    "split_shared_prefix",
]
