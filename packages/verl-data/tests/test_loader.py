import datetime
import json
from collections.abc import Callable
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from verl_data import DataConfig, DataError, Prompt, PromptLoader, require_known_data_sources, write_rows

Rows = list[dict[str, Any]]
MakeRows = Callable[[int], Rows]


@pytest.fixture(params=["parquet", "jsonl"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Path]:
    """Write rows as Parquet and as JSONL: both must behave the same."""

    def _write(rows: Rows, name: str = "train") -> Path:
        path = tmp_path / f"{name}.{request.param}"
        if request.param == "parquet":
            write_rows(rows, path)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    return _write


def load(files: Any, tokenizer: Any, *, training: bool = True, **config: Any) -> PromptLoader:
    return PromptLoader(files, tokenizer, DataConfig(**{"train_batch_size": 4, **config}), training=training)


def rows_of(batches: list[tuple[int, list[Prompt]]]) -> list[tuple[int, list[int]]]:
    return [(epoch, [prompt.row for prompt in prompts]) for epoch, prompts in batches]


def test_a_prompt_holds_its_row(write: Callable[..., Path], chatml: Any, make_rows: MakeRows) -> None:
    loader = load(write(make_rows(3)), chatml, training=False)
    prompt = loader.all_prompts()[2]
    text = "<|im_start|>user\n2+2=<|im_end|>\n<|im_start|>assistant\n"
    assert prompt == Prompt(
        row=2,
        group=2,
        prompt_ids=chatml.encode(text, add_special_tokens=False),
        messages=[{"role": "user", "content": "2+2="}],
        data_source="verl/arithmetic",
        ground_truth="4",
        extra_info={"split": "train", "index": 2},
        fields={"ability": "math", "reward_model": {"style": "rule", "ground_truth": "4"}},
        truncated=False,
    )


def test_an_epoch_has_every_row_once_in_its_own_order(
    write: Callable[..., Path], chatml: Any, make_rows: MakeRows
) -> None:
    path = write(make_rows(11))
    loader = load(path, chatml)
    assert (len(loader), loader.steps_per_epoch) == (11, 2)
    batches = rows_of(list(loader.batches(3)))
    assert [epoch for epoch, _ in batches] == [0, 0, 1, 1, 2, 2]
    epochs = [batches[i][1] + batches[i + 1][1] for i in (0, 2, 4)]
    assert all(len(set(rows)) == 8 for rows in epochs)  # 3 rows fill no batch
    assert epochs[0] != epochs[1] != epochs[2]
    assert rows_of(list(load(path, chatml, seed=1).batches(3))) == batches  # null means 1
    assert rows_of(list(load(path, chatml, seed=2).batches(3))) != batches
    assert rows_of(list(load(path, chatml, shuffle=False).batches(1))) == [(0, [0, 1, 2, 3]), (0, [4, 5, 6, 7])]
    assert len(list(islice(load(path, chatml).batches(), 100))) == 100  # for ever


def test_the_order_never_changes_between_releases(write: Callable[..., Path], chatml: Any, make_rows: MakeRows) -> None:
    loader = load(write(make_rows(8)), chatml)
    assert rows_of(list(loader.batches(2))) == [
        (0, [5, 6, 3, 2]),
        (0, [1, 0, 4, 7]),
        (1, [5, 1, 3, 4]),
        (1, [6, 2, 7, 0]),
    ]


def test_validation_takes_every_row_in_file_order(write: Callable[..., Path], chatml: Any, make_rows: MakeRows) -> None:
    files = [write(make_rows(3), "a"), write(make_rows(2), "b")]
    loader = load(files, chatml, training=False)
    assert [prompt.row for prompt in loader.all_prompts()] == [0, 1, 2, 3, 4]
    assert [prompt.ground_truth for prompt in loader.all_prompts()] == ["0", "2", "4", "0", "2"]
    assert rows_of(list(loader.batches(1))) == [(0, [0, 1, 2, 3]), (0, [4])]
    assert loader.steps_per_epoch == 2


def test_three_resumes_give_the_uninterrupted_run(write: Callable[..., Path], chatml: Any, make_rows: MakeRows) -> None:
    path = write(make_rows(13))
    whole = rows_of(list(load(path, chatml).batches(4)))
    resumed: list[tuple[int, list[int]]] = []
    state: dict[str, Any] | None = None
    for steps in (2, 3, 1, 99):
        loader = load(path, chatml)
        if state is not None:
            loader.load_state_dict(state)
        resumed += rows_of(list(islice(loader.batches(4), steps)))
        state = json.loads(json.dumps(loader.state_dict()))
    assert resumed == whole


def test_resume_at_an_epoch_boundary(write: Callable[..., Path], chatml: Any, make_rows: MakeRows) -> None:
    """Bug bank A12."""
    path = write(make_rows(8))
    whole = rows_of(list(load(path, chatml).batches(2)))
    first = load(path, chatml)
    taken = list(islice(first.batches(2), 2))
    state = first.state_dict()
    assert (state["epoch"], state["position"]) == (1, 0)
    second = load(path, chatml)
    second.load_state_dict(state)
    rest = rows_of(list(second.batches(2)))
    assert len(rest) == 2
    assert rows_of(taken) + rest == whole
    assert list(second.batches(2)) == []  # nothing left


def test_resume_with_other_data_says_what_changed(write: Callable[..., Path], chatml: Any, make_rows: MakeRows) -> None:
    path = write(make_rows(8))
    state = load(path, chatml).state_dict()
    moved = path.rename(path.with_name(f"moved{path.suffix}"))
    load(moved, chatml).load_state_dict(state)  # the same content elsewhere is the same data
    with pytest.raises(DataError, match="batch size 4 became 2; seed 1 became 7"):
        load(moved, chatml, train_batch_size=2, seed=7).load_state_dict(state)
    with pytest.raises(DataError, match="rows in use, 8 before and 6 now"):
        load(moved, chatml, train_max_samples=6).load_state_dict(state)
    changed = make_rows(8)
    changed[3]["reward_model"]["ground_truth"] = "7"
    with pytest.raises(DataError, match=r"train\.\w+: its content changed"):
        load(write(changed), chatml).load_state_dict(state)
    with pytest.raises(DataError, match=r"8 rows became 9"):
        load(write(make_rows(9)), chatml).load_state_dict(state)
    with pytest.raises(DataError, match=r"1 files \(train\.\w+\) became 2"):
        load([moved, moved], chatml).load_state_dict(state)


def test_too_few_rows(write: Callable[..., Path], chatml: Any, make_rows: MakeRows, tmp_path: Path) -> None:
    """Bug bank A15."""
    with pytest.raises(ValueError, match="3 rows < batch 8"):
        load(write(make_rows(3)), chatml, train_batch_size=8)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(ValueError, match=r"empty\.jsonl: 0 rows"):
        load(tmp_path / "empty.jsonl", chatml, training=False)
    pq.write_table(pa.table({"prompt": pa.array([], pa.string())}), tmp_path / "empty.parquet")
    with pytest.raises(ValueError, match=r"empty\.parquet: 0 rows"):
        load(tmp_path / "empty.parquet", chatml)
    with pytest.raises(ValueError, match=r"0 rows \(3 prompts over data.max_prompt_length=5 were dropped\)"):
        load(write(make_rows(3)), chatml, max_prompt_length=5, filter_overlong_prompts=True)


def test_overlong_prompts_are_truncated_once_and_counted(
    write: Callable[..., Path], chatml: Any, make_rows: MakeRows
) -> None:
    """Bug bank A10: there is one copy of the prompt."""
    rows = make_rows(4)
    rows[2]["prompt"][0]["content"] = "x" * 50
    path = write(rows)
    full = load(path, chatml, training=False).all_prompts()[2].prompt_ids
    expected = {"left": full[-40:], "right": full[:40], "middle": full[:20] + full[-20:]}
    for mode, ids in expected.items():
        loader = load(path, chatml, truncation=mode, max_prompt_length=40)
        (_, prompts), (_, again) = loader.batches(2)
        cut = next(prompt for prompt in prompts if prompt.row == 2)
        assert (cut.prompt_ids, cut.truncated) == (ids, True)
        assert sum(prompt.truncated for prompt in again) == 1
        assert loader.truncated == 2
        resumed = load(path, chatml, truncation=mode, max_prompt_length=40)
        resumed.load_state_dict(loader.state_dict())
        assert resumed.truncated == 2
    with pytest.raises(DataError, match=rf"row 2.*has {len(full)} tokens, but data.max_prompt_length is 40"):
        load(path, chatml, max_prompt_length=40)
    loader = load(path, chatml, max_prompt_length=40, filter_overlong_prompts=True, train_batch_size=3)
    assert (loader.filtered, len(loader), loader.truncated) == (1, 3, 0)  # before any batch
    assert sorted(rows_of(list(loader.batches(1)))[0][1]) == [0, 1, 3]


@pytest.mark.parametrize("training", [True, False])
def test_overlong_prompts_are_refused_before_the_run(
    write: Callable[..., Path], chatml: Any, make_rows: MakeRows, training: bool
) -> None:
    rows = make_rows(4)
    for row, length in ((1, 50), (2, 70)):
        rows[row]["prompt"][0]["content"] = "x" * length
    files = [write(make_rows(3), "a"), write(rows, "b")]
    with pytest.raises(DataError) as error:
        load(files, chatml, training=training, max_prompt_length=60)
    fixed = len(chatml.encode("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False))
    said = str(error.value)
    assert f"{files[1]}, row 1" in said
    assert (
        f": the prompt has {50 + fixed} tokens, but data.max_prompt_length is 60. It is the first of 2 such prompts "
        f"among 7; the longest has {70 + fixed}. Raise data.max_prompt_length, set data.filter_overlong_prompts=true "
        "to drop such prompts, or data.truncation to left, right or middle to cut them."
    ) in said
    samples: dict[str, Any] = {"train_max_samples": 4, "val_max_samples": 4, "shuffle": False}
    loader = load(files, chatml, training=training, max_prompt_length=60, **samples)  # row 1 of b is not in use
    assert (len(loader), loader.filtered) == (4, 0)


def test_the_filter_measures_tools_too(
    write: Callable[..., Path], make_bos_tokenizer: Callable[[str | None], Any], make_rows: MakeRows
) -> None:
    """Bug bank A09: 6 tokens of messages and 5 of tools are 11, over a limit of 8."""
    template = "{{ messages[0]['content'] }}{% for tool in tools or [] %} tool tool tool tool tool{% endfor %}"
    rows = make_rows(2)
    for row, tools in zip(rows, ([], [{"type": "function", "function": {"name": "f"}}]), strict=True):
        row["prompt"][0]["content"] = "a b c a b c"
        row["tools"] = tools
    tokenizer = make_bos_tokenizer(template)
    path = write(rows)
    settings: dict[str, Any] = {"max_prompt_length": 8, "train_batch_size": 1}
    loader = load(path, tokenizer, filter_overlong_prompts=True, **settings)
    assert (loader.filtered, [prompt.row for prompt in loader.all_prompts()]) == (1, [0])
    with pytest.raises(DataError, match=r"row 1.*has 11 tokens, but data.max_prompt_length is 8"):
        load(path, tokenizer, **settings)


def test_sample_limits(write: Callable[..., Path], chatml: Any, make_rows: MakeRows) -> None:
    path = write(make_rows(40))
    chosen = [prompt.row for prompt in load(path, chatml, train_max_samples=6).all_prompts()]
    assert len(set(chosen)) == 6 and chosen == sorted(chosen) and chosen != [0, 1, 2, 3, 4, 5]
    assert chosen != [prompt.row for prompt in load(path, chatml, train_max_samples=6, seed=5).all_prompts()]
    head = load(path, chatml, train_max_samples=6, shuffle=False)
    assert [prompt.row for prompt in head.all_prompts()] == [0, 1, 2, 3, 4, 5]
    assert len(load(path, chatml, training=False, val_max_samples=3, train_max_samples=5)) == 3
    assert len(load(path, chatml, train_max_samples=99)) == 40


def test_other_column_names_and_template_switches(
    write: Callable[..., Path], make_bos_tokenizer: Callable[[str | None], Any], make_rows: MakeRows
) -> None:
    rows = [
        {"question": row["prompt"], "origin": "mine", "reward_model": row["reward_model"], "level": 3}
        for row in make_rows(1)
    ]
    tokenizer = make_bos_tokenizer("hi{% if enable_thinking %} there{% endif %}")
    keys: dict[str, Any] = {"prompt_key": "question", "reward_fn_key": "origin", "train_batch_size": 1}
    loader = load(write(rows), tokenizer, apply_chat_template_kwargs={"enable_thinking": True}, **keys)
    (prompt,) = loader.all_prompts()
    assert (prompt.prompt_ids, prompt.data_source, prompt.extra_info) == ([5, 6], "mine", {})
    assert prompt.fields["level"] == 3


def test_rendered_prompts_are_used_as_they_are(
    write: Callable[..., Path], make_bos_tokenizer: Callable[[str | None], Any], make_rows: MakeRows
) -> None:
    rows = [{**row, "prompt": "<s>hi there"} for row in make_rows(1)]
    tokenizer = make_bos_tokenizer(None)
    (prompt,) = load(write(rows), tokenizer, prompt_format="rendered", train_batch_size=1).all_prompts()
    assert (prompt.prompt_ids, prompt.messages) == ([1, 5, 6], "<s>hi there")
    with pytest.raises(DataError, match=r"row 0.*field prompt: a list of messages.*prompt_format=rendered"):
        load(write(rows), tokenizer)
    with pytest.raises(DataError, match=r"finished text is expected because data\.prompt_format is rendered, not list"):
        load(write(make_rows(1)), tokenizer, prompt_format="rendered")


def test_missing_and_unknown_reward_columns(write: Callable[..., Path], chatml: Any, make_rows: MakeRows) -> None:
    """Bug bank A16."""
    path = write([{"question": "1+1?", "answer": "2"}])
    with pytest.raises(
        ValueError, match=rf"{path.name}, row 0.*lacks data_source, prompt, reward_model; it has question"
    ):
        load(path, chatml)
    with pytest.raises(
        DataError, match=r"If such a column has another name, set data\.reward_fn_key and data\.prompt_key"
    ):
        load(path, chatml)
    rows = make_rows(1)
    del rows[0]["reward_model"]
    with pytest.raises(
        DataError, match=r"lacks reward_model; it has .*\. reward_model, under this very name, is a"
    ) as e:
        load(write(rows), chatml)
    assert "_key" not in str(e.value)  # no key gives it another name
    rows = make_rows(4)
    rows[2]["data_source"] = "/home/data/gsm8k"
    loader = load(write(rows), chatml)
    known = ["openai/gsm8k", "verl/arithmetic"]
    with pytest.raises(
        ValueError, match=r"row 2.*'/home/data/gsm8k'. Known are openai/gsm8k, verl/arithmetic. Register it so."
    ):
        require_known_data_sources(loader.data_sources, known, "Register it so.")
    require_known_data_sources(loader.data_sources, [*known, "/home/data/gsm8k"], "")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("prompt", [], "field prompt: a list of messages is expected, not an empty list"),
        ("prompt", None, "field prompt: a list of messages is expected, not nothing"),
        ("prompt", ["hi"], r"field prompt\[0\]: a message"),
        ("prompt", [{"content": "hi"}], r"field prompt\[0\].role: text is expected, not nothing"),
        ("prompt", [{"role": "user", "content": 5}], r"field prompt\[0\].content: text is expected, not int 5"),
        ("data_source", 7, "field data_source: text is expected, not int 7"),
        ("data_source", "", "field data_source: text is expected, not an empty text"),
        ("reward_model", "rule", "field reward_model: a dict with style and ground_truth is expected, not str 'rule'"),
        ("reward_model", {"style": "rule"}, "field reward_model: it lacks ground_truth; it has style"),
        ("reward_model", {"style": "rule", "ground_truth": None}, "field reward_model.ground_truth: it is empty"),
        ("extra_info", [1], r"field extra_info: a dict is expected, not list \[1\]"),
        ("tools", "f", "field tools: a list of tool schemas"),
    ],
)
def test_wrong_types_name_file_row_and_field(
    chatml: Any, make_rows: MakeRows, tmp_path: Path, column: str, value: Any, message: str
) -> None:
    rows = make_rows(3)
    rows[1][column] = value
    path = tmp_path / "rows.jsonl"
    path.write_text("\n" + "".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match=rf"rows.jsonl, row 1 \(line 3\): {message}"):
        load(path, chatml)
    typed = [{**row, column: value} for row in make_rows(1)]
    write_rows(typed, tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"rows.parquet, row 0: field"):
        load(tmp_path / "rows.parquet", chatml)


@pytest.mark.parametrize(
    ("truth", "where", "kind"),
    [
        (datetime.date(2024, 1, 2), "", "date"),
        (datetime.datetime(2024, 1, 2, 3), "", "datetime"),
        (Decimal("1.50"), "", "Decimal"),
        (b"4", "", "bytes"),
        ({"unit": "m", "values": [b"4"]}, r"\.values\[0\]", "bytes"),
    ],
)
def test_a_ground_truth_that_json_cannot_hold(
    chatml: Any, make_rows: MakeRows, tmp_path: Path, truth: Any, where: str, kind: str
) -> None:
    rows = make_rows(2)
    for row, value in zip(rows, (None, truth), strict=True):
        row["reward_model"] = {"style": "model", "ground_truth": value}
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    message = rf"a\.parquet, row 1: field reward_model\.ground_truth{where} is a {kind}, .* store it as text\."
    with pytest.raises(DataError, match=message):
        load(tmp_path / "a.parquet", chatml)


def test_keys_of_a_ground_truth_are_text(chatml: Any, make_rows: MakeRows, tmp_path: Path) -> None:
    day = datetime.date(2024, 1, 2)
    reward = pa.array(
        [{"style": "rule", "ground_truth": [(day, "a")]}],
        pa.struct([("style", pa.string()), ("ground_truth", pa.map_(pa.date32(), pa.string()))]),
    )
    table = pa.Table.from_pylist([{k: v for k, v in row.items() if k != "reward_model"} for row in make_rows(1)])
    pq.write_table(table.append_column("reward_model", reward), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"row 0: field reward_model\.ground_truth \(a key\) is a date"):
        load(tmp_path / "a.parquet", chatml)


def test_text_with_half_of_a_surrogate_pair(chatml: Any, make_rows: MakeRows, tmp_path: Path) -> None:
    for column, value, field in (
        ("reward_model", {"style": "rule", "ground_truth": ["é", "a\ud83d"]}, r"reward_model\.ground_truth\[1\]"),
        ("prompt", [{"role": "user", "content": "a\ud83d"}], r"prompt\[0\]\.content"),
        ("data_source", "a\ud83d", "data_source"),
    ):
        rows = make_rows(2)
        rows[1][column] = value
        path = tmp_path / "a.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        message = rf"jsonl, row 1 \(line 2\): field {field} holds half of a surrogate pair \(U\+D83D, character 1\)"
        with pytest.raises(DataError, match=message):
            load(path, chatml)


def test_multimodal_and_tool_messages_are_sound(chatml: Any, make_rows: MakeRows, tmp_path: Path) -> None:
    rows = make_rows(1)
    rows[0]["prompt"] = [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]},
    ]
    rows[0]["reward_model"] = {"style": "model", "ground_truth": None}
    rows[0]["images"] = ["a.png"]
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(rows[0]))
    (prompt,) = load(path, chatml, train_batch_size=1).all_prompts()
    assert prompt.fields["images"] == ["a.png"]


def test_paths_lists_globs_and_home(
    write: Callable[..., Path], chatml: Any, make_rows: MakeRows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = write(make_rows(2), "part-a"), write(make_rows(3), "part-b")
    monkeypatch.setenv("HOME", str(tmp_path))
    for files, count in (
        (str(a), 2),
        ([b, a], 5),
        (str(tmp_path / f"part-*{a.suffix}"), 5),
        (f"~/part-a{a.suffix}", 2),
        ([f"~/part-?{a.suffix}"], 5),
    ):
        assert len(load(files, chatml, training=False)) == count
    monkeypatch.chdir(tmp_path)
    assert len(load(f"./part-*{a.suffix}", chatml, training=False)) == 5
    with pytest.raises(FileNotFoundError, match=r"No file matches 'none-\*.parquet'"):
        load("none-*.parquet", chatml)
    with pytest.raises(FileNotFoundError, match=r"none\.parquet does not exist"):
        load("none.parquet", chatml)
    with pytest.raises(FileNotFoundError, match="is a folder; name its files"):
        load(tmp_path, chatml)
    with pytest.raises(FileNotFoundError, match="No data file was named"):
        load([], chatml)


def test_unreadable_files_are_named(chatml: Any, make_rows: MakeRows, tmp_path: Path) -> None:
    parquet = tmp_path / "cut.parquet"
    write_rows(make_rows(100), parquet)
    parquet.write_bytes(parquet.read_bytes()[:-200])
    with pytest.raises(DataError, match=r"cut.parquet cannot be read as Parquet; it may be truncated"):
        load(parquet, chatml)
    good = json.dumps(make_rows(1)[0]).encode()
    for content, message in (
        (good + b"\n" + good.replace(b"math", b"m\xff"), "bad.jsonl, line 2: the bytes are not UTF-8"),
        (good + b"\n{", "bad.jsonl, line 2: it is not JSON"),
        (b"\n[1]", r"bad.jsonl, line 2: a JSON object is expected, not list"),
    ):
        (tmp_path / "bad.jsonl").write_bytes(content)
        with pytest.raises(DataError, match=message):
            load(tmp_path / "bad.jsonl", chatml)
    (tmp_path / "rows.csv").write_text("a,b\n")
    with pytest.raises(DataError, match=r"rows.csv is not a .parquet or .jsonl file.*DataProcessor"):
        load(tmp_path / "rows.csv", chatml)


def test_invalid_text_inside_parquet_names_file_and_rows(chatml: Any, make_rows: MakeRows, tmp_path: Path) -> None:
    rows = make_rows(2)
    table = pa.Table.from_pylist(rows)
    broken = pa.array([b"ok", b"\xff"], pa.binary()).view(pa.string())
    table = table.set_column(table.schema.get_field_index("data_source"), "data_source", broken)
    pq.write_table(table, tmp_path / "bytes.parquet")
    with pytest.raises(DataError, match=r"bytes.parquet, row 1: field data_source holds bytes that are not UTF-8"):
        load(tmp_path / "bytes.parquet", chatml)


def test_a_template_that_refuses_names_the_row(
    write: Callable[..., Path], make_bos_tokenizer: Callable[[str | None], Any], make_rows: MakeRows
) -> None:
    template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}hi"
    rows = make_rows(2)
    rows[1]["prompt"].insert(0, {"role": "system", "content": "be kind"})
    path = write(rows)
    with pytest.raises(DataError, match=rf"{path.name}, row 1.*no system role"):
        load(path, make_bos_tokenizer(template), training=False)
    empty = make_bos_tokenizer("{{ '' }}")
    for settings in ({}, {"filter_overlong_prompts": True}, {"filter_overlong_prompts": True, "truncation": "left"}):
        with pytest.raises(DataError, match=r"row 0.*renders to 0 tokens"):
            load(path, empty, training=False, **settings)
    loader = load(path, empty, training=False, truncation="left")  # nothing is measured
    with pytest.raises(DataError, match=r"row 0.*renders to 0 tokens"):
        loader.all_prompts()


def test_many_batches_of_parquet_are_read_back_in_any_order(chatml: Any, make_rows: MakeRows, tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    table = pa.Table.from_pylist(make_rows(500))
    pq.write_table(table, path, row_group_size=37)
    loader = load(path, chatml, train_batch_size=100)
    for _, prompts in loader.batches(1):
        assert [prompt.ground_truth for prompt in prompts] == [str(2 * prompt.row) for prompt in prompts]


def test_rows_that_are_not_scored_need_a_prompt_only(write: Callable[..., Path], chatml: Any) -> None:
    rows = [
        {"prompt": [{"role": "user", "content": f"{i}"}], "extra_info": i, "reward_model": "none"} for i in range(5)
    ]
    loader = PromptLoader(write(rows), chatml, DataConfig(), training=False, scored=False)
    chunks = list(loader.in_order(2))
    assert [[prompt.row for prompt in chunk] for chunk in chunks] == [[0, 1], [2, 3], [4]]
    assert [prompt for chunk in chunks for prompt in chunk] == loader.all_prompts()
    assert loader.rows_of(chunks[1]) == rows[2:4]
    assert loader.data_sources == {}
    prompt = chunks[2][0]
    assert (prompt.data_source, prompt.ground_truth, prompt.extra_info) == ("", None, {})
    assert prompt.fields == {"extra_info": 4, "reward_model": "none"}
    with pytest.raises(DataError, match="lacks data_source"):
        load(write(rows), chatml, training=False)


def test_rows_that_are_not_scored_still_need_a_sound_prompt(write: Callable[..., Path], chatml: Any) -> None:
    def refused(rows: Rows) -> str:
        with pytest.raises(DataError) as error:
            PromptLoader(write(rows), chatml, DataConfig(), training=False, scored=False)
        return str(error.value)

    assert "lacks prompt; it has question. Name the column that holds the prompts with data.prompt_key" in refused(
        [{"question": "1+1="}]
    )
    assert "row 0" in (message := refused([{"prompt": "1+1="}]))
    assert "set data.prompt_format=rendered" in message
    assert "field tools" in refused([{"prompt": [{"role": "user", "content": "hi"}], "tools": "calculator"}])


def test_a_reserved_column_is_refused(write: Callable[..., Path], chatml: Any, make_rows: MakeRows) -> None:
    rows = make_rows(3)
    rows[1]["responses"] = ["2"]
    with pytest.raises(DataError, match=r"row [01].*there is a column responses already"):
        PromptLoader(write(rows), chatml, DataConfig(), training=False, reserved=("responses",))
