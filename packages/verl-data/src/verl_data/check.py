"""Every row of training data checked, and everything told that is wrong or doubtful."""

import json
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
import pyarrow as pa

from verl_data.check_report import CheckedFile, CheckReport, Findings, TokenLengths
from verl_data.chunks import Chunk, Lines, read_chunks
from verl_data.config import DataConfig
from verl_data.duplicates import Duplicates
from verl_data.errors import DataError
from verl_data.files import expand, fetched, is_url, sha256
from verl_data.processor import manifest_path
from verl_data.prompts import OVERLONG_REMEDIES
from verl_data.rendering import DecodingTokenizer, measure_rows
from verl_data.row_files import rows_of_batch
from verl_data.rows import Row
from verl_data.schema import SCHEMAS, RowSchema, SchemaName, recognise_schema
from verl_data.schema.fields import PROCESS, may_hold_surrogates, row_text_problems
from verl_data.schema.kinds import needs

#: Data sources that are counted one by one: a column that names another one in each row is no data source.
_MOST_SOURCES = 1000
_OTHER_SOURCES = "(others)"
#: Copies of rows that are named.
_NAMED_COPIES = 3
#: What `Duplicates` found.
_COPIES = (
    "the same prompt (conversation, pair) as in an earlier row: it is trained on more than once in an epoch, or also "
    "validated on"
)


def check_file(
    files: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    schema: SchemaName | None = None,
    config: DataConfig | None = None,
    tokenizer: DecodingTokenizer | None = None,
    kinds: int = 20,
) -> CheckReport:
    """Check every row of Parquet or JSONL files, in constant memory.

    A file that cannot be read is a problem like any other: the other files, and the other lines of JSONL, are checked
    all the same.

    Args:
        files: a path, a glob, an fsspec URL or a list of them.
        schema: what the rows are for; None recognises it from the columns of each file.
        config: names of columns, prompt format, and what happens to over-long prompts; None is the default.
        tokenizer: render every row with it, and tell which are too long or refused by its chat template.
        kinds: kinds of problems, and of warnings, that are listed; of further ones only the number is told.

    Raises FileNotFoundError if no file is named; ValueError for an unknown schema.
    """
    if schema is not None and schema not in SCHEMAS:
        raise ValueError(f"schema must be one of {', '.join(SCHEMAS)}, but is {schema!r}.")
    checker = _Checker(schema, DataConfig() if config is None else config, tokenizer, kinds)
    for entry in [files] if isinstance(files, (str, PathLike)) else files or expand([]):  # which says there is none
        try:
            names = expand(entry)
        except (OSError, DataError) as error:
            checker.problems.add(str(entry), str(error))
            continue
        for name in names:
            checker.check(name)
    return checker.report()


@dataclass
class _File:
    """A file on the way through the check."""

    name: str
    schema: SchemaName | None
    first: int
    """The number of its first row among all rows that are compared with each other."""
    rows: int = 0
    faulty_rows: int = 0


class _Checker:
    def __init__(
        self, schema: SchemaName | None, config: DataConfig, tokenizer: DecodingTokenizer | None, kinds: int
    ) -> None:
        self._schema, self._config, self._tokenizer = schema, config, tokenizer
        self.problems, self.warnings = Findings(kinds), Findings(kinds)
        self._files: list[_File] = []
        self._sources: Counter[str] = Counter()
        self._copies = Duplicates()
        self._lengths = array("I")
        self._over = 0

    def check(self, name: str) -> None:
        """Check one file."""
        file = _File(name, self._schema, len(self._copies))
        self._files.append(file)
        if Path(name).suffix.lower() not in (".parquet", ".jsonl", ".json"):
            self.problems.add(name, f"it is not a .parquet or .jsonl file. {PROCESS}")
            return
        try:
            with fetched(name) as path:
                for chunk in read_chunks(name, path):
                    self._check_chunk(file, chunk)
            if not is_url(name):
                self._check_manifest(path)
        except (OSError, DataError) as error:
            rest = f". Rows from {file.rows} on were not checked" if file.rows else ""
            self.problems.add(name, str(error).removeprefix(f"{name}, ").rstrip(".") + rest)
            return
        if file.rows == 0:
            self.problems.add(name, "the file is empty: it has 0 rows")

    def report(self) -> CheckReport:
        """Return what was found in all files."""
        self._tell_copies()
        return CheckReport(
            files=[
                CheckedFile(file.name, file.schema, self._schema is None, file.rows, file.faulty_rows)
                for file in self._files
            ],
            problems=self.problems.list(),
            unlisted_problems=self.problems.unlisted,
            warnings=self.warnings.list(),
            unlisted_warnings=self.warnings.unlisted,
            data_sources=dict(self._sources.most_common()),
            lengths=self._token_lengths(),
        )

    def _check_chunk(self, file: _File, chunk: Chunk) -> None:
        content = chunk.content
        sound: list[tuple[int, Row]] = []
        if isinstance(content, Lines):
            for index, (row, number, line) in enumerate(zip(chunk.rows(), content.numbers, content.text, strict=True)):
                if isinstance(row, DataError):
                    self._note(file, chunk, index, [str(row).removeprefix(f"{file.name}, line {number}: ")])
                elif (schema := self._schema_of(file, row)) is None:
                    self._note(file, chunk, index, [_no_schema(row)])
                elif may_hold_surrogates(line) and (problems := row_text_problems(row)):
                    self._note(file, chunk, index, problems)
                elif self._check_row(file, schema, chunk, index, row):
                    sound.append((index, row))
        elif isinstance(content, pa.RecordBatch):
            names = content.schema.names
            schema = self._schema_of(file, names)
            if schema is None:
                raise DataError(_no_schema(names))
            # What has no column is missing in every row.
            lacking = [text for text in schema.problems(dict.fromkeys(names), self._config) if text.startswith("lacks")]
            if lacking:
                for index in range(len(chunk)):
                    self._note(file, chunk, index, lacking)
                return
            looked_at = set(schema.columns(self._config)) - _sound_by_type(content.schema)
            rows = rows_of_batch(content.select([name for name in names if name in looked_at]))
            for index, found in enumerate(rows):
                if isinstance(found, DataError):
                    self._note(file, chunk, index, [str(found)])
                elif self._check_row(file, schema, chunk, index, found):
                    sound.append((index, found))
        else:
            raise DataError(f"it is one JSON array; training reads JSONL, one object per line. {PROCESS}")
        if self._tokenizer is not None and sound:
            self._render(file, chunk, sound, self._tokenizer)

    def _schema_of(self, file: _File, columns: Collection[str]) -> RowSchema | None:
        """Return the schema of a file: the first that `columns` of a row tell, if nothing else says it."""
        if file.schema is None:
            file.schema = recognise_schema(columns, self._config)
        return None if file.schema is None else SCHEMAS[file.schema]

    def _check_row(self, file: _File, schema: RowSchema, chunk: Chunk, index: int, row: Row) -> bool:
        """Whether a row is sound; what is wrong or doubtful is noted."""
        config = self._config
        problems = schema.problems(row, config)
        if problems:
            self._note(file, chunk, index, problems)
            return False
        file.rows += 1
        self._copies.add(row, schema.content(config))
        for hazard in schema.hazards(row, config):
            self.warnings.add(chunk.location(index), hazard)
        if file.schema == "rl":
            source = row[config.reward_fn_key]
            many = len(self._sources) >= _MOST_SOURCES and source not in self._sources
            self._sources[_OTHER_SOURCES if many else source] += 1
        return True

    def _note(self, file: _File, chunk: Chunk, index: int, problems: list[str]) -> None:
        """Count a faulty row, and what is wrong with it."""
        file.rows += 1
        file.faulty_rows += 1
        self._copies.add(None, ())
        for problem in problems:
            self.problems.add(chunk.location(index), problem)

    def _render(self, file: _File, chunk: Chunk, rows: list[tuple[int, Row]], tokenizer: DecodingTokenizer) -> None:
        """Measure sound rows of a chunk."""
        assert file.schema is not None  # they were checked by it
        config, limit = self._config, self._config.max_prompt_length
        lengths = measure_rows([row for _, row in rows], file.schema, tokenizer, config)
        for (index, _), length in zip(rows, lengths, strict=True):
            place = chunk.location(index)
            if isinstance(length, DataError):
                file.faulty_rows += 1
                self.problems.add(place, str(length))
                continue
            self._lengths.append(length)
            if file.schema != "rl" or length <= limit:
                continue
            self._over += 1
            long = f"the prompt has {length} tokens, but data.max_prompt_length is {limit}"
            if config.filter_overlong_prompts:
                self.warnings.add(place, f"{long}: it is left out (data.filter_overlong_prompts)")
            elif config.truncation == "error":
                file.faulty_rows += 1
                self.problems.add(place, f"{long}. {OVERLONG_REMEDIES}")
            else:
                self.warnings.add(place, f"{long}: it is cut (data.truncation={config.truncation})")

    def _check_manifest(self, path: Path) -> None:
        manifest = manifest_path(path)
        if not manifest.is_file():
            return
        try:
            written = json.loads(manifest.read_bytes())["sha256"]
        except (ValueError, KeyError, TypeError):
            self.warnings.add(str(manifest), "the manifest is not what a DataProcessor writes; remove it")
            return
        if written != sha256(path):
            self.warnings.add(
                str(path),
                f"the file is not the one that {manifest.name} was written for (its SHA-256 is another), so it was "
                f"changed later. Make it again, or remove the manifest",
            )

    def _tell_copies(self) -> None:
        count, named = self._copies.find(_NAMED_COPIES)
        if not count:
            return
        starts = [file.first for file in self._files]

        def place(number: int) -> str:
            at = bisect_right(starts, number) - 1
            return f"{self._files[at].name}, row {number - starts[at]}"

        for copy, original in named:
            self.warnings.add(f"{place(copy)} (as {place(original)})", _COPIES)
        if count > len(named):
            self.warnings.add("", _COPIES, count - len(named))

    def _token_lengths(self) -> TokenLengths | None:
        if not self._lengths:
            return None
        lengths = np.frombuffer(self._lengths, dtype=np.uintc)
        return TokenLengths(
            rows=len(lengths),
            shortest=int(lengths.min()),
            median=int(np.median(lengths)),
            longest=int(lengths.max()),
            limit=self._config.max_prompt_length if any(file.schema == "rl" for file in self._files) else None,
            over=self._over,
        )


def _no_schema(columns: Collection[str]) -> str:
    return (
        f"its columns ({', '.join(columns) or 'none'}) are those of no training rows: {needs()}. If prompt or "
        f"data_source have other names, set data.prompt_key and data.reward_fn_key. {PROCESS}"
    )


def _sound_by_type(columns: pa.Schema) -> set[str]:
    """Return extra_info, often the largest column, if its type alone says that all of its rows are sound."""
    at = columns.get_field_index("extra_info")
    kind = columns.field(at).type if at >= 0 else pa.null()
    sound = pa.types.is_struct(kind) and "tools_kwargs" not in [field.name for field in kind]
    return {"extra_info"} if sound else set()
