"""Raw rows to training rows: any rows in, one Parquet file and a manifest out."""

import json
import logging
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import Literal, TypeAlias

import pyarrow as pa

from verl_data.background import Behind, ahead
from verl_data.errors import DataError
from verl_data.files import MANIFEST_SUFFIX, atomic_file, is_url, put
from verl_data.mapping import SHOWN_ERRORS, Mapped, leave_out_strays, map_chunks
from verl_data.row_writer import ParquetOutput, parquet_output
from verl_data.rows import Row
from verl_data.schema import SCHEMA_VERSION
from verl_data.sources import OpenedSource, Source

logger = logging.getLogger(__name__)

#: Chunks that are read ahead of the mapping, and that wait to be written behind it.
_AHEAD, _BEHIND = 4, 2

Processed: TypeAlias = Row | list[Row] | None
ProcessFn: TypeAlias = Callable[[Row, int], Processed]
ProcessedBatch: TypeAlias = pa.RecordBatch | pa.Table | list[Row] | None


@dataclass
class Manifest:
    """What one run of a processor did; stored as JSON beside its output."""

    output: str
    """Name of the Parquet file."""
    source: list[dict[str, str]] = field(default_factory=list)
    """The input files, each with its SHA-256, or the data set; empty for rows that came from memory."""
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

    def count(self, mapped: Mapped) -> None:
        """Add what became of a chunk."""
        self.rows_read += mapped.read
        self.rows_written += 0 if mapped.batch is None else mapped.batch.num_rows
        self.rows_dropped += mapped.dropped
        self.rows_failed += mapped.failed
        self.first_errors += mapped.errors[: SHOWN_ERRORS - len(self.first_errors)]

    def __str__(self) -> str:
        """One line for people, and one more per error shown."""
        text = f"{self.output}: {self.rows_read} rows read, {self.rows_written} written, {self.rows_dropped} dropped"
        return "\n".join([f"{text}, {self.rows_failed} failed", *(f"  {error}" for error in self.first_errors)])


def manifest_path(output: str | PathLike[str]) -> Path:
    """Return where the manifest of a Parquet file lies."""
    path = Path(output).expanduser()
    return path.with_name(f"{path.name}{MANIFEST_SUFFIX}")


class DataProcessor:
    """Turns rows into training rows.

    Subclass and override `process_row`, or `process_batch` for speed, or pass a function::

        DataProcessor(lambda example, idx: {...}).run("raw.jsonl", "train.parquet")

    The output appears whole or not at all. Columns get one type that all rows agree on: a column of numbers and text is
    text. A manifest beside the output says where it came from and what it is.
    """

    def __init__(self, process_fn: ProcessFn | None = None, *, on_error: Literal["raise", "skip"] = "raise") -> None:
        """Use `process_fn(example, idx)` for each row, where no subclass does; skip or raise when a row raises."""
        own_row = type(self).process_row is not DataProcessor.process_row
        if process_fn is not None and (own_row or self.works_on_batches):
            raise TypeError("A subclass with its own process_row or process_batch takes no process_fn as well.")
        if process_fn is None and not own_row and not self.works_on_batches:
            raise TypeError(
                "A DataProcessor needs a process_fn(example, idx), or a subclass with its own process_row or "
                "process_batch."
            )
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be raise or skip, but is {on_error!r}.")
        self._process_fn = process_fn
        self.skips_errors = on_error == "skip"
        """Whether a row that raises is left out and counted."""

    @property
    def works_on_batches(self) -> bool:
        """Whether `process_batch` is overridden, which then is called instead of `process_row`."""
        return type(self).process_batch is not DataProcessor.process_batch

    def process_row(self, row: Row, index: int) -> Processed:
        """Turn one row (number `index` of all input, from 0) into a training row, several, or None to drop it."""
        assert self._process_fn is not None  # checked when it was made
        return self._process_fn(row, index)

    def process_batch(self, batch: pa.RecordBatch, index: int) -> ProcessedBatch:
        """Turn many rows (the first is number `index` of all input) into training rows: columns, rows or None.

        Columns stay in Arrow, which is several times faster than `process_row` where `pyarrow.compute` can do the work.
        """
        raise TypeError("process_batch is for subclasses to override; without it process_row is called.")

    def run(
        self, source: Source, output: str | PathLike[str], *, num_workers: int = 1, progress: bool | None = None
    ) -> Manifest:
        """Process `source` into the Parquet file `output`, and write its manifest beside it.

        Args:
            source: a Parquet, JSONL, JSON or CSV path, a glob, an fsspec URL, a list of them, an `HfDataset`, or the
                rows themselves (a list, a generator, a `datasets.Dataset`).
            output: a path, or an fsspec URL, to which the finished file is copied.
            num_workers: processes that call process_row or process_batch; the output's bytes do not depend on it.
            progress: whether to show a progress bar; None: if standard error is a terminal.

        Raises DataError, naming file and row, for what cannot be read, processed or stored; what `output` held before
        then stays as it was.
        """
        if num_workers < 1:
            raise ValueError(f"num_workers must be at least 1, but is {num_workers}.")
        if Path(output).suffix.lower() != ".parquet":
            raise ValueError(f"The output is a Parquet file, so its name must end in .parquet: {str(output)!r}.")
        if isinstance(output, str) and is_url(output):
            with tempfile.TemporaryDirectory(prefix="verl-data-") as folder:
                local = Path(folder) / output.rpartition("/")[2]
                manifest = self.run(source, local, num_workers=num_workers, progress=progress)
                put(local, output)
                put(manifest_path(local), f"{output}{MANIFEST_SUFFIX}")
            return manifest
        path = Path(output).expanduser()
        opened = OpenedSource(source)
        if any(path.exists() and path.samefile(name) for name in opened.files if not is_url(name)):
            raise ValueError(f"{path} is read from, so it cannot be the output as well. Name another file.")
        manifest = Manifest(output=path.name)
        if manifest_path(path).is_dir():
            raise IsADirectoryError(f"{manifest_path(path)}, where the manifest belongs, is a folder. Move it away.")
        with atomic_file(manifest_path(path)) as file:  # which thus appears as soon as the output has
            with parquet_output(path) as writer:
                self._write(opened, writer, manifest, num_workers, progress)
            manifest.source = opened.described
            manifest.sha256 = writer.sha256
            file.write((json.dumps(asdict(manifest), indent=2, ensure_ascii=False) + "\n").encode())
        if manifest.rows_failed:
            logger.warning("%s: %d of %d rows failed and were left out", path, manifest.rows_failed, manifest.rows_read)
        return manifest

    def _write(
        self, opened: OpenedSource, writer: ParquetOutput, manifest: Manifest, num_workers: int, progress: bool | None
    ) -> None:
        """Read, map and write side by side: Arrow reads and writes without Python, so each of the two has a thread."""

        def append(mapped: Mapped) -> None:
            if mapped.batch is not None:
                writer.add(mapped.batch, mapped.kind)

        known = pa.null()
        with (
            Behind(append, _BEHIND) as write,
            _ProgressBar(manifest, len(opened.files) or 1, progress) as bar,
            closing(opened.chunks()) as read,
            ahead(read, _AHEAD) as chunks,
            closing(map_chunks(self, chunks, num_workers)) as all_mapped,
        ):
            for chunk, mapped in all_mapped:
                if self.skips_errors:
                    known = leave_out_strays(mapped, known, manifest.rows_written)
                manifest.count(mapped)
                write(mapped)
                bar.update(chunk.name, chunk.done)
        if manifest.rows_failed and not manifest.rows_written:
            failed = "\n".join(f"  {error}" for error in manifest.first_errors)
            raise DataError(
                f"There is no row to write to {writer.target}: of {manifest.rows_read} rows {manifest.rows_failed} "
                f"failed.\n{failed}"
            )


class _ProgressBar:
    """How far the input has been read, with the rows so far."""

    def __init__(self, manifest: Manifest, parts: int, show: bool | None) -> None:
        from tqdm import tqdm

        self._manifest = manifest
        self._parts = parts
        self._complete = 0
        self._name = ""
        self._bar = tqdm(
            total=1.0,
            desc=manifest.output,
            disable=None if show is None else not show,
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}, {postfix}",
        )

    def update(self, name: str, done: float | None) -> None:
        if name != self._name:
            self._complete += bool(self._name)
            self._name = name
        if done is not None:
            self._bar.n = min(1.0, (self._complete + done) / self._parts)
        failed = f", {self._manifest.rows_failed} failed" if self._manifest.rows_failed else ""
        self._bar.set_postfix_str(f"{self._manifest.rows_read:,} rows{failed}")

    def __enter__(self) -> "_ProgressBar":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
