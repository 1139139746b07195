"""GSM8K (Cobbe et al., 2021): grade-school word problems whose solutions end in "#### " and a number.

python -m verl_data.processors.gsm8k  # from the Hugging Face hub
python -m verl_data.processors.gsm8k --local_dataset_path COPY --local_save_dir data/gsm8k
"""

import re
import sys
from collections.abc import Sequence
from os import PathLike

from verl_data.processor import Manifest
from verl_data.processors.command import run
from verl_data.processors.raw import text
from verl_data.processors.splits import HubDataset, OnError, SplitProcessor, prepare_splits
from verl_data.rows import Row

DATA_SOURCE = "openai/gsm8k"
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
SPLITS = ("train", "test")
HUB = HubDataset(DATA_SOURCE, "main")

_ANSWER = re.compile(r"#### (-?[0-9.,]+)")


def final_answer(solution: str) -> str:
    """Return the number after "#### ", without thousands separators; ValueError if there is none."""
    found = _ANSWER.search(solution)
    if found is None:
        raise ValueError(f'the solution has no "#### " and number: {solution[-60:]!r}')
    return found.group(1).replace(",", "")


def gsm8k_row(row: Row, split: str, index: int) -> Row:
    """Ask the question, a space and `INSTRUCTION`; the ground truth is the final answer as text."""
    question, solution = text(row, "question"), text(row, "answer")
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": f"{question} {INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": final_answer(solution)},
        "extra_info": {"split": split, "index": index, "answer": solution, "question": question},
    }


class Gsm8kProcessor(SplitProcessor):
    """Turns {question, answer} into RL rows."""

    def process_row(self, row: Row, index: int) -> Row:
        """Return `gsm8k_row`."""
        return gsm8k_row(row, self.split, index)


def prepare_gsm8k(
    save_dir: str | PathLike[str], *, dataset_path: str | PathLike[str] | None = None, on_error: OnError = "raise"
) -> dict[str, Manifest]:
    """Write train.parquet and test.parquet to `save_dir`.

    Args:
        save_dir: folder for the output.
        dataset_path: a local copy (`HubDataset.split` says how it may look); None loads openai/gsm8k from the hub.
        on_error: what a row that is not one of GSM8K does.

    Raises:
        FileNotFoundError: the local copy lacks a split.
        DataError: the hub cannot be reached, or a row is not one of GSM8K.
    """
    sources = HUB.splits(SPLITS, dataset_path)
    return prepare_splits(lambda split: Gsm8kProcessor(split, on_error=on_error), sources, save_dir)


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command; return the exit status."""
    return run(__doc__, "~/data/gsm8k", prepare_gsm8k, argv)


if __name__ == "__main__":
    sys.exit(main())
