"""Addition problems with answers that are easy to check: endless practice for a tiny model."""

from collections.abc import Iterable
from os import PathLike
from pathlib import Path

import numpy as np

from verl_data.processor import DataProcessor, Manifest
from verl_data.rows import Row

DATA_SOURCE = "verl/arithmetic"


def addition_rows(low: int, high: int, *, validation: int, seed: int) -> tuple[list[Row], list[Row]]:
    """Return RL rows of all problems a + b with ``low <= a, b <= high``: those for training, and those held out.

    Args:
        low, high: smallest and largest operand, both included.
        validation: problems to hold out; no pair (a, b) is in both parts.
        seed: decides which, and the order.

    Raises ValueError if nothing would be left on one side.
    """
    if low < 0 or high < low:
        raise ValueError(f"Operands must be natural numbers from a smallest to a largest, not {low} to {high}.")
    count = (high - low + 1) ** 2
    if not 0 < validation < count:
        raise ValueError(f"Of {count} problems between 1 and {count - 1} can be held out, not {validation}.")
    # Ranks of raw numbers: NumPy keeps a bit generator's stream the same for ever, but not its shuffles.
    order = np.argsort(np.random.PCG64(seed).random_raw(count), kind="stable")
    pairs = [(low + int(i) // (high - low + 1), low + int(i) % (high - low + 1)) for i in order]
    parts = {"train": pairs[validation:], "validation": pairs[:validation]}
    train, held_out = (
        [_row(a, b, split, index) for index, (a, b) in enumerate(chosen)] for split, chosen in parts.items()
    )
    return train, held_out


def sft_pairs(rows: Iterable[Row]) -> list[Row]:
    """Return {prompt, response} of RL rows: the same messages, and the ground truth as the answer to imitate."""
    return [{"prompt": row["prompt"], "response": row["reward_model"]["ground_truth"]} for row in rows]


def prepare_addition(
    save_dir: str | PathLike[str], *, low: int, high: int, validation: int, seed: int
) -> dict[str, Manifest]:
    """Write train.parquet and validation.parquet of `addition_rows` to `save_dir`."""
    train, held_out = addition_rows(low, high, validation=validation, seed=seed)
    keep = DataProcessor(lambda row, index: row)
    folder = Path(save_dir).expanduser()
    return {
        "train": keep.run(train, folder / "train.parquet"),
        "validation": keep.run(held_out, folder / "validation.parquet"),
    }


def _row(a: int, b: int, split: str, index: int) -> Row:
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": f"{a}+{b}="}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(a + b)},
        "extra_info": {"split": split, "index": index},
    }
