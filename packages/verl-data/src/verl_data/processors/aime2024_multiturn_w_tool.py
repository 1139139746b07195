"""AIME 2024 as BytedTsinghua-SIA publishes it, whose rows are RL rows already, for episodes with a code interpreter.

python -m verl_data.processors.aime2024_multiturn_w_tool --local_dataset_path COPY --local_save_dir data/retool_aime2024
python -m verl_data.processors.aime2024_multiturn_w_tool --no_tool ...  # the rows as they are
"""

import sys
from collections.abc import Sequence
from os import PathLike

from verl_data.processor import Manifest
from verl_data.processors.dapo_multiturn_w_tool import prepare_math_with_tool, run_with_tool
from verl_data.processors.splits import HubDataset, OnError

HUB = HubDataset("BytedTsinghua-SIA/AIME-2024")


def prepare_aime2024_multiturn_w_tool(
    save_dir: str | PathLike[str],
    *,
    tool: bool = True,
    dataset_path: str | PathLike[str] | None = None,
    on_error: OnError = "raise",
) -> dict[str, Manifest]:
    """Write train.parquet to `save_dir`, as `prepare_math_with_tool` does."""
    return prepare_math_with_tool(HUB, save_dir, tool=tool, dataset_path=dataset_path, on_error=on_error)


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command; return the exit status."""
    return run_with_tool(__doc__, "~/data/retool_aime2024", HUB, argv)


if __name__ == "__main__":
    sys.exit(main())
