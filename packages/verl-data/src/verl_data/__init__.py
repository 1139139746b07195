"""Training data for LLM post-training: rows to Parquet, prompts, a resumable loader and the packed batch."""

from importlib.metadata import version

from verl_data.batch import PackedBatch
from verl_data.columns import Ragged
from verl_data.config import DataConfig
from verl_data.errors import DataError
from verl_data.loader import Prompt, PromptLoader
from verl_data.packing import balance, pack
from verl_data.processor import DataProcessor, Manifest
from verl_data.prompts import render_prompt, tokenize_rendered, truncate
from verl_data.row_writer import write_rows
from verl_data.rows import read_rows
from verl_data.schema import require_known_data_sources, rl_row_problems

__version__ = version("verl-data")

__all__ = [
    "DataConfig",
    "DataError",
    "DataProcessor",
    "Manifest",
    "PackedBatch",
    "Prompt",
    "PromptLoader",
    "Ragged",
    "__version__",
    "balance",
    "pack",
    "read_rows",
    "render_prompt",
    "require_known_data_sources",
    "rl_row_problems",
    "tokenize_rendered",
    "truncate",
    "write_rows",
]
