"""The published calls: options, defaults, copies, and what is said where that is impossible."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from verl_data import read_rows

NAMES = (
    "gsm8k",
    "math_dataset",
    "hellaswag",
    "full_hh_rlhf",
    "gsm8k_multiturn_sft",
    "gsm8k_multiturn_w_tool",
    "gsm8k_tool_agent_loop",
    "dapo_multiturn_w_tool",
    "aime2024_multiturn_w_tool",
    "multiturn",
)
SCRIPTS = Path(__file__).parents[3] / "examples" / "data_preprocess"
ROWS = [{"question": "Tom has 2 apples and eats 1. How many are left?", "answer": "2-1=1\n#### 1"}] * 3


@pytest.fixture
def copy(tmp_path: Path) -> str:
    """A copy of GSM8K, which is small."""
    for split in ("train", "test"):
        file = tmp_path / "copy" / f"{split}.jsonl"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(tmp_path / "copy")


def main_of(name: str) -> Any:
    return importlib.import_module(f"verl_data.processors.{name}").main


def test_where_the_output_goes(
    tmp_path: Path, copy: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    main = main_of("gsm8k")
    read = ["--local_dataset_path", copy]
    assert main(read) == 0
    assert len(list(read_rows(tmp_path / "home" / "data" / "gsm8k" / "train.parquet"))) == 3
    assert capsys.readouterr().err == ""
    assert main([*read, "--local_save_dir", str(tmp_path / "new")]) == 0
    assert main([*read, "--local_dir", str(tmp_path / "old")]) == 0
    assert "--local_dir is now called --local_save_dir" in capsys.readouterr().err
    for folder in ("new", "old"):
        names = sorted(path.name for path in (tmp_path / folder).iterdir())
        assert [name for name in names if "manifest" not in name] == ["test.parquet", "train.parquet"]
    with pytest.raises(SystemExit) as stopped:
        main([*read, "--local_dir", "a", "--local_save_dir", "b"])
    assert stopped.value.code == 2
    assert "give one of them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("gsm8k", "~/data/gsm8k"),
        ("math_dataset", "~/data/math"),
        ("hellaswag", "~/data/hellaswag"),
        ("gsm8k_multiturn_sft", "~/data/gsm8k_sft"),
        ("gsm8k_multiturn_w_tool", "~/data/gsm8k"),
        ("gsm8k_tool_agent_loop", "~/data/gsm8k"),
        ("dapo_multiturn_w_tool", "~/data/retool_dapo"),
        ("aime2024_multiturn_w_tool", "~/data/retool_aime2024"),
        ("multiturn", "~/data/multiturn"),
    ],
)
def test_published_defaults(name: str, folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main_of(name)(["--help"])
    assert f"(default {folder})" in " ".join(capsys.readouterr().out.split())


def test_the_default_of_hh_rlhf_is_a_folder_per_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    row = {"prompt": "Q", "response": "A", "chosen": "A", "rejected": "B"}
    (tmp_path / "train.jsonl").write_text((json.dumps(row) + "\n") * 4)
    for stage in ("sft", "rm", "rl"):
        assert main_of("full_hh_rlhf")(["--split", stage, "--local_dataset_path", str(tmp_path)]) == 0
        assert (tmp_path / "home" / "data" / "full_hh_rlhf" / stage / "train.parquet").is_file()


def test_copies_go_to_any_file_system(tmp_path: Path, copy: str, capsys: pytest.CaptureFixture[str]) -> None:
    import fsspec

    main = main_of("gsm8k")
    made = ["--local_dataset_path", copy, "--local_save_dir", str(tmp_path / "out")]
    expected = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} if main(made) == 0 else {}
    assert set(expected) == {f"{split}.parquet{end}" for split in ("train", "test") for end in ("", ".manifest.json")}
    memory = fsspec.filesystem("memory")
    for _ in range(2):  # over what was there
        assert main([*made, "--hdfs_dir", "memory://bucket/gsm8k/"]) == 0
        assert main([*made, "--hdfs_dir", str(tmp_path / "plain")]) == 0
    assert {Path(name).name: memory.cat(name) for name in memory.ls("/bucket/gsm8k", detail=False)} == expected
    assert {path.name: path.read_bytes() for path in (tmp_path / "plain").iterdir()} == expected
    assert "copied to memory://bucket/gsm8k/" in capsys.readouterr().out
    assert main([*made, "--hdfs_dir", "nosuch://bucket"]) == 1
    assert "nosuch://bucket" in capsys.readouterr().err


def test_bad_rows(tmp_path: Path, copy: str, capsys: pytest.CaptureFixture[str]) -> None:
    (Path(copy) / "test.jsonl").write_text('{"question": "?", "answer": "5"}\n' + json.dumps(ROWS[0]) + "\n")
    call = ["--local_dataset_path", copy, "--local_save_dir", str(tmp_path / "out")]
    assert main_of("gsm8k")(call) == 1
    assert 'test.jsonl, row 0 (line 1): ValueError: the solution has no "#### "' in capsys.readouterr().err
    assert not (tmp_path / "out" / "test.parquet").exists()
    assert main_of("gsm8k")([*call, "--on_error", "skip"]) == 0
    assert "test.parquet: 2 rows read, 1 written, 0 dropped, 1 failed" in capsys.readouterr().out


def test_rows_without_a_tool(tmp_path: Path) -> None:
    row = {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": "?"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": "1", "style": "rule"},
        "extra_info": {"index": "a"},
    }
    (tmp_path / "train.jsonl").write_text(json.dumps(row))
    for name in ("dapo_multiturn_w_tool", "aime2024_multiturn_w_tool"):
        call = ["--local_dataset_path", str(tmp_path), "--local_save_dir", str(tmp_path / name)]
        assert main_of(name)([*call, "--no_tool"]) == 0
        assert list(read_rows(tmp_path / name / "train.parquet")) == [row]


@pytest.mark.parametrize(
    ("name", "repository", "split"),
    [("gsm8k", "openai/gsm8k", "train"), ("dapo_multiturn_w_tool", "BytedTsinghua-SIA/DAPO-Math-17k", "train")],
)
def test_offline_says_what_to_do(name: str, repository: str, split: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"verl_data.processors.{name}", "--local_save_dir", "out"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")},
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"{name}.py: The data set {repository}")
    assert "Traceback" not in done.stderr
    assert f"--local_dataset_path FOLDER (dataset_path=FOLDER in Python), with {split}.parquet" in done.stderr
    assert not list(tmp_path.glob("out/*"))


@pytest.mark.skipif(not SCRIPTS.is_dir(), reason="the examples are not beside this package")
def test_the_published_scripts(tmp_path: Path, copy: str) -> None:
    assert {path.stem for path in SCRIPTS.glob("*.py")} == set(NAMES)
    call = [sys.executable, str(SCRIPTS / "gsm8k.py"), "--local_dataset_path", copy]
    done = subprocess.run([*call, "--local_dir", str(tmp_path / "out")], capture_output=True, text=True, check=True)
    assert "train.parquet: 3 rows read, 3 written" in done.stdout
    done = subprocess.run([*call, "--local_save_dir", "/dev/null/out"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("gsm8k.py: ")


@pytest.mark.skipif(not SCRIPTS.is_dir(), reason="the examples are not beside this package")
@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_its_processor(name: str) -> None:
    script = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")
    assert f"from verl_data.processors.{name} import main\n" in script
    assert script.endswith('if __name__ == "__main__":\n    sys.exit(main())\n')
