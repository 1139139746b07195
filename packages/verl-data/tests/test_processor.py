import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_data import DataError, DataProcessor, read_rows, write_rows
from verl_data.files import sha256
from verl_data.processor import manifest_path

Row = dict[str, Any]


def keep(row: Row, index: int) -> Row:
    return row


def written(rows: Any, path: Path) -> list[Row]:
    write_rows(rows, path)
    return list(read_rows(path))


# What a processor does.


class Numbered(DataProcessor):
    def process_row(self, row: Row, index: int) -> Any:
        if row["n"] == 0:
            return None
        return [{"n": row["n"], "index": index, "copy": copy} for copy in range(row["n"])]


def test_a_row_becomes_one_several_or_none(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "out.parquet"
    manifest = Numbered().run([{"n": 1}, {"n": 0}, {"n": 2}], output)
    assert list(read_rows(output)) == [
        {"n": 1, "index": 0, "copy": 0},
        {"n": 2, "index": 2, "copy": 0},
        {"n": 2, "index": 2, "copy": 1},
    ]
    assert (manifest.rows_read, manifest.rows_written, manifest.rows_dropped) == (3, 3, 1)
    stored = json.loads(manifest_path(output).read_text())
    assert stored["sha256"] == sha256(output)
    assert (stored["output"], stored["source"], stored["schema_version"]) == ("out.parquet", [], 1)
    assert sorted(path.name for path in output.parent.iterdir()) == ["out.parquet", "out.parquet.manifest.json"]


def test_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"q": "a", "n": 1}, {"q": "中文", "n": 2}]
    (tmp_path / "r.jsonl").write_text("\ufeff" + "\n".join(json.dumps(row) for row in rows) + "\n\n", encoding="utf-8")
    (tmp_path / "r.json").write_text(json.dumps(rows, indent=1))
    (tmp_path / "lines.json").write_text("\n".join(json.dumps(row) for row in rows))
    (tmp_path / "r.csv").write_text('q,n\na,1\n"中文",2\n', encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "r.parquet")
    monkeypatch.setenv("HOME", str(tmp_path))
    output = tmp_path / "out.parquet"
    sources: list[Any] = ["~/r.jsonl", *(tmp_path / name for name in ("r.json", "lines.json", "r.parquet")), iter(rows)]
    for source in sources:
        DataProcessor(keep).run(source, output)
        assert list(read_rows(output)) == rows
    DataProcessor(keep).run(tmp_path / "r.csv", "~/out.parquet")
    assert list(read_rows(output)) == [{"q": "a", "n": "1"}, {"q": "中文", "n": "2"}]
    several: list[str | Path] = [tmp_path / "r.jsonl", str(tmp_path / "r.json")]
    manifest = DataProcessor(lambda row, index: {**row, "index": index}).run(several, output)
    assert [row["index"] for row in read_rows(output)] == [0, 1, 2, 3]
    assert manifest.source[0] == {"path": str(tmp_path / "r.jsonl"), "sha256": sha256(tmp_path / "r.jsonl")}


def half(row: Row, index: int) -> Row:
    return {"half": 1 / row["n"]}


def test_a_row_that_raises(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source, output = tmp_path / "r.jsonl", tmp_path / "out.parquet"
    source.write_text("".join(json.dumps({"n": n}) + "\n" for n in [1, 0, 2, *[0] * 9]))
    with pytest.raises(
        DataError, match=r"r.jsonl, row 1 \(line 2\): ZeroDivisionError: .*test_processor.py:80\). Set on_error=skip"
    ):
        DataProcessor(half).run(source, output)
    assert not output.exists()
    manifest = DataProcessor(half, on_error="skip").run(source, output)
    assert (manifest.rows_read, manifest.rows_written, manifest.rows_failed) == (12, 2, 10)
    assert len(manifest.first_errors) == 5
    assert manifest.first_errors[0].startswith(f"{source}, row 1 (line 2): ZeroDivisionError")
    assert "out.parquet: 10 of 12 rows failed and were left out" in caplog.text
    assert "12 rows read, 2 written, 0 dropped, 10 failed" in str(manifest)


def test_misuse_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="needs a process_fn"):
        DataProcessor()
    with pytest.raises(ValueError, match="on_error must be raise or skip"):
        DataProcessor(keep, on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="row 0: process_row returned str"):
        DataProcessor(lambda row, index: "text").run([{}], tmp_path / "x.parquet")  # type: ignore[arg-type, return-value]
    with pytest.raises(DataError, match=r"There is no row to write to .*x.parquet"):
        DataProcessor(lambda row, index: None).run([{}], tmp_path / "x.parquet")
    with pytest.raises(FileNotFoundError, match=r"raw.jsonl does not exist"):
        DataProcessor(keep).run(tmp_path / "raw.jsonl", tmp_path / "x.parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"a,b\n1,2\n3\n", r"a.csv, row 1 \(line 3\): it has 1 fields, but the header has 2"),
        ("a.csv", b"a\n\xff\n", "a.csv, at row 0 or soon behind it: the bytes are not UTF-8 .*iconv"),
        ("a.csv", b'a\n"x', r"a.csv, row 0 \(line 1\): unexpected end"),
        ("a.json", b"[1]", "a.json, row 0: a JSON object is expected, not int"),
        ("a.json", b"[{]", "a.json cannot be read as a JSON array"),
        ("a.jsonl", b'{"a": "\xff"}', "a.jsonl, line 1: the bytes are not UTF-8"),
        ("a.parquet", b"PAR1", "a.parquet cannot be read as Parquet"),
        ("a.txt", b"x", "a.txt is not a .parquet, .jsonl, .json or .csv file"),
    ],
)
def test_sources_that_cannot_be_read_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        DataProcessor(keep).run(tmp_path / name, tmp_path / "out.parquet")
    assert [path.name for path in tmp_path.iterdir()] == [name]


# One type per column.


def test_mixed_answers_are_text_and_empty_dicts_survive(tmp_path: Path) -> None:
    """Bug bank A18."""
    path = tmp_path / "x.parquet"
    assert written([{"e": {"answer": "5"}}, {"e": {"answer": 5}}], path) == [{"e": {"answer": "5"}}] * 2
    assert pq.read_table(path)["e"].to_pylist() == [{"answer": "5"}] * 2  # any reader sees text
    assert written([{"e": {}}, {"e": {}}], path) == [{"e": {}}, {"e": {}}]
    assert written([{"e": [{}]}, {"e": []}], path) == [{"e": [{}]}, {"e": []}]


@pytest.mark.parametrize("first", [0, 1])
def test_a_type_that_shows_late_holds_for_all_rows(tmp_path: Path, first: int) -> None:
    def rows() -> Iterator[Row]:
        for i in range(1000):
            yield {"answer": i if i != 999 else "x", "extra": {} if i < 999 else {"a": True}, "none": None, "some": []}
            if first and i == 0:
                yield {"answer": "y", "extra": {"a": None}, "none": None, "some": [1]}

    back = written(rows(), tmp_path / "x.parquet")
    assert [row["answer"] for row in back if row["answer"] != "y"] == [*map(str, range(999)), "x"]
    assert back[-1] == {"answer": "x", "extra": {"a": True}, "none": None, "some": []}
    assert back[0]["extra"] == {"a": None}


def test_scalars_meet_as_json_text(tmp_path: Path) -> None:
    values = [5, 5.5, True, None, "text", 2**70, "é"]
    back = written([{"v": value} for value in values], tmp_path / "x.parquet")
    assert [row["v"] for row in back] == ["5", "5.5", "true", None, "text", str(2**70), "é"]
    back = written([{"v": 2}, {"v": 2.5}], tmp_path / "x.parquet")
    assert [row["v"] for row in back] == [2.0, 2.5]
    back = written([{"v": np.int64(3), "w": np.array([1, 2])}, {"v": np.float32(0.5), "w": ()}], tmp_path / "x.parquet")
    assert back == [{"v": 3.0, "w": [1, 2]}, {"v": 0.5, "w": []}]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            [{"a": "x"}, {"a": ["x"]}],
            r"Row 1 of the output: field v.a holds string in some rows and list<item: string>",
        ),
        (["x", {"a": 1}], "Row 1 of the output: field v holds string in some rows and struct<a: int64>"),
        ([{1: "x"}], "Row 0 of the output: field v has the key 1; keys must be text"),
        ([object()], "Row 0 of the output: field v holds a object, which Parquet cannot store"),
    ],
)
def test_rows_that_no_table_holds_are_named(tmp_path: Path, values: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        write_rows([{"v": value} for value in values], tmp_path / "x.parquet")
    assert list(tmp_path.iterdir()) == []


def row_values(answer: st.SearchStrategy[Any]) -> st.SearchStrategy[Row]:
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    return st.fixed_dictionaries(
        {
            "prompt": st.lists(st.fixed_dictionaries({"role": text, "content": text}), max_size=2),
            "extra": st.fixed_dictionaries(
                {"answer": answer, "nested": st.lists(st.lists(st.integers(-9, 9)), max_size=2)}
            ),
            "blob": st.binary(max_size=3),
        }
    )


@settings(deadline=None, max_examples=30)
@given(st.one_of([st.lists(row_values(kind), min_size=1, max_size=20) for kind in (st.booleans(), st.text("ab"))]))
def test_rows_of_one_kind_come_back_unchanged(tmp_path_factory: pytest.TempPathFactory, rows: list[Row]) -> None:
    assert written(rows, tmp_path_factory.mktemp("rows") / "x.parquet") == rows


def test_large_rows_and_many_rows_stay_within_memory(tmp_path: Path) -> None:
    code = """
import resource, sys
from verl_data import write_rows, read_rows
def rows():
    for i in range(30): yield {"i": i, "text": chr(97 + i % 26) * 10_000_000}
    for i in range(20_000): yield {"i": i, "text": "x" * 1000}
import pyarrow, pandas
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
count = write_rows(rows(), __import__("pathlib").Path(sys.argv[1]))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
unit = 1 if sys.platform == "darwin" else 1024
print(count, (after - before) * unit // 2**20)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x.parquet")], capture_output=True, text=True, check=True
    )
    count, mebibytes = map(int, done.stdout.split())
    assert count == 20_030
    assert mebibytes < 290  # the rows are 320 MB
    assert sum(1 for _ in pq.ParquetFile(tmp_path / "x.parquet").iter_batches(batch_size=1, columns=["i"])) == count


# Faults while writing.

WRITE_FOR_EVER = """
import itertools, sys
from verl_data import DataProcessor
def process(row, index):
    if index == 2000: print("writing", flush=True)
    return row
DataProcessor(process).run(({"i": i, "text": "x" * 1000} for i in itertools.count()), sys.argv[1])
"""

STOP_BEFORE_THE_FILE_IS_COMPLETE = """
import os, sys, time
from verl_data import DataProcessor
def wait(descriptor):
    print("writing", flush=True)
    time.sleep(600)
os.fsync = wait
DataProcessor(lambda row, index: row).run([{"i": 1}], sys.argv[1])
"""


@pytest.mark.parametrize(
    ("code", "existing"), [(WRITE_FOR_EVER, False), (STOP_BEFORE_THE_FILE_IS_COMPLETE, False), (WRITE_FOR_EVER, True)]
)
def test_killed_while_writing(tmp_path: Path, code: str, existing: bool) -> None:
    output = tmp_path / "train.parquet"
    if existing:
        DataProcessor(keep).run([{"i": "old"}], output)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with subprocess.Popen([sys.executable, "-c", code, str(output)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir() if not path.name.endswith(".tmp")}
    assert after == before
    assert list(tmp_path.glob("*.parquet")) == ([output] if existing else [])
    DataProcessor(keep).run([{"i": "new"}], output)  # and the next run works
    assert list(read_rows(output)) == [{"i": "new"}]


@pytest.mark.parametrize("limit", [1_000, 100_000])
def test_no_room_left(tmp_path: Path, limit: int) -> None:
    """A file size limit stops the write as a full disk does: in the first pass, or while Parquet is written."""
    output = tmp_path / "train.parquet"
    DataProcessor(keep).run([{"i": "old"}], output)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    # Rows that pickle stores once and Parquet several times reach the limit in the second pass.
    code = """
import sys
from verl_data import DataProcessor
text = "".join(map(chr, range(0x4e00, 0x4e00 + 9000)))
rows = ({f"column{j}": text for j in range(60)} for i in range(3))
try:
    DataProcessor(lambda row, index: row).run(rows, sys.argv[1])
except OSError as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(output)],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.stderr == ""
    assert done.stdout.startswith("NoSpaceError")
    assert f"No room to write {output}" in done.stdout
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    rows = [{"i": i, "text": str(i)} for i in range(5000)]
    for name in ("a", "b"):
        write_rows(rows, tmp_path / f"{name}.parquet")
    assert sha256(tmp_path / "a.parquet") == sha256(tmp_path / "b.parquet")


def test_the_file_can_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    write_rows([{"a": 1}], tmp_path / "x.parquet")
    (tmp_path / "plain").touch()
    assert (tmp_path / "x.parquet").stat().st_mode == (tmp_path / "plain").stat().st_mode
