"""Several processes give what one gives; what goes wrong in them is told."""

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_data import DataError, DataProcessor, read_rows
from verl_data.files import sha256

Row = dict[str, Any]


def make_uneven(on_error: Any = "raise") -> DataProcessor:
    """A class of its own, as a script has it: modules of tests cannot be imported by workers."""

    class Uneven(DataProcessor):
        """Drops, multiplies and fails, with types that change on the way."""

        def process_row(self, row: Row, index: int) -> Any:
            n = row["n"]
            if n % 7 == 0:
                return None
            if n % 1000 == 999:
                raise ValueError(f"no {n}")
            answer: Any = n if n < 30_000 else str(n)
            return [{"n": n, "index": index, "answer": answer, "extra": {} if n % 2 else {"odd": False}}] * (n % 3)

    return Uneven(on_error=on_error)


def write_input(path: Path, count: int) -> Path:
    path.write_text("".join(f'{{"n": {n}, "text": "{"x" * 100}"}}\n' for n in range(count)))
    return path


def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path) -> None:
    source = write_input(tmp_path / "raw.jsonl", 60_000)  # two chunks
    manifests = []
    for workers in (1, 2, 3):
        output = tmp_path / str(workers) / "out.parquet"
        manifests.append(make_uneven("skip").run(source, output, num_workers=workers))
    first_errors = [[error.split(" (/")[0] for error in manifest.first_errors] for manifest in manifests]
    assert (
        first_errors[0] == first_errors[1] == first_errors[2]
    )  # but for the line of code, which only one process tells
    assert replace(manifests[0], first_errors=[]) == replace(manifests[1], first_errors=[])
    assert manifests[0].sha256 == sha256(tmp_path / "1/out.parquet") == sha256(tmp_path / "3/out.parquet")
    assert manifests[0].rows_failed == 52  # of 60, without the multiples of 7
    assert [error.split(": ", 1)[0] for error in manifests[0].first_errors][:2] == [
        f"{source}, row 999 (line 1000)",
        f"{source}, row 1999 (line 2000)",
    ]
    rows = list(read_rows(tmp_path / "1/out.parquet"))
    assert len(rows) == manifests[0].rows_written
    assert all(row["answer"] == str(row["n"]) and row["index"] == row["n"] for row in rows)
    assert manifests[0].rows_read == 60_000


def test_a_lambda_and_a_closure_reach_the_workers(tmp_path: Path) -> None:
    words = ["even", "odd"]
    DataProcessor(lambda row, index: {"word": words[row["n"] % 2]}).run(
        ({"n": n} for n in range(5)), tmp_path / "x.parquet", num_workers=2
    )
    assert [row["word"] for row in read_rows(tmp_path / "x.parquet")] == ["even", "odd", "even", "odd", "even"]


def test_the_first_faulty_row_is_named_with_the_line_of_code(tmp_path: Path) -> None:
    source = write_input(tmp_path / "raw.jsonl", 60_000)
    with pytest.raises(DataError, match=r"row 999 \(line 1000\): ValueError: no 999 \(.*test_workers.py:\d+\)"):
        make_uneven().run(source, tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"row 999 \(line 1000\): ValueError: no 999. Set on_error=skip"):
        make_uneven().run(source, tmp_path / "x.parquet", num_workers=2)
    assert [path.name for path in tmp_path.iterdir()] == ["raw.jsonl"]


def test_a_worker_that_dies_is_told(tmp_path: Path) -> None:
    def die(row: Row, index: int) -> Row:
        os.kill(os.getpid(), signal.SIGKILL)
        return row

    with pytest.raises(DataError, match=r"A worker process died while rows from row 0 on .*fewer workers"):
        DataProcessor(die).run([{"n": 1}], tmp_path / "x.parquet", num_workers=2)
    assert list(tmp_path.iterdir()) == []


def test_what_no_process_can_be_sent_is_told(tmp_path: Path) -> None:
    lock = threading.Lock()

    def locked(row: Row, index: int) -> Row:
        with lock:
            return row

    with pytest.raises(DataError, match=r"cannot be sent to worker processes \(TypeError: .*num_workers=1"):
        DataProcessor(locked).run([{"n": 1}], tmp_path / "x.parquet", num_workers=2)
    assert DataProcessor(locked).run([{"n": 1}], tmp_path / "x.parquet").rows_written == 1
    with pytest.raises(ValueError, match="num_workers must be at least 1, but is 0"):
        DataProcessor(locked).run([{"n": 1}], tmp_path / "x.parquet", num_workers=0)


# No `if __name__ == "__main__"`: the script must not be run again by the workers.
SCRIPT = """
import sys
from verl_data import DataProcessor
print("begin", flush=True)
def same(row, index):
    return row
manifest = DataProcessor(same).run(({"n": n} for n in range(10)), sys.argv[1], num_workers=2)
print(manifest.rows_written)
"""


def test_a_plain_script_is_run_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "x.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("begin\n10\n", "")
    script = tmp_path / "prepare.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script), *command[3:]], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("begin\n10\n", "")


def test_workers_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import os, pathlib, time
from verl_data import DataProcessor
def slow(row, index):
    pathlib.Path({str(tmp_path)!r}, f"{{os.getpid()}}.pid").touch()
    time.sleep(0.01)
    return row
DataProcessor(slow).run(({{"n": n}} for n in range(100_000)), {str(tmp_path / "x.parquet")!r}, num_workers=2)
"""
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        while len(workers := [int(path.stem) for path in tmp_path.glob("*.pid")]) < 2:
            time.sleep(0.1)
            assert process.poll() is None
        process.kill()
    assert process.pid not in workers
    while any(map(is_alive, workers)):  # for ever, if they were to go on
        time.sleep(0.1)
    assert list(tmp_path.glob("*.parquet")) == []


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process}/stat")  # an orphan that nobody has collected is no longer alive
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")


def test_a_processor_that_workers_cannot_load_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("only_here")
    code = (
        "from verl_data import DataProcessor\nclass Kept(DataProcessor):\n    def process_row(self, row, i): return row"
    )
    exec(code, module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(
        DataError, match=r"A worker process cannot load the processor \(ModuleNotFoundError: .*only_here"
    ):
        module.Kept().run([{"n": 1}], tmp_path / "x.parquet", num_workers=2)
    assert module.Kept().run([{"n": 1}], tmp_path / "x.parquet").rows_written == 1


def make_doubled(on_error: Any = "raise") -> DataProcessor:
    class Doubled(DataProcessor):
        """Works on columns."""

        def process_batch(self, batch: pa.RecordBatch, index: int) -> Any:
            numbers = batch.column("n")
            if pc.any(pc.equal(numbers, -1)).as_py():
                raise ValueError("there is a -1")
            if pc.all(pc.equal(numbers, 0)).as_py():
                return None
            table = pa.table({"n": pc.multiply(numbers, 2), "index": pa.array(range(index, index + len(numbers)))})
            return table.filter(pc.not_equal(numbers, 0))

    return Doubled(on_error=on_error)


@pytest.mark.parametrize("workers", [1, 2])
def test_batches(tmp_path: Path, workers: int) -> None:
    source = write_input(tmp_path / "raw.jsonl", 40_000)
    manifest = make_doubled().run(source, tmp_path / "x.parquet", num_workers=workers)
    assert (manifest.rows_read, manifest.rows_written, manifest.rows_dropped) == (40_000, 39_999, 1)
    assert list(read_rows(tmp_path / "x.parquet"))[-1] == {"n": 79_998, "index": 39_999}
    with pytest.raises(DataError, match=r"row 0, and the 1 behind it: ValueError: there is a -1.*on_error=skip"):
        make_doubled().run([{"n": 1}, {"n": -1}], tmp_path / "y.parquet", num_workers=workers)
    with pytest.raises(DataError, match="There is no row to write"):
        make_doubled().run([{"n": 0}], tmp_path / "y.parquet", num_workers=workers)
    with pytest.raises(DataError, match="There is no row to write"):
        make_doubled("skip").run([{"n": -1}], tmp_path / "y.parquet", num_workers=workers)


def test_batches_of_any_arrow_type_become_plain_columns(tmp_path: Path) -> None:
    class Given(DataProcessor):
        def process_batch(self, batch: pa.RecordBatch, index: int) -> Any:
            return pa.table(
                {
                    "category": pa.array(["a", "b"]).dictionary_encode(),
                    "large": pa.array(["x", None], pa.large_string()),
                    "lists": pa.array([[1], [2, 3]], pa.large_list(pa.int32())),
                    "fixed": pa.array([[1.0], [2.0]], pa.list_(pa.float32(), 1)),
                    "nothing": pa.nulls(2),
                    "nested": pa.array([{"v": "p"}, None], pa.struct([("v", pa.large_string())])),
                }
            )

    Given().run([{"n": 1}], tmp_path / "x.parquet")
    assert list(read_rows(tmp_path / "x.parquet")) == [
        {"category": "a", "large": "x", "lists": [1], "fixed": [1.0], "nothing": None, "nested": {"v": "p"}},
        {"category": "b", "large": None, "lists": [2, 3], "fixed": [2.0], "nothing": None, "nested": None},
    ]

    class Wrong(DataProcessor):
        def process_batch(self, batch: pa.RecordBatch, index: int) -> Any:
            return {"n": [1]}

    with pytest.raises(DataError, match=r"row 0, and the 0 behind it: process_batch returned dict, not a pyarrow"):
        Wrong().run([{"n": 1}], tmp_path / "y.parquet")


VALUES = st.recursive(
    st.none() | st.integers(-5, 5) | st.text(max_size=3) | st.booleans() | st.floats(-2, 2, width=16),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.fixed_dictionaries({"v": VALUES, "w": VALUES}), min_size=1, max_size=12), st.randoms())
def test_the_order_of_rows_does_not_decide_how_they_are_stored(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], random: Any
) -> None:
    """Rows of any kinds: either all orders are refused, or all give the same rows; one chunk or one per row."""
    folder = tmp_path_factory.mktemp("orders")
    order = list(range(len(rows)))
    random.shuffle(order)

    def stored(chosen: list[int], name: str, chunk_bytes: int) -> list[Row] | None:
        from verl_data import chunks

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chunks, "CHUNK_BYTES", chunk_bytes)
            try:
                DataProcessor(lambda row, index: row).run([rows[i] for i in chosen], folder / name)
            except DataError:
                return None
        return list(read_rows(folder / name))

    one = stored(order, "a.parquet", 1 << 20)
    for chosen, chunk_bytes in ((sorted(order), 1 << 20), (order, 1), (sorted(order), 1)):
        other = stored(chosen, "b.parquet", chunk_bytes)
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert [other[chosen.index(i)] for i in order] == one
