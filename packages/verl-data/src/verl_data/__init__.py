"""Training data for LLM post-training: rows to Parquet, prompts, a resumable loader and the packed batch.

A name is imported at its first use, so that `import verl_data` takes a few milliseconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl_data.batch import PackedBatch
    from verl_data.check import check_file
    from verl_data.check_report import CheckReport
    from verl_data.chunks import read_rows
    from verl_data.collate import collate_padded, pack_sequences
    from verl_data.columns import Handle, Ragged
    from verl_data.config import DataConfig
    from verl_data.errors import DataError
    from verl_data.loader import Prompt, PromptLoader
    from verl_data.packing import balance, pack
    from verl_data.processor import DataProcessor, Manifest
    from verl_data.prompts import PromptError, render_prompt, render_prompts, tokenize_rendered, truncate
    from verl_data.row_writer import write_rows
    from verl_data.schema import (
        preference_row,
        preference_row_problems,
        recognise_schema,
        require_known_data_sources,
        reward_row,
        reward_row_problems,
        rl_row_problems,
        sft_row,
        sft_row_problems,
        split_shared_prefix,
    )
    from verl_data.sft import NothingToTrainError, SftSequence, render_sft, sft_messages, tokenize_sft, truncate_sft
    from verl_data.show import show_rows
    from verl_data.sources import HfDataset

    __version__: str

__all__ = [
    "CheckReport",
    "DataConfig",
    "DataError",
    "DataProcessor",
    "Handle",
    "HfDataset",
    "Manifest",
    "NothingToTrainError",
    "PackedBatch",
    "Prompt",
    "PromptError",
    "PromptLoader",
    "Ragged",
    "SftSequence",
    "__version__",
    "balance",
    "check_file",
    "collate_padded",
    "pack",
    "pack_sequences",
    "preference_row",
    "preference_row_problems",
    "read_rows",
    "recognise_schema",
    "render_prompt",
    "render_prompts",
    "render_sft",
    "require_known_data_sources",
    "reward_row",
    "reward_row_problems",
    "rl_row_problems",
    "sft_messages",
    "sft_row",
    "sft_row_problems",
    "show_rows",
    "split_shared_prefix",
    "tokenize_rendered",
    "tokenize_sft",
    "truncate",
    "truncate_sft",
    "write_rows",
]

#: The module of each public name, imported at its first use.
_MODULES = {
    "CheckReport": "check_report",
    "DataConfig": "config",
    "DataError": "errors",
    "DataProcessor": "processor",
    "Handle": "columns",
    "HfDataset": "sources",
    "Manifest": "processor",
    "NothingToTrainError": "sft",
    "PackedBatch": "batch",
    "Prompt": "loader",
    "PromptError": "prompts",
    "PromptLoader": "loader",
    "Ragged": "columns",
    "SftSequence": "sft",
    "balance": "packing",
    "check_file": "check",
    "collate_padded": "collate",
    "pack": "packing",
    "pack_sequences": "collate",
    "preference_row": "schema",
    "preference_row_problems": "schema",
    "read_rows": "chunks",
    "recognise_schema": "schema",
    "render_prompt": "prompts",
    "render_prompts": "prompts",
    "render_sft": "sft",
    "require_known_data_sources": "schema",
    "reward_row": "schema",
    "reward_row_problems": "schema",
    "rl_row_problems": "schema",
    "sft_messages": "sft",
    "sft_row": "schema",
    "sft_row_problems": "schema",
    "show_rows": "show",
    "split_shared_prefix": "schema",
    "tokenize_rendered": "prompts",
    "tokenize_sft": "sft",
    "truncate": "prompts",
    "truncate_sft": "sft",
    "write_rows": "row_writer",
}


def __getattr__(name: str) -> Any:
    value: Any
    if name == "__version__":
        from importlib.metadata import version

        value = version("verl-data")
    elif name in _MODULES:
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
