"""A bounded look at the rows of a run: how many there are, what is wrong with them, how long their prompts are.

A run opens every row; a plan has seconds. So rows are counted everywhere, and the first ones of each file are read.
"""

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from verl_data import DataConfig, DataError, rl_row_problems
from verl_data.chunks import read_chunks
from verl_data.config import weighted_entries
from verl_data.curriculum import OrderKey
from verl_data.files import expand, fetched
from verl_data.prompts import OVERLONG_REMEDIES
from verl_data.row_files import open_rows
from verl_data.rows import BYTE_ORDER_MARK, parse_line

#: Rows that are looked at, of all files together.
TRAINING_ROWS, VALIDATION_ROWS = 1000, 200
#: Kinds of faulty rows that are told of each data set.
_FAULTS = 5
#: A line of one of these alone is no row.
_BLANK = b" \t\r\n\xef\xbb\xbf"


@dataclass(frozen=True)
class LookedAt:
    """A row and where it is."""

    location: str
    row: dict[str, Any]


@dataclass(frozen=True)
class Source:
    """An entry of data.train_files in a mix."""

    entry: str
    """A path, glob or URL."""
    rows: int
    share: float
    """Of every batch."""


@dataclass
class DataLook:
    """What is known of a data set."""

    key: str
    """data.train_files or data.val_files."""
    files: bool = True
    """Whether any were named."""
    total: int = 0
    """Rows of all files."""
    rows: list[LookedAt] = field(default_factory=list)
    """Those that were looked at and are sound."""
    looked_at: int = 0
    problems: list[str] = field(default_factory=list)
    sources: dict[str, str] = field(default_factory=dict)
    """Each data source among `rows`, and where it comes first."""
    mix: list[Source] = field(default_factory=list)
    """The entries in use, where they have weights."""

    @property
    def complete(self) -> bool:
        """Whether every row was looked at."""
        return self.looked_at == self.total


def look(files: str | list[str], key: str, config: DataConfig, most: int, *, training: bool = False) -> DataLook:
    """Count the rows of `files` and read about `most` of them; of `training`, entries without weight are left out."""
    found = DataLook(key, files=bool(files))
    if not files:
        return found  # which the configuration says itself
    weighted = weighted_entries(files, config.train_weights if training else None)
    total_weight = sum(weight or 0 for _, weight in weighted)
    names: list[list[str]] = []
    try:
        names += [expand(entry) for entry, _ in weighted]
    except (OSError, DataError) as error:
        found.problems.append(f"{key}: {error}")
        return found
    each = -(-most // sum(map(len, names)))
    judge = _Judge(found, config, _order_key(found, config) if training else None)
    for (entry, weight), of_entry in zip(weighted, names, strict=True):
        before = found.total
        for name in of_entry:
            try:
                with fetched(name) as path:
                    found.total += count_rows(name, path)
                    for place, row in islice(_rows(name, path), each):
                        judge(place, row)
            except (DataError, OSError) as error:
                found.problems.append(f"{key}: {str(error).rstrip('.')}.")
        if weight is not None:
            found.mix.append(Source(str(entry), found.total - before, weight / total_weight))
            if found.total == before and not found.problems:
                found.problems.append(f"{key}: {entry} has no rows to give {weight:g} of data.train_weights.")
    judge.tell()
    return found


def _order_key(found: DataLook, config: DataConfig) -> OrderKey | None:
    if config.order_by is None:
        return None
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what a user's file prints must not get between the plan's lines
            return OrderKey(config.order_by)
    except DataError as error:
        found.problems.append(str(error))
        return None


class _Judge:
    """Sorts rows into sound ones and kinds of faulty ones."""

    def __init__(self, found: DataLook, config: DataConfig, order: OrderKey | None) -> None:
        self.found = found
        self.config = config
        self.order = order
        self.faults: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def __call__(self, place: str, row: dict[str, Any]) -> None:
        """Look at a row."""
        found = self.found
        found.looked_at += 1
        if fault := "; ".join(rl_row_problems(row, self.config)) or self._disorder(row):
            self.faults[fault] += 1
            self.first.setdefault(fault, place)
        else:
            found.rows.append(LookedAt(place, row))
            found.sources.setdefault(row[self.config.reward_fn_key], place)

    def _disorder(self, row: dict[str, Any]) -> str | None:
        if self.order is None:
            return None
        try:
            with contextlib.redirect_stdout(sys.stderr):
                self.order(row)
        except DataError as error:
            return str(error).rstrip(".")
        return None

    def tell(self) -> None:
        """Add the commonest faults to the problems."""
        for fault, number in self.faults.most_common(_FAULTS):
            more = f" It is the first of {number:,} such rows among {self.found.looked_at:,}." if number > 1 else ""
            self.found.problems.append(f"{self.first[fault]}: {fault}.{more}")


def count_rows(name: str, path: Path) -> int:
    """The rows of a Parquet or JSONL file, as training counts them; DataError for any other.

    `path` is where the file `name` lies, which may be a URL.
    """
    suffix = Path(name).suffix.lower()
    if suffix == ".parquet":
        try:
            return int(pq.read_metadata(path).num_rows)
        except pa.ArrowException as error:
            raise DataError(
                f"{name} cannot be read as Parquet; it may be truncated or of another format: {error}"
            ) from error
    if suffix in (".jsonl", ".json"):
        with path.open("rb") as file:
            return sum(1 for line in file if line.strip(_BLANK))
    return len(open_rows(name))  # which refuses it


def _rows(name: str, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row with its place, as training names it."""
    if Path(name).suffix.lower() == ".parquet":
        for chunk in read_chunks(name, path):
            for number, row in enumerate(chunk.rows()):
                if isinstance(row, DataError):
                    raise row
                yield chunk.location(number), row
        return
    with path.open("rb") as file:
        lines = ((number, line) for number, line in enumerate(file, 1) if line.strip(_BLANK))
        for index, (number, line) in enumerate(lines):
            yield f"{name}, row {index} (line {number})", parse_line(name, number, line.removeprefix(BYTE_ORDER_MARK))


def prompt_problems(
    found: DataLook, lengths: list[int | None], refusals: dict[int, str], config: DataConfig
) -> list[str]:
    """What is wrong with the rendered prompts of `found.rows`: `lengths` in tokens, and why some cannot be rendered."""
    problems = []
    for reason, number in Counter(refusals.values()).most_common(_FAULTS):
        place = found.rows[next(position for position, text in refusals.items() if text == reason)].location
        more = f" So it is with {number:,} of the {len(lengths):,} prompts looked at." if number > 1 else ""
        problems.append(f"{place}: {reason}{more}")
    if config.truncation == "error" and not config.filter_overlong_prompts:
        limit = config.max_prompt_length
        over = [(position, length) for position, length in enumerate(lengths) if length is not None and length > limit]
        if over:
            position, length = over[0]
            problems.append(
                f"{found.rows[position].location}: the prompt has {length} tokens, but data.max_prompt_length is "
                f"{limit}. It is the first of {len(over):,} such prompts among the {len(lengths):,} looked at; the "
                f"longest has {max(tokens for _, tokens in over)}. {OVERLONG_REMEDIES}"
            )
    return problems


@dataclass(frozen=True)
class RowsInUse:
    """How many rows a run uses."""

    rows: int
    exact: bool
    """False where a filter drops rows and only some were looked at: the share among those is taken for all."""
    dropped: int


def rows_in_use(found: DataLook, lengths: list[int | None], config: DataConfig, *, training: bool) -> RowsInUse:
    """Rows after the maximum of samples and the filter of over-long prompts."""
    most = config.train_max_samples if training else config.val_max_samples
    chosen = found.total if most == -1 else min(most, found.total)
    if not config.filter_overlong_prompts:
        return RowsInUse(chosen, True, 0)
    over = sum(length is not None and length > config.max_prompt_length for length in lengths)
    if not over:
        return RowsInUse(chosen, found.complete, 0)
    dropped = round(over * chosen / len(lengths))
    return RowsInUse(chosen - dropped, found.complete and chosen == found.total, dropped)


def too_few(found: DataLook, used: RowsInUse, config: DataConfig, *, training: bool) -> str | None:
    """Why there are too few rows, if there are."""
    dropped = (
        f" ({used.dropped:,} prompts over data.max_prompt_length={config.max_prompt_length} are dropped)"
        if used.dropped
        else ""
    )
    if used.rows == 0:
        return f"{found.key}: 0 rows{dropped}; there is nothing to {'train on' if training else 'score'}."
    if training and used.rows < config.train_batch_size:
        return (
            f"{found.key}: {used.rows} rows < batch {config.train_batch_size}{dropped}. Lower data.train_batch_size "
            f"(prompts per step) to at most {used.rows}, or add rows."
        )
    return None
