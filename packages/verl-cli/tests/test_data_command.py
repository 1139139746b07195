"""`verl-cli data check` and `data show`: what they print, and how they end."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner
from verl_cli.commands.data import SchemaName
from verl_cli.main import app
from verl_data import read_rows, write_rows
from verl_data.schema import SCHEMAS

CHATML = (
    "{% for message in messages %}{% if message['role'] == 'alien' %}{{ raise_exception('no aliens') }}{% endif %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["data", *map(str, arguments)], catch_exceptions=False)


def program(*arguments: object, expression: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, and an expression in it at the end."""
    code = f"import sys\nfrom verl_cli.main import app\ntry: app(sys.argv[1:])\nfinally: {expression or 'pass'}"
    command = [sys.executable, "-c", code, "data", *map(str, arguments)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a character tokenizer with a ChatML template."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = ["<unk>", "<|im_start|>", "<|im_end|>", "\n", *map(chr, range(32, 127))]
    inner = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    fast: Any = PreTrainedTokenizerFast  # its constructor is not typed
    folder = tmp_path_factory.mktemp("tokenizer")
    fast(tokenizer_object=inner, eos_token="<|im_end|>", chat_template=CHATML).save_pretrained(folder)
    return folder


@pytest.fixture
def sft(tmp_path: Path) -> Path:
    rows = [{"messages": [{"role": "user", "content": "q"}, {"role": role, "content": "a"}]} for role in ("assistant",)]
    path = tmp_path / "sft.parquet"
    write_rows(rows, path)
    return path


def test_the_schemas_are_those_of_verl_data() -> None:
    assert get_args(SchemaName) == tuple(SCHEMAS)


@pytest.mark.alone
def test_sound_files(assets: Path, sft: Path) -> None:
    result = invoke("check", assets / "train.parquet", sft)
    assert result.exit_code == 0, result.output
    assert "train.parquet: 20 rl rows (recognised from its columns)" in result.stdout
    assert "sft.parquet: 1 sft rows" in result.stdout and "no problems" in result.stdout


def test_problems_end_with_exit_code_1(assets: Path, tmp_path: Path) -> None:
    rows = list(read_rows(assets / "train.parquet"))
    rows[3]["prompt"] = "1+1="
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{\n")
    done = program("check", path, "--json", expression="assert 'torch' not in sys.modules")
    assert (done.returncode, done.stderr) == (1, "")
    report = json.loads(done.stdout)
    assert (report["ok"], report["rows"], report["problem_count"]) == (False, 21, 2)
    assert [problem["places"] for problem in report["problems"]] == [
        [f"{path}, row 3 (line 4)"],
        [f"{path}, row 20 (line 21)"],
    ]
    result = invoke("check", path, tmp_path / "none.parquet")
    assert result.exit_code == 1 and "none.parquet does not exist" in result.stdout
    assert "3 problems:" in result.stdout and "field prompt: a list of messages is expected, not text" in result.stdout


def test_keys_stand_among_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "year=2026"
    row = {"question": "hi", "origin": "a", "reward_model": {"style": "rule", "ground_truth": "1"}}
    write_rows([row], folder / "a.parquet")
    keys = ("data.prompt_key=question", "data.reward_fn_key=origin", "data.prompt_format=rendered")
    result = invoke("check", keys[0], folder / "*.parquet", *keys[1:])
    assert result.exit_code == 0, result.output
    assert "data sources: a 1" in result.stdout
    result = invoke("show", folder / "a.parquet", *keys)
    assert "question:\n    hi" in result.stdout and "origin: 'a'" in result.stdout


def test_keys_that_mean_nothing_here(assets: Path) -> None:
    train = assets / "train.parquet"
    keys = ("data.promt_key=a", "data.train_batch_size=8", "data.truncation=up", "actor_rollout_ref.rollout.n=2")
    for command in ("check", "show"):
        result = invoke(command, train, *keys)
        assert result.exit_code == 1
        for words in ("The nearest is data.prompt_key", "data.train_batch_size=8 has no effect", "rollout.n=2 has no"):
            assert words in result.stderr
        assert "data.truncation" in result.stderr and "must be one of" in result.stderr
    result = invoke("check", train, "data.max_prompt_length=0")
    assert result.exit_code == 1 and "data.max_prompt_length must be at least 1" in result.stderr
    result = invoke("check", "data.prompt_key=a")
    assert result.exit_code == 1 and "No file was named" in result.stderr


def test_the_schema_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"chosen": "Paris ", "rejected": "London"}))
    assert invoke("check", path).exit_code == 1
    assert invoke("check", path, "--schema", "reward").exit_code == 0
    assert invoke("check", path, "--schema", "dpo").exit_code == 2


def test_prompts_are_measured_and_refusals_told_without_torch(tokenizer: Path, assets: Path, tmp_path: Path) -> None:
    rows = list(read_rows(assets / "train.parquet"))
    rows[1]["prompt"][0]["role"] = "alien"
    rows[2]["prompt"][0]["content"] = "1" * 100
    path = tmp_path / "a.parquet"
    write_rows(rows, path)
    arguments = ("check", path, "--tokenizer", tokenizer, "data.max_prompt_length=90")
    done = program(*arguments, expression="assert sys.modules.get('torch') is None and 'transformers' in sys.modules")
    assert (done.returncode, done.stderr) == (1, "")
    assert "tokens of 19 rendered rows" in done.stdout and "1 over data.max_prompt_length=90" in done.stdout
    assert "refuses these messages: no aliens" in done.stdout and f"{path}, row 1\n" in done.stdout
    assert "but data.max_prompt_length is 90. Raise" in done.stdout and f"{path}, row 2\n" in done.stdout


@pytest.mark.alone
def test_rows_as_the_model_is_given_them(tokenizer: Path, sft: Path, assets: Path) -> None:
    done = program("show", sft, "--model", tokenizer, expression="assert sys.modules.get('torch') is None")
    assert (done.returncode, done.stderr) == (0, "")
    assert "<|im_start|>user\n    q<|im_end|>" in done.stdout and "⟦a<|im_end|>⟧" in done.stdout
    assert "Between ⟦ and ⟧ stands what is trained." in done.stdout
    result = invoke("show", assets / "train.parquet", "--tokenizer", tokenizer, "-n", 2)
    assert result.exit_code == 0 and result.stdout.count("tokens:") == 2
    assert "<|im_start|>assistant" in result.stdout and "ground_truth" in result.stdout
    assert "Between" not in result.stdout
    result = invoke("show", assets / "train.parquet", "--row", 4)
    assert "row 4 (rl)" in result.stdout and result.stdout.count("(rl)") == 1
    result = invoke("show", assets / "train.parquet", "--row", 99)
    assert result.exit_code == 1 and "there is no row 99" in result.stderr


def test_tokenizers_that_cannot_be_loaded(assets: Path, tmp_path: Path) -> None:
    train = assets / "train.parquet"
    for command in ("check", "show"):
        result = invoke(command, train, "--tokenizer", tmp_path / "none")
        assert result.exit_code == 1 and "Set --tokenizer to a Hugging Face folder" in result.stderr
        result = invoke(command, train, "--tokenizer", tmp_path)
        assert result.exit_code == 1 and "There is no tokenizer in" in result.stderr


def test_help_is_instant() -> None:
    for command in ("check", "show"):
        heavy = "{'torch', 'transformers', 'hydra', 'pyarrow', 'verl_data'}"
        done = program(command, "--help", expression=f"assert not {heavy} & set(sys.modules)")
        assert done.returncode == 0, done.stderr
        assert "--tokenizer" in done.stdout
