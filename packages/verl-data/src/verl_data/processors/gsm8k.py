"""GSM8K (Cobbe et al., 2021): grade-school word problems whose solutions end in "#### " and a number."""

import re
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Literal

from verl_data.errors import DataError
from verl_data.processor import DataProcessor, Manifest
from verl_data.rows import Row

DATA_SOURCE = "openai/gsm8k"
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
SPLITS = ("train", "test")

_ANSWER = re.compile(r"#### (-?[0-9.,]+)")


def final_answer(solution: str) -> str:
    """Return the number after "#### ", without thousands separators; ValueError if there is none."""
    found = _ANSWER.search(solution)
    if found is None:
        raise ValueError(f'the solution has no "#### " and number: {solution[-60:]!r}')
    return found.group(1).replace(",", "")


class Gsm8kProcessor(DataProcessor):
    """Turns {question, answer} into RL rows."""

    def __init__(self, split: str, *, on_error: Literal["raise", "skip"] = "raise") -> None:
        """Write `split` into extra_info."""
        super().__init__(on_error=on_error)
        self._split = split

    def process_row(self, row: Row, index: int) -> Row:
        """Ask the question, a space and `INSTRUCTION`; the ground truth is the final answer as text."""
        question, solution = row["question"], row["answer"]
        return {
            "data_source": DATA_SOURCE,
            "prompt": [{"role": "user", "content": f"{question} {INSTRUCTION}"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": final_answer(solution)},
            "extra_info": {"split": self._split, "index": index, "answer": solution, "question": question},
        }


def prepare_gsm8k(
    save_dir: str | PathLike[str], *, dataset_path: str | PathLike[str] | None = None
) -> dict[str, Manifest]:
    """Write train.parquet and test.parquet to `save_dir`.

    Args:
        save_dir: folder for the output.
        dataset_path: a local copy: a folder with train and test as .jsonl or .parquet, also as the hub lays them out
            (main/train-00000-of-00001.parquet). None loads openai/gsm8k from the Hugging Face hub.

    Raises:
        FileNotFoundError: the local copy lacks a split.
        DataError: the hub cannot be reached, or a row is not one of GSM8K.
    """
    sources = {split: _find(Path(dataset_path), split) if dataset_path else _download(split) for split in SPLITS}
    return {
        split: Gsm8kProcessor(split).run(source, Path(save_dir).expanduser() / f"{split}.parquet")
        for split, source in sources.items()
    }


def _find(folder: Path, split: str) -> list[Path]:
    folder = folder.expanduser()
    for pattern in (f"{split}.jsonl", f"{split}.parquet", f"main/{split}-*.parquet"):
        if files := sorted(folder.glob(pattern)):
            return files
    raise FileNotFoundError(
        f"{folder.absolute()} holds neither {split}.jsonl nor {split}.parquet nor main/{split}-*.parquet, so it is no "
        "copy of GSM8K."
    )


def _download(split: str) -> Iterable[Row]:
    import datasets

    try:
        rows: Iterable[Row] = datasets.load_dataset(DATA_SOURCE, "main", split=split)
    except (OSError, datasets.exceptions.DatasetsError) as error:
        raise DataError(
            f"{DATA_SOURCE} cannot be loaded from the Hugging Face hub ({type(error).__name__}: {error}). Without a "
            "network, download it elsewhere and name the folder: --local_dataset_path FOLDER, with train.jsonl and "
            "test.jsonl in it."
        ) from error
    return rows
