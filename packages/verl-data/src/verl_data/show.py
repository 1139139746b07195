"""A few rows of training data as the model is given them."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from reprlib import Repr
from typing import Any

from verl_data.chunks import Chunk, read_chunks
from verl_data.config import DataConfig
from verl_data.errors import DataError
from verl_data.files import expand, fetched
from verl_data.rendering import DecodingTokenizer, render_row
from verl_data.rows import Row
from verl_data.schema import SCHEMAS, SchemaName, recognise_schema
from verl_data.schema.fields import MEDIA_COLUMNS
from verl_data.schema.kinds import needs
from verl_data.terminal import visible

#: What stands around the text that is trained.
TRAINED_MARKS = ("⟦", "⟧")

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 160
_SHORT.maxdict = _SHORT.maxlist = 8
_SHORT.maxlevel = 4


@dataclass(frozen=True)
class ShownPart:
    """A sequence that a row renders to."""

    name: str
    """prompt, conversation, chosen or rejected."""
    tokens: int | None
    """None without a tokenizer."""
    text: str
    """With special tokens; what is trained stands between `TRAINED_MARKS`. Characters that a terminal obeys rather than
    shows, or that cannot be seen, are written as escapes."""


@dataclass(frozen=True)
class ShownRow:
    """One row."""

    place: str
    """File, row (from 0) and, where the file has lines, line (from 1)."""
    schema: SchemaName | None
    """What it is for; None if its columns do not tell."""
    parts: list[ShownPart] = field(default_factory=list)
    columns: dict[str, str] = field(default_factory=dict)
    """Its other columns, shortened."""
    problems: list[str] = field(default_factory=list)
    """Why it cannot be used, or not be rendered."""

    def __str__(self) -> str:
        """A paragraph for people."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.place} ({self.schema})" if self.schema else self.place
        for problem in self.problems:
            yield f"  problem: {problem}"
        for part in self.parts:
            yield f"  {part.name}{'' if part.tokens is None else f', {part.tokens:,} tokens'}:"
            yield "    " + part.text.replace("\n", "\n    ")
        for name, value in self.columns.items():
            yield f"  {name}: {value}"


def show_rows(
    file: str | PathLike[str],
    tokenizer: DecodingTokenizer | None = None,
    *,
    schema: SchemaName | None = None,
    config: DataConfig | None = None,
    first: int = 0,
    count: int = 3,
) -> list[ShownRow]:
    """Return some rows of a file that `read_rows` reads, to be looked at; ``print(row)`` writes one for people.

    With a tokenizer, prompts, conversations and pairs are rendered as in training; without one they are shown as the
    file has them. A row that cannot be used or rendered says why, and the next one follows.

    Args:
        file: a path or an fsspec URL.
        tokenizer: of the model.
        schema: what the rows are for; None recognises it from the columns of each.
        config: names of columns, prompt format and switches of the chat template; None is the default.
        first: the number of the first row, from 0.
        count: how many.

    Raises DataError for a file that cannot be read, or has no such row; FileNotFoundError; ValueError for an unknown
    schema.
    """
    if schema is not None and schema not in SCHEMAS:
        raise ValueError(f"schema must be one of {', '.join(SCHEMAS)}, but is {schema!r}.")
    if first < 0 or count < 1:
        raise ValueError(f"first must be at least 0 and count at least 1, but they are {first} and {count}.")
    name, *more = expand(file)
    if more:
        raise DataError(f"{file} names {len(more) + 1} files; show one at a time, for example {name}.")
    look = _Look(tokenizer, schema, DataConfig() if config is None else config)
    shown: list[ShownRow] = []
    rows = 0
    with fetched(name) as path:
        for chunk in read_chunks(name, path):
            rows += len(chunk)
            here = range(max(first - chunk.index, 0), min(first + count - chunk.index, len(chunk)))
            shown += [look.at(chunk, index) for index in here]
            if len(shown) == count:
                break
    if not shown:
        raise DataError(f"{name} has {rows} rows, counted from 0, so there is no row {first}.")
    return shown


@dataclass(frozen=True)
class _Look:
    tokenizer: DecodingTokenizer | None
    schema: SchemaName | None
    config: DataConfig

    def at(self, chunk: Chunk, index: int) -> ShownRow:
        """Show one row of a chunk."""
        place = visible(chunk.location(index), keep="")
        try:
            row = chunk.row(index)
        except DataError as error:
            return ShownRow(place, self.schema, problems=[visible(str(error))])
        schema = self.schema or recognise_schema(row, self.config)
        if schema is None:
            problem = f"its columns are those of no training rows: {needs()}"
            return ShownRow(place, None, columns=_columns(row, ()), problems=[problem])
        problems = SCHEMAS[schema].problems(row, self.config)
        parts: list[ShownPart] = []
        if self.tokenizer is not None and not problems:
            try:
                parts = [
                    ShownPart(part.name, len(part.token_ids), _marked(part.stretches(self.tokenizer)))
                    for part in render_row(row, schema, self.tokenizer, self.config)
                ]
            except DataError as error:
                problems = [str(error)]
        spoken = [name for name in SCHEMAS[schema].content(self.config) if name not in (*MEDIA_COLUMNS, "tools")]
        if not parts:
            parts = [ShownPart(name, None, visible(_raw(row[name]))) for name in spoken if row.get(name) is not None]
        return ShownRow(place, schema, parts, _columns(row, spoken), [visible(problem) for problem in problems])


def _columns(row: Row, but: Collection[str]) -> dict[str, str]:
    return {visible(name): visible(_SHORT.repr(value)) for name, value in row.items() if name not in but}


def _raw(value: Any) -> str:
    """Write a text, or messages, as they are."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(message, Mapping) for message in value):
        return "\n".join(_message(message) for message in value)
    return _SHORT.repr(value)


def _message(message: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in message.items() if name not in ("role", "content") and value is not None}
    content = message.get("content")
    said = content if isinstance(content, str) else "" if content is None else _SHORT.repr(content)
    return f"{message.get('role')}: {said}{f' {_SHORT.repr(rest)}' * bool(rest)}"


def _marked(stretches: list[tuple[str, bool]]) -> str:
    begin, end = TRAINED_MARKS
    return "".join(f"{begin}{visible(text)}{end}" if trained else visible(text) for text, trained in stretches)
