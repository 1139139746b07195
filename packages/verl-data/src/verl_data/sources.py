"""What a processor can read: files, URLs, Hugging Face data sets, and rows in memory."""

from collections.abc import Generator, Iterable, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from verl_data.chunks import Chunk, memory_chunks, read_chunks, table_chunks
from verl_data.errors import DataError
from verl_data.files import expand, fetched, sha256
from verl_data.rows import Row


@dataclass(frozen=True)
class HfDataset:
    """A Hugging Face data set: a name on the hub, or a local folder that holds one.

    A folder is what `datasets.save_to_disk` wrote, or what the hub holds (Parquet, JSONL, CSV files by split).
    """

    path: str | PathLike[str]
    """A hub name such as openai/gsm8k, or a folder."""
    name: str | None = None
    """The configuration, where the data set has several; main for openai/gsm8k."""
    split: str = "train"
    revision: str | None = None
    """Branch, tag or commit on the hub."""

    def load(self) -> Any:
        """Return the split as a `datasets.Dataset`; DataError, saying what to do, if it cannot be loaded."""
        import datasets

        folder = Path(self.path).expanduser()
        try:
            if (folder / "dataset_dict.json").is_file():
                return datasets.load_from_disk(str(folder))[self.split]
            if (folder / "state.json").is_file():
                saved = datasets.load_from_disk(str(folder))
                if saved.split is not None and str(saved.split) != self.split:
                    raise ValueError(f"it is the split {saved.split}")
                return saved
            path = str(folder) if folder.is_dir() else str(self.path)
            return datasets.load_dataset(path, self.name, split=self.split, revision=self.revision)
        except (OSError, ValueError, KeyError, RuntimeError, datasets.exceptions.DatasetsError) as error:
            where = "in that folder" if folder.is_dir() else "on the Hugging Face hub"
            remedy = (
                "Look at its files and splits; a folder of plain files has no configurations, so leave `name` out."
                if folder.is_dir()
                else "Check the name, configuration and split; without a network, download it elsewhere and name the "
                "folder instead."
            )
            raise DataError(
                f"The data set {self} cannot be loaded {where} ({type(error).__name__}: {error}). {remedy}"
            ) from error

    def __str__(self) -> str:
        """The data set in short: openai/gsm8k (main), train."""
        return f"{self.path}{f' ({self.name})' if self.name else ''}, {self.split}"


Files: TypeAlias = str | PathLike[str] | Sequence[str | PathLike[str]]
Source: TypeAlias = Files | HfDataset | Iterable[Row]


class OpenedSource:
    """A source whose chunks can be read once."""

    def __init__(self, source: Source) -> None:
        """Find the files of `source`; FileNotFoundError or DataError if there are none."""
        self.described: list[dict[str, str]] = []
        """What was read so far, for the manifest: files with their SHA-256, or the name of a data set."""
        self.files: list[str] = []
        """Paths and URLs, none for anything else."""
        self._rows: Any = ()
        if isinstance(source, HfDataset):
            self._rows = source.load()
            self.described.append({"dataset": str(source), "fingerprint": str(self._rows._fingerprint)})
        elif isinstance(source, (str, PathLike)):
            self.files = expand(source)
        elif isinstance(source, Sequence) and any(isinstance(entry, (str, PathLike)) for entry in source):
            if others := {type(entry).__name__ for entry in source if not isinstance(entry, (str, PathLike))}:
                raise DataError(f"A source is a list of files or of rows, but this one holds {others.pop()} as well.")
            self.files = expand([entry for entry in source if isinstance(entry, (str, PathLike))])
        else:
            self._rows = source

    def chunks(self) -> Generator[Chunk, None, None]:
        """Yield the chunks of all rows; a URL is copied here while it is read, file by file.

        Close it where it is not read to its end: it holds a thread and copies.
        """
        if not self.files:
            is_table = hasattr(self._rows, "with_format") and isinstance(self._rows, Sized)
            yield from table_chunks(self._rows) if is_table else memory_chunks(self._rows)
        with ThreadPoolExecutor(1, thread_name_prefix="verl-data-sha256") as thread:
            for name in self.files:
                with fetched(name) as path:
                    content_hash = thread.submit(sha256, path)
                    yield from read_chunks(name, path)
                    self.described.append({"path": name, "sha256": content_hash.result()})
