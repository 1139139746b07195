"""What a loader serves whatever becomes of its files, and which states it goes on from."""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from verl_data.config import DataConfig
from verl_data.errors import DataError
from verl_data.loader import PromptLoader
from verl_data.row_writer import write_rows

Rows = list[dict[str, Any]]
MakeRows = Callable[[int], Rows]


def jsonl(path: Path, rows: Rows) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def load(path: Path, tokenizer: Any, **config: Any) -> PromptLoader:
    return PromptLoader(path, tokenizer, DataConfig(**{"train_batch_size": 4, **config}), training=True)


# What was opened is what is served


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("becomes", ["other rows of the same size", "nothing", "another file"])
def test_a_file_that_changes_while_it_is_open(
    chatml: Any, make_rows: MakeRows, tmp_path: Path, suffix: str, becomes: str
) -> None:
    def write(path: Path, rows: Rows) -> None:
        if suffix == ".jsonl":
            jsonl(path, rows)
        else:
            write_rows(rows, path)

    write(tmp_path / f"kept{suffix}", make_rows(20))
    path = tmp_path / f"a{suffix}"
    write(path, make_rows(20))
    loader, expected = load(path, chatml), load(tmp_path / f"kept{suffix}", chatml)
    batches, others = loader.batches(), expected.batches()
    assert next(batches) == next(others)
    if becomes == "nothing":
        path.unlink()
    elif becomes == "another file":
        path.write_bytes(b"[" * 100)
    else:
        write(path, [{**row, "prompt": [{"role": "user", "content": "9+9="}]} for row in make_rows(20)])
    assert [next(batches) for _ in range(6)] == [next(others) for _ in range(6)]
    assert (
        loader.state_dict()["fingerprint"]["files"][0]["sha256"]
        == (expected.state_dict()["fingerprint"]["files"][0]["sha256"])
    )
    expected.load_state_dict(loader.state_dict())


def test_lines_are_numbered_with_blank_ones_and_marks(chatml: Any, make_rows: MakeRows, tmp_path: Path) -> None:
    lines = [json.dumps(row).encode() for row in make_rows(4)]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + lines[0] + b"\r\n\n  \n" + lines[1] + b"\n\xef\xbb\xbf\n" + lines[2] + b"\n{")
    with pytest.raises(DataError, match=r"a\.jsonl, line 7: it is not JSON"):
        load(path, chatml)
    path.write_bytes(path.read_bytes()[:-1] + lines[3])  # no new line at the end
    assert [prompt.ground_truth for prompt in load(path, chatml).all_prompts()] == ["0", "2", "4", "6"]


@pytest.mark.parametrize(
    ("extra", "where"),
    [
        ({"extra_info": {"note": "a\ud83d"}}, r"field extra_info\.note holds half of a surrogate pair"),
        ({"extra_info": {"\ud83d": 1}}, r"field extra_info \(a key\) holds half of a surrogate pair"),
        ({"other": ["\ude00"]}, r"field other\[0\] holds half of a surrogate pair"),
        ({"x\ud83d": 1}, r"the name of the column x\\ud83d holds half of a surrogate pair"),
    ],
)
def test_half_of_a_surrogate_pair_in_any_column_of_jsonl(
    chatml: Any, make_rows: MakeRows, tmp_path: Path, extra: dict[str, Any], where: str
) -> None:
    rows = make_rows(5)
    rows[2]["extra_info"]["face"] = "\U0001f600"  # a whole pair
    path = jsonl(tmp_path / "a.jsonl", rows)
    assert "ud83d" in path.read_text().lower() and len(load(path, chatml)) == 5
    rows[3] = {**rows[3], **extra}
    with pytest.raises(DataError, match=rf"a\.jsonl, row 3 \(line 4\): {where}") as error:
        load(jsonl(path, rows), chatml)
    str(error.value).encode()  # it can be printed


def test_a_map_with_a_key_twice_names_the_row(chatml: Any, make_rows: MakeRows, tmp_path: Path) -> None:
    table = pa.Table.from_pylist([{k: v for k, v in row.items() if k != "extra_info"} for row in make_rows(4)])
    maps = pa.array([[("a", 1)], [], [("a", 1), ("a", 2)], None], pa.map_(pa.string(), pa.int64()))
    pq.write_table(table.append_column("extra_info", maps), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet, row 2: .*key"):
        load(tmp_path / "a.parquet", chatml)


# States


@pytest.fixture
def path(make_rows: MakeRows, tmp_path: Path) -> Path:
    other = [{"role": "user", "content": "other"}]
    rows = [{**row, "other": other, "source": "b", "text": "<|im_start|>"} for row in make_rows(8)]
    return jsonl(tmp_path / "a.jsonl", rows)


@pytest.mark.parametrize(
    ("given", "changed", "message"),
    [
        ({}, {"prompt_key": "other"}, r"data\.prompt_key prompt became other"),
        ({}, {"reward_fn_key": "source"}, r"data\.reward_fn_key data_source became source"),
        (
            {"prompt_key": "other"},
            {"prompt_key": "text", "prompt_format": "rendered"},
            r"data\.prompt_key other became text; data\.prompt_format messages became rendered\.",
        ),
        ({}, {"truncation": "left"}, r"data\.truncation None became left; data\.max_prompt_length None became 512"),
        ({"truncation": "left"}, {"truncation": "right"}, r"data\.truncation left became right"),
        ({"truncation": "left"}, {"max_prompt_length": 9}, r"data\.max_prompt_length 512 became 9\."),
        ({"truncation": "left"}, {"filter_overlong_prompts": True}, r"data\.truncation left became None"),
        (
            {"apply_chat_template_kwargs": {"a": 1}},
            {"apply_chat_template_kwargs": {"a": 2}},
            r'data\.apply_chat_template_kwargs {"a": 1} became {"a": 2}',
        ),
    ],
)
def test_other_prompts_at_a_resume(
    path: Path, chatml: Any, given: dict[str, Any], changed: dict[str, Any], message: str
) -> None:
    state = json.loads(json.dumps(load(path, chatml, **given).state_dict()))
    load(path, chatml, **given).load_state_dict(state)
    with pytest.raises(DataError, match=rf"cannot go on with other data than it began with: {message}"):
        load(path, chatml, **{**given, **changed}).load_state_dict(state)


def test_what_leaves_the_prompts_as_they_are_may_change(path: Path, chatml: Any) -> None:
    state = load(path, chatml, apply_chat_template_kwargs={"a": 1, "b": (2,)}).state_dict()
    kwargs = {"b": [2], "a": 1}
    load(path, chatml, apply_chat_template_kwargs=kwargs, max_prompt_length=600).load_state_dict(state)  # none is cut
    load(path, chatml, apply_chat_template_kwargs=kwargs, filter_overlong_prompts=True).load_state_dict(state)
    load(path, chatml, apply_chat_template_kwargs=kwargs, max_response_length=9).load_state_dict(state)


def test_another_chat_template_at_a_resume(
    path: Path, make_bos_tokenizer: Callable[[str | None], Any], tmp_path: Path
) -> None:
    state = load(path, make_bos_tokenizer("hi")).state_dict()
    load(path, make_bos_tokenizer("hi")).load_state_dict(state)
    with pytest.raises(DataError, match="the tokenizer has another chat template"):
        load(path, make_bos_tokenizer("hi there")).load_state_dict(state)
    texts: dict[str, Any] = {"prompt_key": "text", "prompt_format": "rendered"}
    state = load(path, make_bos_tokenizer("hi"), **texts).state_dict()
    load(path, make_bos_tokenizer(None), **texts).load_state_dict(state)  # which are not made with it


def test_states_of_earlier_versions_load(path: Path, chatml: Any) -> None:
    first = load(path, chatml)
    batches = first.batches()
    next(batches)
    state = first.state_dict()
    old = ("files", "rows", "rows sha256", "batch size", "shuffle", "seed", "drop last", "weights", "entries")
    state["fingerprint"] = {name: state["fingerprint"][name] for name in old}
    second = load(path, chatml)
    second.load_state_dict(state)
    assert list(islice(second.batches(), 3)) == list(islice(batches, 3))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: {}, "no state of a PromptLoader: it lacks epoch, position, truncated, fingerprint"),
        (lambda state: None, "no state of a PromptLoader: it is a NoneType"),
        (lambda state: {**state, "fingerprint": {}}, "no state of a PromptLoader: its fingerprint names no data"),
        (lambda state: {**state, "fingerprint": 5}, "its fingerprint names no data"),
        (lambda state: {**state, "position": 99}, "position is 99, but an epoch has 2 batches"),
        (lambda state: {**state, "position": 2}, "position is 2, but an epoch has 2 batches"),
        (lambda state: {**state, "position": -1}, "position is -1, not a number from 0"),
        (lambda state: {**state, "epoch": "0"}, "epoch is '0', not a number from 0"),
        (lambda state: {**state, "epoch": True}, "epoch is True"),
        (lambda state: {**state, "truncated": None}, "truncated is None"),
    ],
)
def test_what_is_no_state_is_refused_and_changes_nothing(
    path: Path, chatml: Any, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    loader = load(path, chatml)
    with pytest.raises(DataError, match=message):
        loader.load_state_dict(change(loader.state_dict()))
    assert (loader.state_dict()["epoch"], loader.state_dict()["position"]) == (0, 0)


# Exact order


@pytest.mark.parametrize(
    "keys",
    [
        [2**60 + 7 - i for i in range(8)],
        [10**400, -(10**400), 0, 1.5, 10**399, 2, True, -0.5],
        [2**53 + 1, 2.0**53, 2**53 - 1, 1e308, float("inf"), -float("inf"), 5e-324, 0],
    ],
)
def test_keys_are_compared_exactly(chatml: Any, make_rows: MakeRows, tmp_path: Path, keys: list[Any]) -> None:
    rows = [{**row, "level": key} for row, key in zip(make_rows(8), keys, strict=True)]
    loader = load(jsonl(tmp_path / "a.jsonl", rows), chatml, order_by="level")
    served = [prompt.row for _, prompts in loader.batches(1) for prompt in prompts]
    assert served == sorted(range(8), key=keys.__getitem__)
    load(tmp_path / "a.jsonl", chatml, order_by="level").load_state_dict(json.loads(json.dumps(loader.state_dict())))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("numpy.float32('nan')", "a number is expected, by which rows are ordered, not float nan"),
        ("decimal.Decimal(1)", "not Decimal"),
        ("1j", "not complex"),
        ("sys.exit(3)", "raised SystemExit: 3"),
    ],
)
def test_functions_that_give_no_number(path: Path, chatml: Any, body: str, message: str) -> None:
    own = path.with_name("own.py")
    own.write_text(f"import decimal, sys\nimport numpy\n\ndef level(row):\n    return {body}\n")
    with pytest.raises(DataError, match=rf"row 0 \(line 1\): .*{message}"):
        load(path, chatml, order_by=f"{own}:level")


@pytest.mark.parametrize("body", ["numpy.int64(7 - {i})", "numpy.float32(-{i})", "fractions.Fraction(1, 1 + {i})"])
def test_numbers_of_other_libraries(path: Path, chatml: Any, body: str) -> None:
    own = path.with_name("own.py")
    index = body.format(i="row['extra_info']['index']")
    own.write_text(f"import fractions\nimport numpy\n\ndef level(row):\n    return {index}\n")
    loader = load(path, chatml, order_by=f"{own}:level")
    assert [prompt.row for _, prompts in loader.batches(1) for prompt in prompts] == [7, 6, 5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_column_that_is_missing_is_told_with_those_that_are_there(
    chatml: Any, make_rows: MakeRows, tmp_path: Path, suffix: str
) -> None:
    write_rows(make_rows(8), tmp_path / "a.parquet")
    jsonl(tmp_path / "a.jsonl", make_rows(8))
    for order_by in ("level", "level.of.it"):
        with pytest.raises(DataError, match=r"row 0.*there is no level here; there is data_source, prompt, ability, "):
            load(tmp_path / f"a{suffix}", chatml, order_by=order_by)
