"""Prompts in batches: shuffled, mixed and ordered by seed and epoch, resumable exactly."""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_data.config import DataConfig, weighted_entries
from verl_data.curriculum import OrderKey
from verl_data.data_files import DataFiles
from verl_data.errors import DataError
from verl_data.files import PathLike
from verl_data.fingerprint import Fingerprint, as_text, changes, state_problem
from verl_data.order import Indices, RowOrder, choose, ranks, whole_weights
from verl_data.prompts import OVERLONG_REMEDIES, Message, PromptError, Tokenizer, prompts_of_rows, truncate
from verl_data.rows import Row
from verl_data.schema import prompt_row_problems, rl_row_problems, row_columns

State = dict[str, Any]


@dataclass(frozen=True)
class Prompt:
    """One row of training data, ready to be answered."""

    row: int
    """Its number in the data set: all files one after the other, from 0."""
    group: int
    """The number of this draw in the run: another for a row that is drawn again, the same after a resume. Responses to
    one draw are a group by it."""
    prompt_ids: list[int]
    """What the model is given, after any truncation; every other form of the prompt is made from this."""
    messages: list[Message] | str
    """The prompt as the file has it: messages, or text if data.prompt_format is rendered."""
    data_source: str
    """Empty, like the next two, in a loader of rows that are not scored."""
    ground_truth: Any
    extra_info: dict[str, Any]
    fields: dict[str, Any]
    """The other columns of the row."""
    truncated: bool
    """Whether tokens were cut to fit data.max_prompt_length."""


class PromptLoader:
    """The rows of Parquet or JSONL files as rendered prompts.

    Every row is validated when the files are opened. Every prompt is rendered and measured then, too, unless
    data.truncation cuts over-long ones and no filter is on. Training takes `train_batch_size` prompts a step, in an
    order that depends on nothing but the rows, the seed, the epoch and the keys about mixing and order
    (`order.RowOrder`). Validation takes the rows in file order.
    """

    def __init__(
        self,
        files: PathLike | Sequence[PathLike],
        tokenizer: Tokenizer,
        config: DataConfig,
        *,
        training: bool,
        drop_last: bool | None = None,
        scored: bool = True,
        reserved: Collection[str] = (),
    ) -> None:
        """Open and check `files` (a path, a glob, a URL or a list of them).

        With `drop_last`, rows at the end of an epoch that fill no batch are left out; otherwise its last batch is
        shorter. None leaves them out in training. Rows that are not `scored` need a prompt only: neither data source
        nor reward model is read. Columns with a `reserved` name, which the caller adds to the rows, are an error.

        Raises DataError, a ValueError, for rows that cannot be used (where prompts are measured, also for one that is
        over-long, renders to 0 tokens or is refused by the chat template) and for too few of them; ValueError for
        weights that do not fit the files; FileNotFoundError.
        """
        self._tokenizer = tokenizer
        self._config = config
        self._training = training
        self._drop_last = training if drop_last is None else drop_last
        self._scored = scored
        self._reserved = reserved
        entries = weighted_entries(files, config.train_weights if training else None)
        self._data = DataFiles([entry for entry, _ in entries])
        self._weights = whole_weights([weight for _, weight in entries if weight is not None]) or None
        self.truncated = 0
        """Prompts that were cut to max_prompt_length so far."""
        self.filtered = 0
        """Prompts that were dropped, at construction, because they are longer than max_prompt_length."""
        self.data_sources: dict[str, str] = {}
        """Each data source, and the file and row where it comes first."""
        self._check_rows()
        wanted = config.train_max_samples if training else config.val_max_samples
        self._rows = choose(len(self._data), wanted, shuffle=config.shuffle, seed=config.order_seed)
        if config.filter_overlong_prompts:
            self._drop_overlong()
        self._check_size()
        if config.truncation == "error" and not config.filter_overlong_prompts:
            self._refuse_overlong()
        self._order = self._make_order()
        self._fingerprint = self._make_fingerprint()
        self._epoch = 0
        self._position = 0

    def __len__(self) -> int:
        """Prompts of one epoch, before they are cut into batches."""
        return len(self._rows)

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one epoch."""
        return self._order.batches_per_epoch

    def batches(self, epochs: int | None = None) -> Iterator[tuple[int, list[Prompt]]]:
        """Yield ``(epoch, prompts)`` from the current position until `epochs` epochs (from 0) are through; None: for
        ever.

        `state_dict` already points behind a batch when it is handed over.
        """
        size = self._config.train_batch_size
        while epochs is None or self._epoch < epochs:
            epoch, order = self._epoch, self._rows[self._order.epoch(self._epoch)]
            while self._epoch == epoch:
                begin = self._position * size
                prompts = self._prompts(order[begin : begin + size], epoch * self._order.rows_per_epoch + begin)
                self.truncated += sum(prompt.truncated for prompt in prompts)
                self._position += 1
                if self._position == self.steps_per_epoch:  # the end of an epoch is the beginning of the next
                    self._epoch, self._position = epoch + 1, 0
                yield epoch, prompts

    def all_prompts(self) -> list[Prompt]:
        """Return every prompt of the data set once, in file order; moves nothing."""
        return self._prompts(self._rows, 0)

    def in_order(self, size: int) -> Iterator[list[Prompt]]:
        """Yield what `all_prompts` returns, `size` prompts at a time, so that they need not all be in memory."""
        for begin in range(0, len(self._rows), size):
            yield self._prompts(self._rows[begin : begin + size], begin)

    def rows_of(self, prompts: Sequence[Prompt]) -> list[Row]:
        """Return the whole rows that prompts come from, as the files have them."""
        return self._data.take([prompt.row for prompt in prompts])

    def state_dict(self) -> State:
        """Return where the next batch begins, and what the data set is, as plain values."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "truncated": self.truncated,
            "fingerprint": self._fingerprint,
        }

    def load_state_dict(self, state: State) -> None:
        """Go on where `state_dict` was taken.

        Raises DataError, saying what changed, if batches would not be the same; and for what is no such state.
        """
        if problem := state_problem(state):
            raise DataError(f"This is no state of a PromptLoader: {problem}. Give what state_dict returned.")
        if found := list(changes(state["fingerprint"], self._fingerprint)):
            raise DataError(
                f"The run cannot go on with other data than it began with: {'; '.join(found)}. Restore what "
                "changed, or start a new run."
            )
        if state["position"] >= self.steps_per_epoch:
            raise DataError(
                f"This is no state of this PromptLoader: position is {state['position']}, but an epoch has "
                f"{self.steps_per_epoch} batches, from 0. Give what state_dict returned."
            )
        self._epoch, self._position = state["epoch"], state["position"]
        self.truncated = state["truncated"]

    # What the data set is.

    def _check_rows(self) -> None:
        check = rl_row_problems if self._scored else prompt_row_problems
        config, sources, reserved = self._config, self.data_sources, self._reserved
        for number, row in self._data.scan((*row_columns(config), *reserved)):
            if taken := [name for name in reserved if name in row]:
                raise DataError(
                    f"{self._data.location(number)}: there is a column {taken[0]} already, which the output would have "
                    f"to replace. Rename or drop it."
                )
            if check(row, config):
                problems = check(self._data.take([number])[0], config)  # names all columns that are there
                raise DataError(f"{self._data.location(number)}: {'; '.join(problems)}.")
            if self._scored and row[config.reward_fn_key] not in sources:
                sources[row[config.reward_fn_key]] = self._data.location(number)

    def _drop_overlong(self) -> None:
        fits = self._measure() <= self._config.max_prompt_length
        self.filtered = int(np.count_nonzero(~fits))
        self._rows = self._rows[fits]

    def _refuse_overlong(self) -> None:
        limit, lengths = self._config.max_prompt_length, self._measure()
        over = np.flatnonzero(lengths > limit)
        if over.size:
            first = int(over[0])
            raise DataError(
                f"{self._data.location(int(self._rows[first]))}: the prompt has {lengths[first]} tokens, but "
                f"data.max_prompt_length is {limit}. It is the first of {over.size} such prompts among {len(lengths)}; "
                f"the longest has {lengths.max()}. {OVERLONG_REMEDIES}"
            )

    def _measure(self) -> NDArray[np.int64]:
        """Render every prompt in use once, some at a time, and return their lengths in tokens."""
        lengths = np.empty(len(self._rows), dtype=np.int64)
        begin = 0
        for rows in self._data.chunks(self._rows, (self._config.prompt_key, "tools")):
            end = begin + len(rows)
            lengths[begin:end] = [len(ids) for ids in self._render(self._rows[begin:end], rows)]
            begin = end
        return lengths

    def _check_size(self) -> None:
        rows, batch = len(self._rows), self._config.train_batch_size
        dropped = (
            f" ({self.filtered} prompts over data.max_prompt_length={self._config.max_prompt_length} were dropped)"
            if self.filtered
            else ""
        )
        if rows == 0:
            raise DataError(
                f"{self._data.names()}: 0 rows{dropped}; there is nothing to "
                f"{'train on' if self._training else 'score' if self._scored else 'answer'}."
            )
        if self._drop_last and rows < batch:
            raise DataError(
                f"{self._data.names()}: {rows} rows < batch {batch}{dropped}. Lower data.train_batch_size (prompts per "
                f"step) to at most {rows}, or add rows."
            )

    def _make_order(self) -> RowOrder:
        config, sources = self._config, None
        if self._weights is not None:
            sources = self._data.entry_of(self._rows)
            for entry in range(len(self._weights)):
                if not np.any(sources == entry):
                    raise DataError(
                        f"{self._data.names(entry)}: no row is in use, but data.train_weights gives it a part of every "
                        f"batch. Set that weight to 0, add rows, or look at data.train_max_samples and "
                        f"data.filter_overlong_prompts."
                    )
        return RowOrder(
            rows=len(self._rows),
            batch_size=config.train_batch_size,
            seed=config.order_seed,
            shuffle=self._training and config.shuffle,
            drop_last=self._drop_last,
            values=self._order_values() if self._training and config.order_by is not None else None,
            weights=self._weights,
            sources=sources,
        )

    def _order_values(self) -> Indices:
        assert self._config.order_by is not None
        key = OrderKey(self._config.order_by)
        values = []
        rows = (row for chunk in self._data.chunks(self._rows, key.columns) for row in chunk)
        for number, row in zip(self._rows.tolist(), rows, strict=True):
            try:
                values.append(key(row or self._data.take([number])[0]))  # a whole row names the columns that are there
            except DataError as error:
                raise DataError(f"{self._data.location(number)}: {error}") from error
        return ranks(values)

    def _make_fingerprint(self) -> Fingerprint:
        config, values = self._config, self._order.values
        whole = config.filter_overlong_prompts or config.truncation == "error"  # nothing is cut, whatever the limit
        messages = config.prompt_format == "messages"
        template = hashlib.sha256(as_text(self._tokenizer.chat_template).encode()).hexdigest()
        return {
            "files": self._data.contents(),
            "rows": len(self._rows),
            "rows sha256": hashlib.sha256(self._rows.tobytes()).hexdigest(),
            "batch size": config.train_batch_size,
            "shuffle": config.shuffle,
            "seed": config.order_seed,
            "drop last": self._drop_last,
            "weights": self._weights,
            "entries": None if self._weights is None else self._data.entries,
            "order by": None if values is None else config.order_by,
            "order values": None if values is None else hashlib.sha256(values.tobytes()).hexdigest(),
            "training": self._training,
            "data.prompt_key": config.prompt_key,
            "data.reward_fn_key": config.reward_fn_key if self._scored else None,
            "data.prompt_format": config.prompt_format,
            "data.truncation": None if whole else config.truncation,
            "data.max_prompt_length": None if whole else config.max_prompt_length,
            "data.apply_chat_template_kwargs": as_text(config.apply_chat_template_kwargs) if messages else None,
            "chat template": template if messages else None,
        }

    # Rows to prompts.

    def _render(self, numbers: NDArray[np.int64], rows: Sequence[Row]) -> list[list[int]]:
        try:
            return prompts_of_rows(self._tokenizer, rows, self._config)
        except PromptError as error:
            raise DataError(f"{self._data.location(int(numbers[error.index]))}: {error}") from error

    def _prompts(self, numbers: NDArray[np.int64], first_group: int) -> list[Prompt]:
        rows = self._data.take(numbers)
        rendered = self._render(numbers, rows)
        return [
            self._prompt(int(number), group, row, ids)
            for group, (number, row, ids) in enumerate(zip(numbers, rows, rendered, strict=True), first_group)
        ]

    def _prompt(self, number: int, group: int, row: Row, rendered: list[int]) -> Prompt:
        config = self._config
        try:
            ids = truncate(rendered, config.max_prompt_length, config.truncation)
        except DataError as error:
            raise DataError(f"{self._data.location(number)}: {error}") from error
        used = {config.prompt_key, *((config.reward_fn_key, "extra_info") if self._scored else ())}
        return Prompt(
            row=number,
            group=group,
            prompt_ids=ids,
            messages=row[config.prompt_key],
            data_source=row[config.reward_fn_key] if self._scored else "",
            ground_truth=row["reward_model"]["ground_truth"] if self._scored else None,
            extra_info=(row.get("extra_info") or {}) if self._scored else {},
            fields={name: value for name, value in row.items() if name not in used},
            truncated=len(ids) < len(rendered),
        )
