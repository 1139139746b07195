"""HellaSwag (Zellers et al., 2019): which of four endings continues a text; scored by a model.

python -m verl_data.processors.hellaswag --local_dataset_path COPY --local_save_dir data/hellaswag
"""

import re
import sys
from collections.abc import Sequence
from os import PathLike

from verl_data.errors import DataError
from verl_data.processor import Manifest
from verl_data.processors.command import run
from verl_data.processors.raw import column, text
from verl_data.processors.splits import HubDataset, OnError, SplitProcessor, prepare_splits, source_rows
from verl_data.rows import Row
from verl_data.schema.fields import kind

DATA_SOURCE = "Rowan/hellaswag"
SPLITS = ("train", "validation", "test")
HUB = HubDataset(DATA_SOURCE)


def clean(passage: str) -> str:
    """Take out what WikiHow left in its passages: [title] ends a sentence, other [marks] and double spaces go."""
    passage = re.sub(r"\[.*?\]", "", passage.strip().replace(" [title]", ". "))
    return passage.replace("  ", " ")


def hellaswag_row(row: Row, split: str, index: int) -> Row:
    """Ask for the continuation; the ground truth is the number of the right ending, from 0."""
    context = f"{text(row, 'activity_label')}: {column(row, 'ctx_a')} {column(row, 'ctx_b').capitalize()}"
    endings, label = column(row, "endings"), int(column(row, "label"))
    if not isinstance(endings, list) or not 0 <= label < len(endings):
        raise DataError(f"column 'endings': a list with an entry {label} (the label) is expected, not {kind(endings)}")
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": clean(context)}],
        "ability": "nlp",
        "reward_model": {
            "style": "model",
            "eval": "multiple_choice",
            "ground_truth": label,
            "choices": [clean(ending) for ending in endings],
        },
        "extra_info": {"split": split, "index": index},
    }


class HellaSwagProcessor(SplitProcessor):
    """Turns HellaSwag into RL rows; rows without a label are dropped."""

    def process_row(self, row: Row, index: int) -> Row | None:
        """Return `hellaswag_row`, or None for a row whose label is secret."""
        return hellaswag_row(row, self.split, index) if _has_label(row) else None


def prepare_hellaswag(
    save_dir: str | PathLike[str], *, dataset_path: str | PathLike[str] | None = None, on_error: OnError = "raise"
) -> dict[str, Manifest]:
    """Write train.parquet, validation.parquet and test.parquet to `save_dir`.

    The published labels of test are secret; of a test split without any label, test.parquet is not written. Arguments
    and errors are those of `prepare_gsm8k`.
    """
    sources = HUB.splits(SPLITS, dataset_path)
    if not any(_has_label(row) for row in source_rows(sources["test"])):
        del sources["test"]
    return prepare_splits(lambda split: HellaSwagProcessor(split, on_error=on_error), sources, save_dir)


def _has_label(row: Row) -> bool:
    return column(row, "label") not in ("", None)


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command; return the exit status."""
    return run(__doc__, "~/data/hellaswag", prepare_hellaswag, argv)


if __name__ == "__main__":
    sys.exit(main())
