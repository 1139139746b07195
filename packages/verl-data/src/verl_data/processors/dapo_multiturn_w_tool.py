"""DAPO-Math-17k (Yu et al., 2025), whose rows are RL rows already, for episodes with a code interpreter; or without.

python -m verl_data.processors.dapo_multiturn_w_tool --local_dataset_path COPY --local_save_dir data/retool_dapo
python -m verl_data.processors.dapo_multiturn_w_tool --no_tool ...  # the rows as they are
"""

import sys
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from verl_data.config import DataConfig
from verl_data.errors import DataError
from verl_data.processor import DataProcessor, Manifest
from verl_data.processors.command import add_dataset_options, execute, options
from verl_data.processors.splits import HubDataset, OnError, prepare_splits
from verl_data.processors.tools import with_tool
from verl_data.rows import Row
from verl_data.schema import rl_row_problems

HUB = HubDataset("BytedTsinghua-SIA/DAPO-Math-17k")
TOOL = "code_interpreter"


class MathToolProcessor(DataProcessor):
    """Passes RL rows on, checked, with the ground truth for a code interpreter if there is `tool`."""

    def __init__(self, *, tool: bool = True, on_error: OnError = "raise") -> None:
        """Add tools_kwargs if `tool`."""
        super().__init__(on_error=on_error)
        self._tool = tool

    def process_row(self, row: Row, index: int) -> Row:
        """Return the row, of which only extra_info grows."""
        if problems := rl_row_problems(row, DataConfig()):
            raise DataError("; ".join(problems))
        return with_tool(row, TOOL, ground_truth=row["reward_model"]["ground_truth"]) if self._tool else row


def prepare_math_with_tool(
    hub: HubDataset,
    save_dir: str | PathLike[str],
    *,
    tool: bool = True,
    dataset_path: str | PathLike[str] | None = None,
    on_error: OnError = "raise",
) -> dict[str, Manifest]:
    """Write train.parquet to `save_dir`: `hub`'s rows, for a code interpreter or as they are.

    Other arguments and errors are those of `prepare_gsm8k`, with the split train only.
    """
    sources = hub.splits(["train"], dataset_path)
    return prepare_splits(lambda split: MathToolProcessor(tool=tool, on_error=on_error), sources, save_dir)


def prepare_dapo_multiturn_w_tool(
    save_dir: str | PathLike[str],
    *,
    tool: bool = True,
    dataset_path: str | PathLike[str] | None = None,
    on_error: OnError = "raise",
) -> dict[str, Manifest]:
    """Write train.parquet of DAPO-Math-17k to `save_dir`, as `prepare_math_with_tool` does."""
    return prepare_math_with_tool(HUB, save_dir, tool=tool, dataset_path=dataset_path, on_error=on_error)


def run_with_tool(doc: str | None, default_dir: str, hub: HubDataset, argv: Sequence[str] | None) -> int:
    """Be the command of a data set in this form."""
    parser = options(doc, default_dir)
    add_dataset_options(parser)
    parser.add_argument("--no_tool", action="store_true", help="leave the rows as they are, for episodes without tools")
    arguments = parser.parse_args(argv)

    def prepare(folder: Path) -> dict[str, Manifest]:
        return prepare_math_with_tool(
            hub,
            folder,
            tool=not arguments.no_tool,
            dataset_path=arguments.local_dataset_path,
            on_error=arguments.on_error,
        )

    return execute(parser, arguments, prepare)


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command; return the exit status."""
    return run_with_tool(__doc__, "~/data/retool_dapo", HUB, argv)


if __name__ == "__main__":
    sys.exit(main())
