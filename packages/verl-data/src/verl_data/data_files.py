"""The rows of several files as one: numbered from 0, file after file."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_data.files import PathLike, expand
from verl_data.row_files import RowFile, open_rows
from verl_data.rows import Row

#: Rows that are held at a time where all of them are looked at.
CHUNK_ROWS = 1024


class DataFiles:
    """The rows of the files that some entries (a path, a glob or a URL each) name."""

    def __init__(self, entries: Sequence[PathLike]) -> None:
        """Open the files. Raises FileNotFoundError; DataError for a file that cannot be read."""
        names = [expand(entry) for entry in entries] or [expand([])]  # which says that there are none
        self.files: list[RowFile] = [open_rows(name) for found in names for name in found]
        self.entries = [index for index, found in enumerate(names) for _ in found]
        """The entry that each file comes from."""
        self._starts = np.cumsum([0, *(len(file) for file in self.files)], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def names(self, entry: int | None = None) -> str:
        """Name the files, all or those of an entry."""
        return ", ".join(file.name for file, of in zip(self.files, self.entries, strict=True) if entry in (of, None))

    def contents(self) -> list[dict[str, Any]]:
        """Return the name without its folder, the rows and the hash of the content of each file."""
        return [{"name": PurePath(file.name).name, "rows": len(file), "sha256": file.sha256} for file in self.files]

    def entry_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the entry that each row comes from."""
        return np.asarray(self.entries, dtype=np.int64)[self._file_of(rows)]

    def location(self, row: int) -> str:
        """Name the file and the row in it."""
        number = int(self._file_of(row))
        return self.files[number].location(row - int(self._starts[number]))

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> list[Row]:
        """Return whole rows, in the order asked for."""
        wanted = np.asarray(rows, dtype=np.int64)
        of_row = self._file_of(wanted)
        taken: list[Row] = [{} for _ in wanted]
        for number in np.unique(of_row):
            places = np.flatnonzero(of_row == number)
            found = self.files[number].take((wanted[places] - self._starts[number]).tolist())
            for place, row in zip(places.tolist(), found, strict=True):
                taken[place] = row
        return taken

    def scan(self, columns: Sequence[str]) -> Iterator[tuple[int, Row]]:
        """Yield every row with its number, with at least those of `columns` that its file has."""
        for begin, file in zip(self._starts.tolist(), self.files, strict=False):
            yield from enumerate(file.scan(columns), begin)

    def chunks(self, rows: NDArray[np.int64], columns: Sequence[str] | None = None) -> Iterator[list[Row]]:
        """Yield the ascending `rows`, at most `CHUNK_ROWS` at a time: whole ones, or with at least `columns`."""
        if columns is None:
            for begin in range(0, len(rows), CHUNK_ROWS):
                yield self.take(rows[begin : begin + CHUNK_ROWS])
            return
        wanted = np.zeros(len(self), dtype=bool)
        wanted[rows] = True
        scanned = (row for number, row in self.scan(columns) if wanted[number])
        while chunk := list(islice(scanned, CHUNK_ROWS)):
            yield chunk

    def _file_of(self, rows: NDArray[np.int64] | int) -> NDArray[np.int64]:
        return np.searchsorted(self._starts, rows, side="right") - 1
