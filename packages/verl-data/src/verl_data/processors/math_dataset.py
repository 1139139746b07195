r"""MATH (Hendrycks et al., 2021): competition problems whose solutions end in a \boxed answer; your own copy of it.

python -m verl_data.processors.math_dataset --local_dataset_path COPY --local_save_dir data/math

COPY holds train and test as Parquet or JSONL with the columns problem, level, type and solution (MATH-lighteval), or is
the original's folder: train/algebra/1.json, one JSON object a file.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path

from verl_data.errors import DataError
from verl_data.processor import Manifest
from verl_data.processors.boxed import last_boxed
from verl_data.processors.command import run
from verl_data.processors.raw import text
from verl_data.processors.splits import HubDataset, OnError, SplitProcessor, prepare_splits
from verl_data.rows import Row
from verl_data.sources import Source

DATA_SOURCE = "DigitalLearningGmbH/MATH-lighteval"
INSTRUCTION = "Let's think step by step and output the final answer within \\boxed{}."
SPLITS = ("train", "test")
HUB = HubDataset(DATA_SOURCE)


def math_row(row: Row, split: str, index: int) -> Row:
    """Ask the problem, a space and `INSTRUCTION`; the ground truth is what the solution's last box holds."""
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": f"{text(row, 'problem')} {INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": last_boxed(text(row, "solution"))},
        "extra_info": {"split": split, "index": index},
    }


def problem_files(folder: str | PathLike[str]) -> Iterator[Row]:
    """Yield the problems of the original layout, SUBJECT/NUMBER.json, by subject and number.

    Raises DataError, naming the file, for one that is no JSON object.
    """
    root = Path(folder).expanduser()
    for path in sorted(root.glob("*/*.json"), key=_subject_and_number):
        try:
            problem = json.loads(path.read_bytes())
        except ValueError as error:
            raise DataError(f"{path} is not JSON: {error}") from error
        if not isinstance(problem, dict):
            raise DataError(f"{path}: a JSON object is expected, not {type(problem).__name__}.")
        yield {**problem, "file": str(path)}


class MathProcessor(SplitProcessor):
    """Turns {problem, solution} into RL rows."""

    def process_row(self, row: Row, index: int) -> Row:
        """Return `math_row`; its error names the file where every problem has one."""
        try:
            return math_row(row, self.split, index)
        except ValueError as error:
            raise DataError(f"{row['file']}: {error}" if "file" in row else str(error)) from error


def prepare_math_dataset(
    save_dir: str | PathLike[str], *, dataset_path: str | PathLike[str] | None = None, on_error: OnError = "raise"
) -> dict[str, Manifest]:
    """Write train.parquet and test.parquet to `save_dir`; arguments and errors are those of `prepare_gsm8k`."""
    sources = {split: _source(split, dataset_path) for split in SPLITS}
    return prepare_splits(lambda split: MathProcessor(split, on_error=on_error), sources, save_dir)


def _source(split: str, dataset_path: str | PathLike[str] | None) -> Source:
    if dataset_path is not None:
        folder = Path(dataset_path).expanduser() / split
        if next(folder.glob("*/*.json"), None) is not None:
            return problem_files(folder)
    return HUB.split(split, dataset_path)


def _subject_and_number(path: Path) -> tuple[str, int, str]:
    return path.parent.name, int(path.stem) if path.stem.isdecimal() else -1, path.stem


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command; return the exit status."""
    return run(__doc__, "~/data/math", prepare_math_dataset, argv)


if __name__ == "__main__":
    sys.exit(main())
