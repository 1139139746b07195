"""Raw rows to training rows: any rows in, one Parquet file and a manifest out."""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike, fspath
from pathlib import Path
from typing import Literal

from verl_data.errors import DataError
from verl_data.files import atomic_file, expand, sha256
from verl_data.row_writer import write_rows
from verl_data.rows import Row, read_rows
from verl_data.schema import SCHEMA_VERSION

logger = logging.getLogger(__name__)

Source = str | PathLike[str] | Sequence[str | PathLike[str]] | Iterable[Row]
Processed = Row | list[Row] | None
ProcessFn = Callable[[Row, int], Processed]

_SHOWN_ERRORS = 5


@dataclass
class Manifest:
    """What one run of a processor did; stored as JSON beside its output."""

    output: str
    """Name of the Parquet file."""
    source: list[dict[str, str]]
    """The input files, each with its SHA-256; empty for rows that came from memory."""
    rows_read: int = 0
    rows_written: int = 0
    rows_dropped: int = 0
    """Rows for which process_row returned None or an empty list."""
    rows_failed: int = 0
    """Rows that raised, with on_error=skip."""
    first_errors: list[str] = field(default_factory=list)
    """The first few of them."""
    schema_version: int = SCHEMA_VERSION
    sha256: str = ""
    """Of the Parquet file's content."""

    def __str__(self) -> str:
        """One line for people, and one more per error shown."""
        text = f"{self.output}: {self.rows_read} rows read, {self.rows_written} written, {self.rows_dropped} dropped"
        return "\n".join([f"{text}, {self.rows_failed} failed", *(f"  {error}" for error in self.first_errors)])


def manifest_path(output: str | PathLike[str]) -> Path:
    """Return where the manifest of a Parquet file lies."""
    path = Path(output).expanduser()
    return path.with_name(f"{path.name}.manifest.json")


class DataProcessor:
    """Turns rows into training rows.

    Subclass and override `process_row`, or pass a function::

        DataProcessor(lambda example, idx: {...}).run("raw.jsonl", "train.parquet")

    The output appears whole or not at all. Columns get one type that all rows agree on: a column of numbers and text is
    text. A manifest beside the output says where it came from and what it is.
    """

    def __init__(self, process_fn: ProcessFn | None = None, *, on_error: Literal["raise", "skip"] = "raise") -> None:
        """Use `process_fn(example, idx)` for each row, where no subclass does; skip or raise when a row raises."""
        if process_fn is None and type(self).process_row is DataProcessor.process_row:
            raise TypeError("A DataProcessor needs a process_fn(example, idx), or a subclass with its own process_row.")
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be raise or skip, but is {on_error!r}.")
        self._process_fn = process_fn
        self._on_error = on_error

    def process_row(self, row: Row, index: int) -> Processed:
        """Turn one row (number `index` of all input, from 0) into a training row, several, or None to drop it."""
        assert self._process_fn is not None  # checked when it was made
        return self._process_fn(row, index)

    def run(self, source: Source, output: str | PathLike[str]) -> Manifest:
        """Process `source` into the Parquet file `output`, and write its manifest beside it.

        `source` is a Parquet, JSONL, JSON or CSV path, a glob, a list of them, or the rows themselves.

        Raises DataError, naming file and row, for what cannot be read, processed or stored; what `output` held before
        then stays as it was.
        """
        path = Path(output).expanduser()
        files, rows = _open(source)
        sources = [{"path": str(file), "sha256": sha256(file)} for file in files]
        manifest = Manifest(output=path.name, source=sources)
        manifest.rows_written = write_rows(self._process(files, rows, manifest), path)
        manifest.sha256 = sha256(path)
        with atomic_file(manifest_path(path)) as file:
            file.write((json.dumps(asdict(manifest), indent=2, ensure_ascii=False) + "\n").encode())
        if manifest.rows_failed:
            logger.warning("%s", manifest)
        return manifest

    def _process(self, files: list[Path], rows: Iterable[Row], manifest: Manifest) -> Iterator[Row]:
        for location, row in _located(files, rows):
            index = manifest.rows_read
            manifest.rows_read += 1
            try:
                processed = self.process_row(row, index)
            except Exception as error:
                # The user's code may raise anything; it is raised again or counted.
                problem = f"{location}: {type(error).__name__}: {error}"
                if self._on_error == "raise":
                    raise DataError(f"{problem}. Set on_error=skip to leave such rows out.") from error
                manifest.rows_failed += 1
                if len(manifest.first_errors) < _SHOWN_ERRORS:
                    manifest.first_errors.append(problem)
                continue
            results = [processed] if isinstance(processed, dict) else processed or []
            manifest.rows_dropped += not results
            for result in results:
                if not isinstance(result, dict):
                    raise DataError(
                        f"{location}: process_row returned {type(result).__name__}, not a row (dict), rows or None."
                    )
                yield result


def _open(source: Source) -> tuple[list[Path], Iterable[Row]]:
    """Return the files of a source, or else its rows."""
    if isinstance(source, (str, PathLike)):
        return expand(fspath(source)), ()
    if isinstance(source, Sequence) and source and isinstance(source[0], (str, PathLike)):
        return expand([fspath(entry) for entry in source if isinstance(entry, (str, PathLike))]), ()
    return [], source  # type: ignore[return-value]  # a sequence of paths was dealt with above


def _located(files: list[Path], rows: Iterable[Row]) -> Iterator[tuple[str, Row]]:
    for index, row in enumerate(rows):
        yield f"row {index}", row
    for path in files:
        for index, row in enumerate(read_rows(path)):
            yield f"{path}, row {index}", row
