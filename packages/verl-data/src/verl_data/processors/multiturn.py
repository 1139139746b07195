"""Three short conversations, two for training and one for test: what rows for multi-turn SFT look like.

python -m verl_data.processors.multiturn --local_save_dir data/multiturn
"""

import sys
from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from verl_data.processor import DataProcessor, Manifest
from verl_data.processors.command import execute, options
from verl_data.rows import Row

_SYSTEM = ("system", "You are a helpful assistant.")

#: (role, content) of each message.
_CONVERSATIONS = (
    (
        _SYSTEM,
        ("user", "What is the capital of Portugal?"),
        ("assistant", "The capital of Portugal is Lisbon."),
        ("user", "And of its neighbour?"),
        ("assistant", "Portugal has one neighbour, Spain, whose capital is Madrid."),
    ),
    (
        _SYSTEM,
        ("user", "How do I turn 20 degrees Celsius into Fahrenheit?"),
        ("assistant", "Multiply by 9/5 and add 32: 20 * 9/5 + 32 = 68 degrees Fahrenheit."),
    ),
    (
        _SYSTEM,
        ("user", "Write a haiku about rain."),
        ("assistant", "Rain on the tin roof,\na whole street of small drummers\nplaying the same song."),
        ("user", "Now without the drummers."),
        ("assistant", "Rain on the tin roof,\nevery gutter remembers\nthe way to the sea."),
        ("user", "Thank you!"),
        ("assistant", "You are welcome."),
    ),
)


def multiturn_rows() -> list[Row]:
    """Return the conversations as SFT rows."""
    return [
        {"messages": [{"role": role, "content": content} for role, content in conversation]}
        for conversation in _CONVERSATIONS
    ]


def prepare_multiturn(save_dir: str | PathLike[str]) -> dict[str, Manifest]:
    """Write train.parquet (two conversations) and test.parquet (one) to `save_dir`."""
    rows, folder = multiturn_rows(), Path(save_dir).expanduser()
    keep = DataProcessor(lambda row, index: row)
    return {
        "train": keep.run(rows[:2], folder / "train.parquet"),
        "test": keep.run(rows[2:], folder / "test.parquet"),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command; return the exit status."""
    parser = options(__doc__, "~/data/multiturn")
    return execute(parser, parser.parse_args(argv), prepare_multiturn)


if __name__ == "__main__":
    sys.exit(main())
