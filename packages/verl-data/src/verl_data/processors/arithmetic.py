"""Addition problems with answers that are easy to check: endless practice for a tiny model."""

from collections.abc import Iterable
from os import PathLike
from pathlib import Path

import numpy as np

from verl_data.processor import DataProcessor, Manifest
from verl_data.rows import Row

DATA_SOURCE = "verl/arithmetic"


def addition_rows(
    low: int, high: int, *, validation: int, seed: int, carry_share: float | None = None
) -> tuple[list[Row], list[Row]]:
    """Return RL rows of problems a + b with ``low <= a, b <= high``: those for training, and those held out.

    Args:
        low, high: smallest and largest operand, both included.
        validation: problems to hold out; no pair (a, b) is in both parts.
        seed: decides which, and the order.
        carry_share: the share of problems whose units carry (`carries`); problems without a carry are left out until it
            is reached. None keeps every problem.

    Raises ValueError if nothing would be left on one side, or if there are too few carries for the share.
    """
    if low < 0 or high < low:
        raise ValueError(f"Operands must be natural numbers from a smallest to a largest, not {low} to {high}.")
    stream = np.random.PCG64(seed)
    pairs = _shuffled([(a, b) for a in range(low, high + 1) for b in range(low, high + 1)], stream)
    if carry_share is not None:
        pairs = _shuffled(_with_carry_share(pairs, carry_share), stream)
    if not 0 < validation < len(pairs):
        raise ValueError(f"Of {len(pairs)} problems between 1 and {len(pairs) - 1} can be held out, not {validation}.")
    parts = {"train": pairs[validation:], "validation": pairs[:validation]}
    train, held_out = (
        [_row(a, b, split, index) for index, (a, b) in enumerate(chosen)] for split, chosen in parts.items()
    )
    return train, held_out


def carries(a: int, b: int) -> bool:
    """Whether the units of a + b carry into the tens."""
    return a % 10 + b % 10 >= 10


def sft_pairs(rows: Iterable[Row]) -> list[Row]:
    """Return {prompt, response} of RL rows: the same messages, and the ground truth as the answer to imitate."""
    return [{"prompt": row["prompt"], "response": row["reward_model"]["ground_truth"]} for row in rows]


def prepare_addition(
    save_dir: str | PathLike[str], *, low: int, high: int, validation: int, seed: int, carry_share: float | None = None
) -> dict[str, Manifest]:
    """Write train.parquet and validation.parquet of `addition_rows` to `save_dir`."""
    train, held_out = addition_rows(low, high, validation=validation, seed=seed, carry_share=carry_share)
    keep = DataProcessor(lambda row, index: row)
    folder = Path(save_dir).expanduser()
    return {
        "train": keep.run(train, folder / "train.parquet"),
        "validation": keep.run(held_out, folder / "validation.parquet"),
    }


def _with_carry_share(pairs: list[tuple[int, int]], share: float) -> list[tuple[int, int]]:
    """Leave out the last pairs without a carry until the others are `share` of all."""
    with_carry = sum(carries(a, b) for a, b in pairs)
    if not with_carry / len(pairs) <= share <= 1:
        raise ValueError(
            f"carry_share must be between {with_carry / len(pairs):.3f}, the share among all {len(pairs)} problems, "
            f"and 1; got {share}."
        )
    plain = [(a, b) for a, b in pairs if not carries(a, b)]
    return [(a, b) for a, b in pairs if carries(a, b)] + plain[: round(with_carry * (1 - share) / share)]


def _shuffled(pairs: list[tuple[int, int]], stream: np.random.PCG64) -> list[tuple[int, int]]:
    """By ranks of raw numbers: NumPy keeps a bit generator's stream the same for ever, but not its shuffles."""
    return [pairs[i] for i in np.argsort(stream.random_raw(len(pairs)), kind="stable")]


def _row(a: int, b: int, split: str, index: int) -> Row:
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": f"{a}+{b}="}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(a + b)},
        "extra_info": {"split": split, "index": index},
    }
