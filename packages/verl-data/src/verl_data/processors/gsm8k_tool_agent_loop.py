"""GSM8K for episodes of the agent loop tool_agent: the rows of gsm8k_multiturn_w_tool, which name the loop.

python -m verl_data.processors.gsm8k_tool_agent_loop --local_dataset_path COPY --local_save_dir data/gsm8k_agent
"""

import sys
from collections.abc import Sequence
from os import PathLike

from verl_data.processor import Manifest
from verl_data.processors.command import run
from verl_data.processors.gsm8k import HUB, SPLITS
from verl_data.processors.gsm8k_multiturn_w_tool import gsm8k_tool_row
from verl_data.processors.splits import OnError, SplitProcessor, prepare_splits
from verl_data.rows import Row

AGENT_NAME = "tool_agent"


class Gsm8kAgentProcessor(SplitProcessor):
    """Turns {question, answer} into RL rows for an agent loop."""

    def process_row(self, row: Row, index: int) -> Row:
        """Return `gsm8k_tool_row` with the name of the agent loop."""
        return {"agent_name": AGENT_NAME, **gsm8k_tool_row(row, self.split, index)}


def prepare_gsm8k_tool_agent_loop(
    save_dir: str | PathLike[str], *, dataset_path: str | PathLike[str] | None = None, on_error: OnError = "raise"
) -> dict[str, Manifest]:
    """Write train.parquet and test.parquet to `save_dir`; arguments and errors are those of `prepare_gsm8k`."""
    sources = HUB.splits(SPLITS, dataset_path)
    return prepare_splits(lambda split: Gsm8kAgentProcessor(split, on_error=on_error), sources, save_dir)


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command; return the exit status."""
    return run(__doc__, "~/data/gsm8k", prepare_gsm8k_tool_agent_loop, argv)


if __name__ == "__main__":
    sys.exit(main())
