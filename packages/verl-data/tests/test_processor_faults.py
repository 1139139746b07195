"""Input that would be changed, lost or mixed up without a word: it is kept exactly, or refused with its place."""

import datetime as dt
import json
import subprocess
import sys
import threading
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from verl_data import DataError, DataProcessor, HfDataset, chunks, read_rows, write_rows
from verl_data.processor import manifest_path

Row = dict[str, Any]


def keep(row: Row, index: int) -> Row:
    return row


class Batches(DataProcessor):
    """Gives back what it gets."""

    def process_batch(self, batch: pa.RecordBatch, index: int) -> pa.RecordBatch:
        return batch


def stored(values: list[Any], path: Path) -> list[Any]:
    write_rows([{"v": value} for value in values], path)
    return [row["v"] for row in read_rows(path)]


# Values.

HOUR = dt.datetime(2020, 1, 1, 5)
TABLE: list[tuple[list[Any], list[Any]]] = [
    ([0.5, True], ["0.5", "true"]),
    ([Decimal("1.50"), Decimal("12345.678")], ["1.50", "12345.678"]),
    ([dt.date(2020, 1, 1), HOUR], ["2020-01-01", "2020-01-01 05:00:00"]),
    ([HOUR, HOUR.replace(tzinfo=dt.timezone(dt.timedelta(hours=8)))], [str(HOUR), f"{HOUR}+08:00"]),
    ([np.bool_(True), 1], ["true", "1"]),
    ([np.int32(1), 2**53 + 1], [1, 2**53 + 1]),
    ([np.uint8(200), np.int8(-1)], [200, -1]),
    ([np.array(5), np.array([[1, 2], [3, 4]])[0, 0]], [5, 1]),
]


@pytest.mark.parametrize(("values", "expected"), TABLE)
@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
def test_values_are_the_same_whatever_rows_stand_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list[Any], expected: list[Any], chunk_bytes: int
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", chunk_bytes)  # 1: every row is a chunk of its own
    assert stored(values, tmp_path / "x.parquet") == expected
    assert stored(values[::-1], tmp_path / "x.parquet") == expected[::-1]


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
def test_what_no_column_holds_exactly_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", chunk_bytes)
    with pytest.raises(
        DataError, match=r"Row \d of the output: field v holds 9007199254740993, and fractions in other"
    ):
        stored([2**53 + 1, 1.5], tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"field v holds binary in some rows and string in others"):
        stored([b"x", "y"], tmp_path / "x.parquet")
    assert list(tmp_path.iterdir()) == []


def endless() -> list[Any]:
    held: list[Any] = []
    held.append(held)
    return held


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (uuid.UUID(int=1), "holds a UUID, which Parquet cannot store; make it text"),
        (endless(), "nested too deep, or hold themselves"),
        ({"a\ud800": 1}, r"field v \(a key\) holds half of a surrogate pair"),
    ],
)
def test_values_that_cannot_be_stored(tmp_path: Path, value: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"Row 0 of the output: .*{message}"):
        stored([value], tmp_path / "x.parquet")
    manifest = DataProcessor(lambda row, index: {"v": value if index else 1}, on_error="skip").run(
        [{}, {}], tmp_path / "x.parquet"
    )
    assert (manifest.rows_written, manifest.rows_failed) == (1, 1)
    assert "row 1: its result" in manifest.first_errors[0]


def test_integers_and_times_of_columns_stay_exact(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int32())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": pa.array([2**53 + 1, 2**60 + 7])}), tmp_path / "b.parquet")
    Batches().run([tmp_path / "a.parquet", tmp_path / "b.parquet"], tmp_path / "x.parquet")
    assert [row["id"] for row in read_rows(tmp_path / "x.parquet")] == [1, 2, 2**53 + 1, 2**60 + 7]
    stamp = pa.array([1577836800000000001], pa.timestamp("ns"))
    pq.write_table(pa.table({"t": stamp}), tmp_path / "t.parquet")
    for processor in (Batches(), DataProcessor(keep)):
        processor.run(tmp_path / "t.parquet", tmp_path / "x.parquet")
        assert pq.read_table(tmp_path / "x.parquet")["t"].combine_chunks().cast(pa.int64()).to_pylist() == [
            1577836800000000001
        ]


# process_row and process_batch.


def test_a_dict_that_is_used_again_is_copied(tmp_path: Path) -> None:
    reward: Row = {"style": "rule", "ground_truth": ""}
    whole: Row = {}

    def nested(row: Row, index: int) -> Row:
        reward["ground_truth"] = row["a"]
        return {"q": row["q"], "reward_model": reward}

    def all_of_it(row: Row, index: int) -> Row:
        whole.update(q=row["q"], reward_model={"style": "rule", "ground_truth": row["a"]})
        return whole

    raw = [{"q": f"{i}?", "a": str(i)} for i in range(100)]
    for function in (nested, all_of_it):
        DataProcessor(function).run(raw, tmp_path / "x.parquet")
        assert [(row["q"], row["reward_model"]["ground_truth"]) for row in read_rows(tmp_path / "x.parquet")] == [
            (f"{i}?", str(i)) for i in range(100)
        ]


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
def test_rows_that_do_not_agree_with_those_before_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", chunk_bytes)
    raw: list[Row] = [{"a": "1"}, {"a": ["2"]}, {"a": 3}, {"a": {"b": 4}}, {"a": "5"}]
    with pytest.raises(DataError, match="holds string in some rows and list"):
        DataProcessor(keep).run(raw, tmp_path / "x.parquet")
    manifest = DataProcessor(keep, on_error="skip").run(raw, tmp_path / "x.parquet")
    assert [row["a"] for row in read_rows(tmp_path / "x.parquet")] == ["1", "3", "5"]
    assert (manifest.rows_read, manifest.rows_written, manifest.rows_failed) == (5, 3, 2)
    assert "in some rows and" in manifest.first_errors[0]


def test_all_rows_failed_says_why(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no row to write to .*x.parquet: of 2 rows 2 failed.\n  row 0: KeyError: 'q'"):
        DataProcessor(lambda row, index: {"q": row["q"]}, on_error="skip").run([{"a": 1}] * 2, tmp_path / "x.parquet")


def test_one_bad_line_costs_one_row_of_a_batch(tmp_path: Path) -> None:
    (tmp_path / "raw.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(5000)) + "oops\n")
    manifest = Batches(on_error="skip").run(tmp_path / "raw.jsonl", tmp_path / "x.parquet")
    assert (manifest.rows_written, manifest.rows_failed) == (5000, 1)


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("q,a,a\n1,2,3\n")
    with pytest.raises(DataError, match=r"a.csv: two columns have the header 'a'"):
        DataProcessor(keep).run(tmp_path / "a.csv", tmp_path / "x.parquet")
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    pq.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a.parquet has two columns 'a'"):
        list(read_rows(tmp_path / "a.parquet"))

    class Twice(DataProcessor):
        def process_batch(self, batch: pa.RecordBatch, index: int) -> pa.Table:
            return twice

    with pytest.raises(DataError, match="two columns 'a'"):
        Twice().run([{"a": 1}], tmp_path / "x.parquet")
    with pytest.raises(TypeError, match="takes no process_fn as well"):
        Twice(keep)


def test_csv_rows_of_another_length_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('q,a\n1,2\n3\n4,5,6\n"7\n8",9\n')
    manifest = DataProcessor(keep, on_error="skip").run(tmp_path / "a.csv", tmp_path / "x.parquet")
    assert list(read_rows(tmp_path / "x.parquet")) == [{"q": "1", "a": "2"}, {"q": "7\n8", "a": "9"}]
    assert [error.rpartition("/")[2] for error in manifest.first_errors] == [
        "a.csv, row 1 (line 3): it has 1 fields, but the header has 2.",
        "a.csv, row 2 (line 4): it has 3 fields, but the header has 2.",
    ]


@pytest.mark.parametrize("line", ['{"a": ' + "9" * 5000 + "}", "[" * 100_000])
def test_lines_that_break_the_parser_are_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"a": 1}}\n{line}\n')
    with pytest.raises(DataError, match=r"a.jsonl, line 2: it is not JSON"):
        DataProcessor(keep).run(tmp_path / "a.jsonl", tmp_path / "x.parquet")
    assert DataProcessor(keep, on_error="skip").run(tmp_path / "a.jsonl", tmp_path / "x.parquet").rows_failed == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failed_run_leaves_no_thread_to_the_garbage_collector(tmp_path: Path, workers: int) -> None:
    """A thread that the collector ends while another one starts waits for that one, and that one for it: for ever."""
    (tmp_path / "a.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(50_000)))

    def fail(row: Row, index: int) -> Row:
        raise RuntimeError("here")

    before = set(threading.enumerate())
    with pytest.raises(DataError) as failure:
        DataProcessor(fail).run(tmp_path / "a.jsonl", tmp_path / "x.parquet", num_workers=workers)
    left = [thread.name for thread in set(threading.enumerate()) - before if not thread.daemon]
    assert left == [], failure  # whose traceback keeps all that the run's functions held


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_fault_is_told_although_reading_is_ahead(tmp_path: Path, workers: int) -> None:
    (tmp_path / "a.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(3000)) + "1,2\n")

    def fail(row: Row, index: int) -> Row:
        if row["n"] == "2500":
            raise RuntimeError("here")
        return row

    with pytest.raises(DataError, match=r"row 2500: RuntimeError: here"):
        DataProcessor(fail).run(tmp_path / "a.csv", tmp_path / "x.parquet", num_workers=workers)

    def rows() -> Any:
        yield from ({"n": str(n)} for n in range(3000))
        raise OSError("the source ends here")

    with pytest.raises(DataError, match=r"row 2500: RuntimeError: here"):
        DataProcessor(fail).run(rows(), tmp_path / "x.parquet", num_workers=workers)
    with pytest.raises(OSError, match="the source ends here"):
        DataProcessor(lambda row, index: row).run(rows(), tmp_path / "x.parquet", num_workers=workers)


def test_rows_that_grow_stay_within_memory(tmp_path: Path) -> None:
    code = """
import resource, sys
from verl_data import DataProcessor
import pyarrow, pandas
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
DataProcessor(lambda row, i: {"text": str(i) * 6_000}).run(({"i": i} for i in range(16_000)), sys.argv[1])
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) * (1 if sys.platform == "darwin" else 1024) // 2**20)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "x.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 450  # the rows are about 450 MB, and twice that as text in Python and Arrow


# Sources and outputs.


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (["a.jsonl", {"a": 9}], "holds dict as well"),
        ([{"a": 9}, "a.jsonl"], "holds dict as well"),
        (["a.jsonl", None], "holds NoneType as well"),
        ({"a": [1]}, r"row 0: a row \(dict\) is expected, not str.*to_dict"),
        (pa.table({"a": [1]}), r"row 0: a row \(dict\) is expected, not ChunkedArray.*to_pylist"),
        ({Path("a.jsonl")}, r"row 0: a row \(dict\) is expected, not PosixPath.*names of its files"),
    ],
)
def test_sources_that_are_no_rows(tmp_path: Path, source: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        DataProcessor(keep).run(source, tmp_path / "x.parquet")


def test_a_saved_split_is_the_one_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    import datasets

    datasets.Dataset.from_dict({"a": [1]}, split="train").save_to_disk(str(tmp_path / "saved"))
    assert DataProcessor(keep).run(HfDataset(tmp_path / "saved"), tmp_path / "x.parquet").rows_written == 1
    with pytest.raises(DataError, match=r"saved, test cannot be loaded in that folder \(ValueError: it is the split"):
        DataProcessor(keep).run(HfDataset(tmp_path / "saved", split="test"), tmp_path / "x.parquet")


def test_the_output_is_no_input(tmp_path: Path) -> None:
    source = tmp_path / "x.parquet"
    write_rows([{"a": 1}], source)
    (tmp_path / "link.parquet").symlink_to(source)
    for output in (source, tmp_path / "link.parquet"):
        with pytest.raises(ValueError, match=r"is read from, so it cannot be the output as well"):
            DataProcessor(lambda row, index: None).run(source, output)
    with pytest.raises(ValueError, match=r"its name must end in .parquet: .*x.jsonl"):
        DataProcessor(keep).run(source, tmp_path / "x.jsonl")
    assert list(read_rows(source)) == [{"a": 1}]


def test_a_link_as_output_leads_to_the_new_file(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "x.parquet").symlink_to(tmp_path / "data/real.parquet")
    for value in (1, 2):
        DataProcessor(keep).run([{"a": value}], tmp_path / "x.parquet")
        assert (tmp_path / "x.parquet").is_symlink()
        assert list(read_rows(tmp_path / "data/real.parquet")) == [{"a": value}]


def test_globs_find_no_manifests_and_folders_with_brackets(tmp_path: Path) -> None:
    folder = tmp_path / "run[1]"
    DataProcessor(keep).run([{"a": 1}], folder / "a.parquet")
    (folder / "b[2].jsonl").write_text('{"a": 2}\n')
    for source in (f"{folder}/*", f"file://{folder}/a.parquet", f"file://{folder}/b[2].jsonl"):
        rows = DataProcessor(keep).run(source, tmp_path / "x.parquet").rows_written
        assert rows == (2 if source.endswith("*") else 1)


def test_nothing_is_lost_where_an_upload_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system: Any = fsspec.filesystem("memory")
    system.pipe("/bucket/x.parquet", b"old")
    original = type(system).mv

    def refuse(self: Any, source: str, target: str, **kwargs: Any) -> None:
        if target.endswith("/x.parquet"):
            if self.exists(target):
                raise FileExistsError(target)  # as HDFS does
            if not source.endswith(".old"):
                raise OSError("no quorum")
        original(self, source, target, **kwargs)

    monkeypatch.setattr(type(system), "mv", refuse)
    with pytest.raises(OSError, match=r"memory://bucket/x.parquet: OSError: no quorum"):
        DataProcessor(keep).run([{"a": 1}], "memory://bucket/x.parquet")
    assert system.ls("/bucket", detail=False) == ["/bucket/x.parquet"]
    assert system.cat("/bucket/x.parquet") == b"old"
    monkeypatch.setattr(type(system), "mv", original)
    system.rm("/bucket", recursive=True)


STOP_BETWEEN = """
import os, sys, pathlib
from verl_data import DataProcessor
original = pathlib.Path.replace
def replace(self, target):
    original(self, target)
    os._exit(1)
pathlib.Path.replace = replace
DataProcessor(lambda row, index: row).run([{"a": 2}], sys.argv[1])
"""


def test_killed_between_output_and_manifest(tmp_path: Path) -> None:
    """The one moment in which the two differ; the manifest's hash then tells it (`check_file` does)."""
    output = tmp_path / "x.parquet"
    DataProcessor(keep).run([{"a": 1}], output)
    before = json.loads(manifest_path(output).read_text())
    assert subprocess.run([sys.executable, "-c", STOP_BETWEEN, str(output)]).returncode == 1
    assert list(read_rows(output)) == [{"a": 2}]
    assert json.loads(manifest_path(output).read_text()) == before
    assert DataProcessor(keep).run([{"a": 3}], output).sha256 != before["sha256"]


def test_a_folder_where_the_manifest_belongs(tmp_path: Path) -> None:
    manifest_path(tmp_path / "x.parquet").mkdir()
    with pytest.raises(IsADirectoryError, match=r"x.parquet.manifest.json, where the manifest belongs, is a folder"):
        DataProcessor(keep).run([{"a": 1}], tmp_path / "x.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["x.parquet.manifest.json"]
