"""Full HH-RLHF (Bai et al., 2022, as Dahoas/full-hh-rlhf): dialogues with a better and a worse answer.

python -m verl_data.processors.full_hh_rlhf --split rm --local_dataset_path COPY --local_save_dir data/full_hh_rlhf/rm

--split sft writes both answers of a dialogue as examples; rm pairs of answers, the last quarter as test.parquet; rl the
dialogues as prompts.
"""

import sys
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Literal, get_args

from verl_data.errors import DataError
from verl_data.processor import DataProcessor, Manifest
from verl_data.processors.command import add_dataset_options, execute, options
from verl_data.processors.raw import text
from verl_data.processors.splits import HubDataset, OnError, source_rows
from verl_data.rows import Row

DATA_SOURCE = "Dahoas/full-hh-rlhf"
HUB = HubDataset(DATA_SOURCE)
#: What the rows are for.
Stage = Literal["sft", "rm", "rl"]
STAGES = get_args(Stage)
#: The share of the dialogues that train a reward model; the others test it.
RM_TRAIN_SHARE = 0.75


def sft_rows(row: Row) -> list[Row]:
    """Return both answers, the better one first, as examples to imitate."""
    prompt = text(row, "prompt")
    return [{"prompt": prompt, "response": text(row, name)} for name in ("chosen", "rejected")]


def rm_row(row: Row) -> Row:
    """Return the pair of answers."""
    return {name: text(row, name) for name in ("prompt", "chosen", "rejected")}


def rl_row(row: Row, index: int) -> Row:
    """Return the dialogue as one user message; its published answer is the ground truth, for models that judge."""
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": text(row, "prompt")}],
        "ability": "alignment",
        "reward_model": {"style": "model", "ground_truth": text(row, "response")},
        "extra_info": {"split": "train", "index": index},
    }


class HhRlhfProcessor(DataProcessor):
    """Turns {prompt, response, chosen, rejected} into rows of one stage."""

    def __init__(self, stage: Stage, *, part: range | None = None, on_error: OnError = "raise") -> None:
        """Make rows for `stage`, of the dialogues with a number in `part`, or of all."""
        super().__init__(on_error=on_error)
        self._stage = stage
        self._part = part

    def process_row(self, row: Row, index: int) -> Row | list[Row] | None:
        """Return the rows of the stage; None for a dialogue of another part."""
        if self._part is not None and index not in self._part:
            return None
        if self._stage == "sft":
            return sft_rows(row)
        return rm_row(row) if self._stage == "rm" else rl_row(row, index)


def prepare_full_hh_rlhf(
    save_dir: str | PathLike[str],
    *,
    stage: Stage,
    dataset_path: str | PathLike[str] | None = None,
    on_error: OnError = "raise",
) -> dict[str, Manifest]:
    """Write train.parquet, and for a reward model test.parquet, to `save_dir`.

    Args:
        save_dir: folder for the output.
        stage: sft, rm or rl.
        dataset_path, on_error: as of `prepare_gsm8k`, with the split train.

    Raises:
        FileNotFoundError: the local copy lacks train.
        DataError: the hub cannot be reached, or a row is not one of the data set.
    """
    source = HUB.split("train", dataset_path)
    folder = Path(save_dir).expanduser()
    parts: dict[str, range | None] = {"train": None}
    if stage == "rm":
        count = sum(1 for _ in source_rows(source))
        train = int(count * RM_TRAIN_SHARE)
        if not 0 < train < count:
            raise DataError(f"{count} dialogues cannot be cut into three quarters for training and a quarter for test.")
        parts = {"train": range(train), "test": range(train, count)}
    return {
        name: HhRlhfProcessor(stage, part=part, on_error=on_error).run(source, folder / f"{name}.parquet")
        for name, part in parts.items()
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command; return the exit status."""
    parser = options(__doc__, None)
    parser.add_argument("--split", choices=STAGES, default="sft", help="what the rows are for (default sft)")
    add_dataset_options(parser)
    arguments = parser.parse_args(argv)
    arguments.default_dir = f"~/data/full_hh_rlhf/{arguments.split}"
    return execute(
        parser,
        arguments,
        lambda folder: prepare_full_hh_rlhf(
            folder, stage=arguments.split, dataset_path=arguments.local_dataset_path, on_error=arguments.on_error
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
