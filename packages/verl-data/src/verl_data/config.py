"""What can be set about training data."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from verl_data.files import PathLike

Truncation = Literal["error", "left", "right", "middle"]
PromptFormat = Literal["messages", "rendered"]

#: Arguments of apply_chat_template that rendering itself decides.
_RENDERING_ARGUMENTS = frozenset(
    {
        "add_generation_prompt",
        "continue_final_message",
        "conversation",
        "max_length",
        "padding",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tools",
        "truncation",
    }
)

#: Fields that count something.
_COUNTS = ("train_batch_size", "max_prompt_length", "max_response_length", "train_max_samples", "val_max_samples")


def weighted_entries(
    files: PathLike | Sequence[PathLike], weights: Sequence[float] | None
) -> list[tuple[PathLike, float | None]]:
    """Return the entries of `files` (paths, globs, URLs) that are in use, each with its weight, or None without
    weights.

    Raises ValueError for weights that do not fit.
    """
    entries = [files] if isinstance(files, (str, os.PathLike)) else list(files)
    if weights is None:
        return [(entry, None) for entry in entries]
    if odd := [weight for weight in weights if not isinstance(weight, (int, float)) or isinstance(weight, bool)]:
        raise ValueError(f"data.train_weights must be numbers, but one is {odd[0]!r:.60}.")
    if len(weights) != len(entries):
        raise ValueError(
            f"data.train_weights has {len(weights)} weights ({', '.join(f'{weight:g}' for weight in weights)}), but "
            f"data.train_files has {len(entries)} entries. Give one for each; a glob is one entry."
        )
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights) or not any(weights):
        raise ValueError(
            f"data.train_weights must be numbers of at least 0, and not all 0, but is {list(weights)}. They are "
            "proportions: [3, 1] takes three rows of the first entry for each of the second."
        )
    return [(entry, weight) for entry, weight in zip(entries, weights, strict=True) if weight]


@dataclass
class DataConfig:
    """Where prompts come from and how they become tokens and batches; lengths are tokens, batch sizes prompts."""

    train_files: str | list[str] = field(default_factory=list)
    """Your training rows: a Parquet or JSONL path, a glob, or a list of them."""
    val_files: str | list[str] = field(default_factory=list)
    """The rows that validation scores; never trained on."""
    train_weights: list[float] | None = None
    """Mix your training files in these proportions, one for each entry of train_files (a glob is one entry), in every
    batch; 0 leaves an entry out. Null takes every row once an epoch."""
    train_batch_size: int = 1024
    """Prompts per training step; lower it for small data or memory, raise it for steadier gradients."""
    max_prompt_length: int = 512
    """Longest prompt in tokens; raise it when prompts are truncated or refused."""
    max_response_length: int = 512
    """Longest response in tokens; raise it when many responses end with finish_reason length."""
    prompt_key: str = "prompt"
    """The column that holds the prompt, if your rows name it differently."""
    reward_fn_key: str = "data_source"
    """The column that chooses the reward rule of a row, if your rows name it differently."""
    shuffle: bool = True
    """Turn off to train in file order. To train on easy rows first, set order_by."""
    order_by: str | None = None
    """Train on easy rows first: a column that holds a number (extra_info.level), or FILE.py:FUNCTION, which gets a row
    and returns one. Rows come in ascending order of it in every epoch; equals in the shuffled order."""
    seed: int | None = None
    """Order of the rows and choice of the samples; null means 1. Change it to see how much a result depends on it."""
    truncation: Truncation = "error"
    """What happens to a prompt over max_prompt_length: left, right and middle say where tokens are cut; error stops
    before the run begins, which renders every prompt once at start-up to measure it (some thousands a second)."""
    filter_overlong_prompts: bool = False
    """Drop prompts over max_prompt_length before training; measures them at start-up in the same way."""
    train_max_samples: int = -1
    """Train on this many rows (a random choice if shuffle, else the first) to try something quickly; -1 takes all."""
    val_max_samples: int = -1
    """Validate on this many rows only, chosen in the same way, when validation takes too long; -1 takes all."""
    apply_chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Switches of the model's chat template, for example {enable_thinking: false}."""
    prompt_format: PromptFormat = "messages"
    """Set to rendered when the prompt column holds finished text with all special tokens, to be used as it is."""

    def __post_init__(self) -> None:
        """Raise ValueError for a value that cannot mean anything, naming the field."""
        for name in (*_COUNTS, "seed"):
            value = getattr(self, name)
            if (not isinstance(value, int) or isinstance(value, bool)) and (name, value) != ("seed", None):
                raise ValueError(f"data.{name} must be a whole number, but is {value!r}.")
        for name in ("train_batch_size", "max_prompt_length", "max_response_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"data.{name} must be at least 1, but is {getattr(self, name)}.")
        for name in ("train_max_samples", "val_max_samples"):
            if getattr(self, name) < 1 and getattr(self, name) != -1:
                raise ValueError(f"data.{name} must be a number of rows, or -1 for all, but is {getattr(self, name)}.")
        if self.seed is not None and self.seed < 0:
            raise ValueError(f"data.seed must not be negative, but is {self.seed}.")
        for name, choices in (("truncation", Truncation), ("prompt_format", PromptFormat)):
            if getattr(self, name) not in get_args(choices):
                options = ", ".join(get_args(choices))
                raise ValueError(f"data.{name} must be one of {options}, but is {getattr(self, name)!r}.")
        if self.train_weights is not None:
            unknown = [""] * len(self.train_weights)  # a caller of PromptLoader may name its files there
            weighted_entries(self.train_files or unknown, self.train_weights)
        if self.order_by is not None and not self.order_by.strip():
            raise ValueError("data.order_by is empty; name a column or FILE.py:FUNCTION, or leave it null.")
        if taken := sorted(_RENDERING_ARGUMENTS & set(self.apply_chat_template_kwargs)):
            raise ValueError(
                f"data.apply_chat_template_kwargs may not set {', '.join(taken)}, which rendering decides itself; it "
                "is for switches that the chat template reads, such as enable_thinking."
            )

    @property
    def order_seed(self) -> int:
        """The seed in use: `seed`, or 1 where it is None."""
        return 1 if self.seed is None else self.seed
