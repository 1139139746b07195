"""Everything that a processor reads from, and writes to."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from verl_data import DataConfig, DataError, DataProcessor, HfDataset, PromptLoader, read_rows
from verl_data.files import expand, sha256

Row = dict[str, Any]


def keep(row: Row, index: int) -> Row:
    return row


@pytest.fixture
def memory() -> Any:
    """fsspec's file system in memory: a remote one, but for the wire."""
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


def test_urls_in_and_out(tmp_path: Path, memory: Any, chatml: Any, make_rows: Any) -> None:
    rows = make_rows(6)
    DataProcessor(keep).run(rows[:4], tmp_path / "part-0.parquet")
    memory.put_file(str(tmp_path / "part-0.parquet"), "/bucket/raw/part-0.parquet")
    memory.pipe("/bucket/raw/part-1.parquet", (tmp_path / "part-0.parquet").read_bytes())
    memory.pipe("/bucket/raw/more.jsonl", "".join(json.dumps(row) + "\n" for row in rows[4:]).encode())
    assert expand("memory://bucket/raw/part-*.parquet") == [
        "memory:///bucket/raw/part-0.parquet",
        "memory:///bucket/raw/part-1.parquet",
    ]
    source = ["memory://bucket/raw/part-*.parquet", "memory://bucket/raw/more.jsonl"]
    manifest = DataProcessor(keep).run(source, "memory://bucket/out/train.parquet")
    assert manifest.rows_written == 10
    assert manifest.source[2] == {
        "path": "memory://bucket/raw/more.jsonl",
        "sha256": _sha256(tmp_path, memory.cat("/bucket/raw/more.jsonl")),
    }
    assert sorted(memory.ls("/bucket/out", detail=False)) == [
        "/bucket/out/train.parquet",
        "/bucket/out/train.parquet.manifest.json",
    ]
    assert json.loads(memory.cat("/bucket/out/train.parquet.manifest.json"))["sha256"] == manifest.sha256
    assert manifest.sha256 == _sha256(tmp_path, memory.cat("/bucket/out/train.parquet"))
    assert list(read_rows("memory://bucket/out/train.parquet")) == [*rows[:4], *rows[:4], *rows[4:]]
    # and the same files feed the loader
    config = DataConfig(train_batch_size=2, shuffle=False)
    loader = PromptLoader(
        ["memory://bucket/out/train.parquet", "memory://bucket/raw/more.jsonl"], chatml, config, training=True
    )
    assert [prompt.ground_truth for prompt in loader.all_prompts()] == [
        row["reward_model"]["ground_truth"] for row in [*rows[:4], *rows[:4], *rows[4:], *rows[4:]]
    ]


def _sha256(folder: Path, content: bytes) -> str:
    (folder / "content").write_bytes(content)
    return sha256(folder / "content")


def test_urls_that_cannot_be_read(tmp_path: Path, memory: Any) -> None:
    with pytest.raises(FileNotFoundError, match=r"memory://bucket/no.jsonl does not exist"):
        DataProcessor(keep).run("memory://bucket/no.jsonl", tmp_path / "x.parquet")
    with pytest.raises(FileNotFoundError, match=r"No file matches 'memory://bucket/\*.jsonl'"):
        DataProcessor(keep).run("memory://bucket/*.jsonl", tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"gopher://host/x.jsonl cannot be opened \(ValueError: .*extras of verl-data"):
        DataProcessor(keep).run("gopher://host/x.jsonl", tmp_path / "x.parquet")
    memory.pipe("/bucket/bad.jsonl", b'{"a": 1}\n{"a": \n')
    with pytest.raises(DataError, match=r"memory://bucket/bad.jsonl, line 2: it is not JSON"):
        DataProcessor(keep).run("memory://bucket/bad.jsonl", tmp_path / "x.parquet")
    memory.pipe("/bucket/bad.parquet", b"PAR1")
    with pytest.raises(DataError, match=r"memory://bucket/bad.parquet cannot be read as Parquet"):
        DataProcessor(keep).run("memory://bucket/bad.parquet", "memory://bucket/out.parquet")
    assert list(tmp_path.iterdir()) == []
    assert not memory.exists("/bucket/out.parquet")


def test_lines_that_are_no_rows_are_skipped_and_counted(tmp_path: Path) -> None:
    source = tmp_path / "raw.jsonl"
    source.write_bytes(b'{"a": 1}\n\n{"a": \n[1]\n{"a": "\xff"}\n{"a": 2}\n')
    with pytest.raises(DataError, match=r"raw.jsonl, line 3: it is not JSON"):
        DataProcessor(keep).run(source, tmp_path / "x.parquet")
    manifest = DataProcessor(keep, on_error="skip").run(source, tmp_path / "x.parquet")
    assert (manifest.rows_read, manifest.rows_written, manifest.rows_failed) == (5, 2, 3)
    assert [error.split(", ")[1].split(":")[0] for error in manifest.first_errors] == ["line 3", "line 4", "line 5"]
    assert [row["a"] for row in read_rows(tmp_path / "x.parquet")] == [1, 2]


def test_hugging_face_data_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    import datasets

    rows = [{"q": f"{i}?", "tags": [{"name": "中"}] * (i % 3), "n": i if i % 2 else None} for i in range(2500)]
    made = datasets.Dataset.from_list(rows)
    made.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict({"train": made, "test": made.select(range(3))}).save_to_disk(str(tmp_path / "splits"))
    hub = tmp_path / "hub"
    hub.mkdir()
    made.select(range(4)).to_parquet(str(hub / "train-00000-of-00001.parquet"))
    output = tmp_path / "out.parquet"
    sources: list[tuple[Any, int]] = [
        (made, 2500),
        (HfDataset(tmp_path / "saved"), 2500),
        (HfDataset(tmp_path / "splits", split="test"), 3),
        (HfDataset(str(tmp_path / "splits")), 2500),
    ]
    for source, count in sources:
        manifest = DataProcessor(lambda row, index: {**row, "index": index}).run(source, output)
        assert list(read_rows(output)) == [{**row, "index": index} for index, row in enumerate(rows[:count])]
        assert (manifest.rows_read, manifest.rows_written) == (count, count)
    with pytest.raises(DataError, match=r"splits, validation cannot be loaded in that folder \(KeyError"):
        DataProcessor(keep).run(HfDataset(tmp_path / "splits", split="validation"), output)


LOCAL_FOLDER = """
import sys
from verl_data import DataProcessor, HfDataset
print(DataProcessor(lambda row, index: row).run(HfDataset(sys.argv[1]), sys.argv[2]))
"""


def test_a_folder_as_the_hub_has_it_and_no_hub(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"q": ["a", "b"]}), tmp_path / "data/train-00000-of-00001.parquet")
    environment = {**os.environ, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    command = [sys.executable, "-c", LOCAL_FOLDER, str(tmp_path), str(tmp_path / "x.parquet")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "x.parquet: 2 rows read, 2 written, 0 dropped, 0 failed\n"
    command[3] = "openai/gsm8k"
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "The data set openai/gsm8k, train cannot be loaded on the Hugging Face hub" in done.stderr
    assert "without a network, download it elsewhere and name the folder instead" in done.stderr


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path) -> None:
    """Parquet does not check its text; we do."""
    text = pa.array([b"good", b"b\xffd", b"x"]).view(pa.binary())
    table = pa.table({"n": [1, 2, 3], "text": text.cast(pa.string(), safe=False)})
    pq.write_table(table, tmp_path / "raw.parquet")
    for processor in (DataProcessor(keep), DataProcessor(keep, on_error="skip")):
        with pytest.raises(DataError, match=r"raw.parquet, row 1: field text holds bytes that are not UTF-8"):
            processor.run(tmp_path / "raw.parquet", tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"row 1: its result: field v.t holds half of a surrogate pair \(U\+D83D"):
        DataProcessor(keep).run([{"v": {"t": "a"}}, {"v": {"t": "a\ud83d"}}], tmp_path / "x.parquet")


@pytest.mark.parametrize("show", [True, False])
def test_a_progress_bar(tmp_path: Path, capfd: pytest.CaptureFixture[str], show: bool) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n{"n": 0}\n')
    (tmp_path / "b.csv").write_text("n\n1\n")

    def half(row: Row, index: int) -> Row:
        return {"half": 1 / int(row["n"])}

    DataProcessor(half, on_error="skip").run(
        [tmp_path / "a.jsonl", tmp_path / "b.csv"], tmp_path / "x.parquet", progress=show
    )
    shown = capfd.readouterr().err
    assert ("x.parquet: 100%" in shown and "3 rows, 1 failed" in shown) if show else shown == ""
