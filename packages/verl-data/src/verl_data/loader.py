"""Prompts in batches: shuffled by seed and epoch, resumable exactly."""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_data.config import DataConfig
from verl_data.errors import DataError
from verl_data.files import PathLike, expand
from verl_data.prompts import OVERLONG_REMEDIES, Message, Tokenizer, render_prompt, tokenize_rendered, truncate
from verl_data.row_files import open_rows
from verl_data.rows import Row
from verl_data.schema import prompt_row_problems, rl_row_problems, row_columns

State = dict[str, Any]

#: Keys of the two uses of the seed: they draw from different streams.
_CHOICE, _ORDER = 1, 2


@dataclass(frozen=True)
class Prompt:
    """One row of training data, ready to be answered."""

    row: int
    """Its number in the data set: all files one after the other, from 0. Responses to one prompt are a group by it."""
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
    order that depends on nothing but the seed, the epoch and the number of rows; the rest of an epoch that fills no
    batch is left out. Validation takes the rows in file order, the last batch shorter.
    """

    def __init__(
        self,
        files: PathLike | Sequence[PathLike],
        tokenizer: Tokenizer,
        config: DataConfig,
        *,
        training: bool,
        scored: bool = True,
        reserved: Collection[str] = (),
    ) -> None:
        """Open and check `files` (a path, a glob or a list of them).

        Rows that are not `scored` need a prompt only: neither data source nor reward model is read. Columns with a
        `reserved` name, which the caller adds to the rows, are an error.

        Raises DataError, a ValueError, for rows that cannot be used (where prompts are measured, also for one that is
        over-long, renders to 0 tokens or is refused by the chat template) and for too few of them; FileNotFoundError.
        """
        self._tokenizer = tokenizer
        self._config = config
        self._training = training
        self._scored = scored
        self._reserved = reserved
        self._files = [open_rows(path) for path in expand(files)]
        self._starts = np.cumsum([0, *(len(file) for file in self._files)], dtype=np.int64)
        self.truncated = 0
        """Prompts that were cut to max_prompt_length so far."""
        self.filtered = 0
        """Prompts that were dropped, at construction, because they are longer than max_prompt_length."""
        self.data_sources: dict[str, str] = {}
        """Each data source, and the file and row where it comes first."""
        self._check_rows()
        self._rows = self._choose_rows()
        if config.filter_overlong_prompts:
            self._drop_overlong()
        self._check_size()
        if config.truncation == "error" and not config.filter_overlong_prompts:
            self._refuse_overlong()
        self._epoch = 0
        self._position = 0

    def __len__(self) -> int:
        """Prompts of one epoch, before they are cut into batches."""
        return len(self._rows)

    @property
    def steps_per_epoch(self) -> int:
        """Batches of one epoch."""
        full, rest = divmod(len(self._rows), self._config.train_batch_size)
        return full if self._training else full + (rest > 0)

    def batches(self, epochs: int | None = None) -> Iterator[tuple[int, list[Prompt]]]:
        """Yield ``(epoch, prompts)`` from the current position until `epochs` epochs (from 0) are through; None: for
        ever.

        `state_dict` already points behind a batch when it is handed over.
        """
        while epochs is None or self._epoch < epochs:
            epoch, order = self._epoch, self._order(self._epoch)
            while self._epoch == epoch:
                size = self._config.train_batch_size
                rows = order[self._position * size : (self._position + 1) * size]
                prompts = self._prompts(rows)
                self.truncated += sum(prompt.truncated for prompt in prompts)
                self._position += 1
                if self._position == self.steps_per_epoch:  # the end of an epoch is the beginning of the next
                    self._epoch, self._position = epoch + 1, 0
                yield epoch, prompts

    def all_prompts(self) -> list[Prompt]:
        """Return every prompt of the data set once, in file order; moves nothing."""
        return self._prompts(self._rows)

    def in_order(self, size: int) -> Iterator[list[Prompt]]:
        """Yield what `all_prompts` returns, `size` prompts at a time, so that they need not all be in memory."""
        for begin in range(0, len(self._rows), size):
            yield self._prompts(self._rows[begin : begin + size])

    def rows_of(self, prompts: Sequence[Prompt]) -> list[Row]:
        """Return the whole rows that prompts come from, as the files have them."""
        return self._take([prompt.row for prompt in prompts])

    def state_dict(self) -> State:
        """Return where the next batch begins, and what the data set is, as plain values."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "truncated": self.truncated,
            "fingerprint": self._fingerprint(),
        }

    def load_state_dict(self, state: State) -> None:
        """Go on where `state_dict` was taken; DataError, saying what changed, if batches would not be the same."""
        changes = list(_changes(state["fingerprint"], self._fingerprint()))
        if changes:
            raise DataError(
                f"The run cannot go on with other data than it began with: {'; '.join(changes)}. Restore what "
                "changed, or start a new run."
            )
        self._epoch, self._position = state["epoch"], state["position"]
        self.truncated = state["truncated"]

    # What the data set is.

    def _check_rows(self) -> None:
        check = rl_row_problems if self._scored else prompt_row_problems
        for file in self._files:
            for index, row in enumerate(file.scan((*row_columns(self._config), *self._reserved))):
                if taken := [name for name in self._reserved if name in row]:
                    raise DataError(
                        f"{file.location(index)}: there is a column {taken[0]} already, which the output would have to "
                        f"replace. Rename or drop it."
                    )
                if check(row, self._config):
                    problems = check(file.take([index])[0], self._config)  # names all columns that are there
                    raise DataError(f"{file.location(index)}: {'; '.join(problems)}.")
                if self._scored:
                    self.data_sources.setdefault(row[self._config.reward_fn_key], file.location(index))

    def _choose_rows(self) -> NDArray[np.int64]:
        total = int(self._starts[-1])
        wanted = self._config.train_max_samples if self._training else self._config.val_max_samples
        if wanted == -1 or wanted >= total:
            return np.arange(total)
        if not self._config.shuffle:
            return np.arange(wanted)
        return np.sort(_permutation(total, self._config.order_seed, _CHOICE)[:wanted])

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
                f"{self._location(int(self._rows[first]))}: the prompt has {lengths[first]} tokens, but "
                f"data.max_prompt_length is {limit}. It is the first of {over.size} such prompts among {len(lengths)}; "
                f"the longest has {lengths.max()}. {OVERLONG_REMEDIES}"
            )

    def _measure(self) -> NDArray[np.int64]:
        """Render every prompt in use once, a few at a time, and return their lengths in tokens."""
        lengths = np.empty(len(self._rows), dtype=np.int64)
        for begin in range(0, len(self._rows), 1024):
            numbers = self._rows[begin : begin + 1024]
            for offset, row in enumerate(self._take(numbers), begin):
                lengths[offset] = len(self._render(int(self._rows[offset]), row))
        return lengths

    def _check_size(self) -> None:
        rows, batch = len(self._rows), self._config.train_batch_size
        names = ", ".join(str(file.path) for file in self._files)
        dropped = (
            f" ({self.filtered} prompts over data.max_prompt_length={self._config.max_prompt_length} were dropped)"
            if self.filtered
            else ""
        )
        if rows == 0:
            raise DataError(
                f"{names}: 0 rows{dropped}; there is nothing to "
                f"{'train on' if self._training else 'score' if self._scored else 'answer'}."
            )
        if self._training and rows < batch:
            raise DataError(
                f"{names}: {rows} rows < batch {batch}{dropped}. Lower data.train_batch_size (prompts per step) to at "
                f"most {rows}, or add rows."
            )

    def _fingerprint(self) -> State:
        config = self._config
        return {
            "files": [{"name": file.path.name, "rows": len(file), "sha256": file.sha256} for file in self._files],
            "rows": len(self._rows),
            "rows sha256": hashlib.sha256(self._rows.tobytes()).hexdigest(),
            "batch size": config.train_batch_size,
            "shuffle": config.shuffle,
            "seed": config.order_seed,
        }

    # Rows to prompts.

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if not (self._training and self._config.shuffle):
            return self._rows
        return self._rows[_permutation(len(self._rows), self._config.order_seed, _ORDER, epoch)]

    def _locate(self, row: int) -> tuple[int, int]:
        number = int(np.searchsorted(self._starts, row, side="right")) - 1
        return number, row - int(self._starts[number])

    def _location(self, row: int) -> str:
        number, local = self._locate(row)
        return self._files[number].location(local)

    def _take(self, rows: Sequence[int] | NDArray[np.int64]) -> list[Row]:
        by_file: dict[int, list[tuple[int, int]]] = {}
        for position, row in enumerate(rows):
            number, local = self._locate(int(row))
            by_file.setdefault(number, []).append((position, local))
        taken: list[Row] = [{} for _ in rows]
        for number, places in by_file.items():
            found = self._files[number].take([local for _, local in places])
            for (position, _), row in zip(places, found, strict=True):
                taken[position] = row
        return taken

    def _render(self, number: int, row: Row) -> list[int]:
        prompt = row[self._config.prompt_key]
        try:
            if self._config.prompt_format == "rendered":
                ids = tokenize_rendered(self._tokenizer, prompt)
            else:
                ids = render_prompt(
                    self._tokenizer,
                    prompt,
                    tools=row.get("tools"),
                    template_kwargs=self._config.apply_chat_template_kwargs,
                )
        except DataError as error:
            raise DataError(f"{self._location(number)}: {error}") from error
        if not ids:
            raise DataError(f"{self._location(number)}: the prompt renders to 0 tokens, so there is nothing to answer.")
        return ids

    def _prompts(self, rows: NDArray[np.int64]) -> list[Prompt]:
        return [self._prompt(int(number), row) for number, row in zip(rows, self._take(rows), strict=True)]

    def _prompt(self, number: int, row: Row) -> Prompt:
        config = self._config
        rendered = self._render(number, row)
        try:
            ids = truncate(rendered, config.max_prompt_length, config.truncation)
        except DataError as error:
            raise DataError(f"{self._location(number)}: {error}") from error
        used = {config.prompt_key, *((config.reward_fn_key, "extra_info") if self._scored else ())}
        return Prompt(
            row=number,
            prompt_ids=ids,
            messages=row[config.prompt_key],
            data_source=row[config.reward_fn_key] if self._scored else "",
            ground_truth=row["reward_model"]["ground_truth"] if self._scored else None,
            extra_info=(row.get("extra_info") or {}) if self._scored else {},
            fields={name: value for name, value in row.items() if name not in used},
            truncated=len(ids) < len(rendered),
        )


def _permutation(n: int, *key: int) -> NDArray[np.int64]:
    """Return 0 to n - 1 in an order that only `key` decides.

    NumPy promises a bit generator's raw stream for ever, but not what its shuffles make of it: so ranks of raw numbers.
    """
    raw = np.random.PCG64(np.random.SeedSequence(key)).random_raw(n)
    return np.argsort(raw, kind="stable").astype(np.int64)


def _changes(before: State, now: State) -> Iterator[str]:
    old, new = before["files"], now["files"]
    if len(old) != len(new):
        yield f"{len(old)} files ({', '.join(file['name'] for file in old)}) became {len(new)}"
    for was, is_ in zip(old, new, strict=False):
        if was["sha256"] != is_["sha256"]:
            rows = f"{was['rows']} rows became {is_['rows']}" if was["rows"] != is_["rows"] else "its content changed"
            name = was["name"] if was["name"] == is_["name"] else f"{was['name']} was replaced by {is_['name']}"
            yield f"{name}: {rows}"
    for setting in ("batch size", "shuffle", "seed"):
        if before[setting] != now[setting]:
            yield f"{setting} {before[setting]} became {now[setting]}"
    if before["rows sha256"] != now["rows sha256"] and [file["sha256"] for file in old] == [
        file["sha256"] for file in new
    ]:
        yield (
            f"the rows in use, {before['rows']} before and {now['rows']} now, are others (maximum of samples, or "
            "filter of over-long prompts)"
        )
