"""GSM8K for episodes with a tool that scores an answer before it is final (calc_gsm8k_reward).

python -m verl_data.processors.gsm8k_multiturn_w_tool --local_dataset_path COPY --local_save_dir data/gsm8k_tool
"""

import sys
from collections.abc import Sequence
from os import PathLike

from verl_data.processor import Manifest
from verl_data.processors.command import run
from verl_data.processors.gsm8k import HUB, SPLITS, gsm8k_row
from verl_data.processors.splits import OnError, SplitProcessor, prepare_splits
from verl_data.processors.tools import with_tool
from verl_data.rows import Row

TOOL = "calc_gsm8k_reward"
SYSTEM = (
    "You are a math expert. Reason step by step about the question before you call a tool. Check your answer with the "
    f"tool `{TOOL}` at least once, and correct it if the tool says that it is wrong. Then end with the final answer, "
    "written as `#### <answer>`."
)


def gsm8k_tool_row(row: Row, split: str, index: int) -> Row:
    """Return `gsm8k_row` behind a system message, with the tool's ground truth."""
    plain = gsm8k_row(row, split, index)
    prompt = [{"role": "system", "content": SYSTEM}, *plain["prompt"]]
    return with_tool({**plain, "prompt": prompt}, TOOL, ground_truth=plain["reward_model"]["ground_truth"])


class Gsm8kToolProcessor(SplitProcessor):
    """Turns {question, answer} into RL rows with a tool."""

    def process_row(self, row: Row, index: int) -> Row:
        """Return `gsm8k_tool_row`."""
        return gsm8k_tool_row(row, self.split, index)


def prepare_gsm8k_multiturn_w_tool(
    save_dir: str | PathLike[str], *, dataset_path: str | PathLike[str] | None = None, on_error: OnError = "raise"
) -> dict[str, Manifest]:
    """Write train.parquet and test.parquet to `save_dir`; arguments and errors are those of `prepare_gsm8k`."""
    sources = HUB.splits(SPLITS, dataset_path)
    return prepare_splits(lambda split: Gsm8kToolProcessor(split, on_error=on_error), sources, save_dir)


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command; return the exit status."""
    return run(__doc__, "~/data/gsm8k", prepare_gsm8k_multiturn_w_tool, argv)


if __name__ == "__main__":
    sys.exit(main())
