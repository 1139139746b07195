"""GSM8K as conversations for SFT: the question, and the whole solution as the answer to imitate.

python -m verl_data.processors.gsm8k_multiturn_sft --local_dataset_path COPY --local_save_dir data/gsm8k_sft
"""

import sys
from collections.abc import Sequence
from os import PathLike

from verl_data.processor import Manifest
from verl_data.processors.command import run
from verl_data.processors.gsm8k import HUB, SPLITS, gsm8k_row
from verl_data.processors.splits import OnError, SplitProcessor, prepare_splits
from verl_data.rows import Row


class Gsm8kSftProcessor(SplitProcessor):
    """Turns {question, answer} into SFT rows."""

    def process_row(self, row: Row, index: int) -> Row:
        """Return the prompt of `gsm8k_row`, answered by the solution as it stands."""
        prompt = gsm8k_row(row, self.split, index)["prompt"]
        return {"messages": [*prompt, {"role": "assistant", "content": row["answer"]}]}


def prepare_gsm8k_multiturn_sft(
    save_dir: str | PathLike[str], *, dataset_path: str | PathLike[str] | None = None, on_error: OnError = "raise"
) -> dict[str, Manifest]:
    """Write train.parquet and test.parquet to `save_dir`; arguments and errors are those of `prepare_gsm8k`."""
    sources = HUB.splits(SPLITS, dataset_path)
    return prepare_splits(lambda split: Gsm8kSftProcessor(split, on_error=on_error), sources, save_dir)


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command; return the exit status."""
    return run(__doc__, "~/data/gsm8k_sft", prepare_gsm8k_multiturn_sft, argv)


if __name__ == "__main__":
    sys.exit(main())
