"""What data sets with splits share: where a split is read from, and one Parquet file for each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias

from verl_data.chunks import read_rows
from verl_data.errors import DataError
from verl_data.processor import DataProcessor, Manifest
from verl_data.rows import Row
from verl_data.sources import HfDataset, Source

OnError: TypeAlias = Literal["raise", "skip"]
#: Files, or a data set.
SplitSource: TypeAlias = list[str] | HfDataset

_SUFFIXES = ("parquet", "jsonl", "json", "csv")


class SplitProcessor(DataProcessor):
    """A processor whose rows say which split they are of."""

    def __init__(self, split: str, *, on_error: OnError = "raise") -> None:
        """Write `split` into extra_info."""
        super().__init__(on_error=on_error)
        self.split = split


class HubSplit(HfDataset):
    """A split of a data set on the hub, which says how a local copy is named instead."""

    def load(self) -> Any:
        """Return a `datasets.Dataset`; DataError where the hub cannot be reached."""
        try:
            return super().load()
        except DataError as error:
            raise DataError(
                f"{error} That is --local_dataset_path FOLDER (dataset_path=FOLDER in Python), with "
                f"{self.split}.parquet or {self.split}.jsonl in it."
            ) from error


@dataclass(frozen=True)
class HubDataset:
    """A data set on the Hugging Face hub, or a local copy of it."""

    repository: str
    name: str | None = None
    """Its configuration, as the hub calls it."""

    def split(self, split: str, local_path: str | PathLike[str] | None) -> SplitSource:
        """Return the source of a split: files of `local_path`, or the hub's where that is None.

        A local copy is a folder with SPLIT.parquet, .jsonl, .json or .csv; or with Parquet files as the hub lays them
        out (NAME/SPLIT-00000-of-00001.parquet, data/SPLIT-...); or one that `datasets.save_to_disk` wrote.

        Raises FileNotFoundError for a folder without the split.
        """
        if local_path is None:
            return HubSplit(self.repository, self.name, split)
        folder = Path(local_path).expanduser()
        if (folder / "dataset_dict.json").is_file():
            return HfDataset(folder, split=split)
        patterns = [f"{split}.{suffix}" for suffix in _SUFFIXES]
        patterns += [f"{place}{split}-*.parquet" for place in (f"{self.name}/" if self.name else "", "data/")]
        for pattern in patterns:
            if files := sorted(folder.glob(pattern)):
                return [str(file) for file in files]
        raise FileNotFoundError(
            f"{folder.absolute()} holds none of {', '.join(dict.fromkeys(patterns))}, so it is no copy of "
            f"{self.repository} with the split {split}."
        )

    def splits(self, splits: Sequence[str], local_path: str | PathLike[str] | None) -> dict[str, SplitSource]:
        """Return the source of each split, so that a missing one is known before anything is written."""
        return {split: self.split(split, local_path) for split in splits}


def prepare_splits(
    processor: Callable[[str], DataProcessor], sources: Mapping[str, Source], save_dir: str | PathLike[str]
) -> dict[str, Manifest]:
    """Write SPLIT.parquet to `save_dir` for each source, with the processor that `processor(split)` makes."""
    folder = Path(save_dir).expanduser()
    return {split: processor(split).run(source, folder / f"{split}.parquet") for split, source in sources.items()}


def source_rows(source: SplitSource) -> Iterator[Row]:
    """Yield the rows of a split as they are."""
    if isinstance(source, HfDataset):
        yield from source.load()
        return
    for file in source:
        yield from read_rows(file)
