"""Rows to one Parquet file, in constant memory, with one type per column that all rows agree on."""

import pickle
import tempfile
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from verl_data.arrow_types import learn, storable, to_array
from verl_data.errors import DataError
from verl_data.files import atomic_file, explain_no_space
from verl_data.prompts import to_native
from verl_data.rows import BATCH_BYTES, Row


def write_rows(rows: Iterable[Row], output: str | PathLike[str]) -> int:
    """Write rows to the Parquet file `output`, which appears whole or not at all, and return how many they were.

    Two passes: rows go to an unnamed temporary file beside `path` while their types are learnt, and from there to
    Parquet. So a column with 5 in the first row and "5" in the last is text throughout, in whatever order they come.

    Raises DataError for no rows at all and for rows that do not fit into one table; OSError where there is no room.
    """
    path = Path(output).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        explain_no_space(path),
        tempfile.TemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=".spool") as spool,
    ):
        kind: pa.DataType = pa.null()
        sizes: list[int] = []
        for batch in _batches(rows, spool):
            kind = learn(kind, batch, sum(sizes))
            sizes.append(len(batch))
        if not sizes:
            raise DataError(f"There is no row to write to {path}.")
        stored = storable(kind)
        spool.seek(0)
        with atomic_file(path) as file, pq.ParquetWriter(file, pa.schema(list(stored))) as writer:
            for size in sizes:
                batch = [pickle.load(spool) for _ in range(size)]
                writer.write_batch(pa.RecordBatch.from_struct_array(to_array(batch, stored)))
    return sum(sizes)


def _batches(rows: Iterable[Row], spool: BinaryIO) -> Iterator[list[Row]]:
    """Put rows into `spool`, and yield them in batches that took `BATCH_BYTES` there, or little more."""
    batch: list[Row] = []
    begin = 0
    for row in rows:
        native = to_native(row)
        pickle.dump(native, spool, protocol=5)
        batch.append(native)
        if spool.tell() - begin >= BATCH_BYTES:
            yield batch
            batch, begin = [], spool.tell()
    if batch:
        yield batch
