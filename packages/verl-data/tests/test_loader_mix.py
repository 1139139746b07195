"""The loader with weights, an order by difficulty, shorter last batches, and in someone's own pipeline."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from verl_data import DataConfig, DataError, Prompt, PromptLoader, write_rows

Rows = list[dict[str, Any]]
MakeRows = Callable[[int], Rows]
LEVELS = """
def level(row):
    return row["extra_info"]["level"]
"""


@pytest.fixture
def folder(tmp_path: Path, make_rows: MakeRows) -> Path:
    """Three files of 12, 6 and 4 rows; the level of row i is i * 7 % 5."""
    for name, count in (("a", 12), ("b1", 6), ("b2", 4)):
        rows = make_rows(count)
        for index, row in enumerate(rows):
            row["data_source"] = name
            row["extra_info"]["level"] = index * 7 % 5
        write_rows(rows, tmp_path / f"{name}.parquet")
    (tmp_path / "levels.py").write_text(LEVELS)
    return tmp_path


def load(folder: Path, tokenizer: Any, names: tuple[str, ...] = ("a", "b*"), **given: Any) -> PromptLoader:
    files = [str(folder / f"{name}.parquet") for name in names]
    drop_last = given.pop("drop_last", None)
    config = DataConfig(**{"train_batch_size": 4, **given})
    return PromptLoader(files, tokenizer, config, training=given.pop("training", True), drop_last=drop_last)


def drawn(batches: Any) -> list[tuple[int, list[tuple[int, int]]]]:
    return [(epoch, [(prompt.row, prompt.group) for prompt in prompts]) for epoch, prompts in batches]


def levels(prompts: list[Prompt]) -> list[int]:
    return [prompt.extra_info["level"] for prompt in prompts]


def test_every_batch_has_the_proportions_and_a_glob_is_one_source(folder: Path, chatml: Any) -> None:
    loader = load(folder, chatml, train_weights=[1.0, 3.0])
    assert (len(loader), loader.steps_per_epoch) == (22, 5)
    batches = list(loader.batches(4))
    assert [epoch for epoch, _ in batches] == [number // 5 for number in range(20)]
    for _, prompts in batches:
        sources = Counter(prompt.data_source for prompt in prompts)
        assert sources["a"] == 1 and sources["b1"] + sources["b2"] == 3
    own = [prompt.row for _, prompts in batches for prompt in prompts if prompt.row >= 12]
    assert all(len(set(own[begin : begin + 10])) == 10 for begin in range(0, 60, 10))  # 10 rows a pass


def test_a_weight_of_zero_leaves_a_source_out(folder: Path, chatml: Any) -> None:
    (folder / "broken.parquet").write_bytes(b"not Parquet")
    loader = load(folder, chatml, ("broken", "a", "b1"), train_weights=[0, 1, 1])
    assert len(loader) == 18
    assert set(loader.data_sources) == {"a", "b1"}


def test_weights_that_do_not_fit_the_files(folder: Path, chatml: Any) -> None:
    with pytest.raises(ValueError, match=r"has 3 weights \(1, 2, 3\), but data.train_files has 2 entries"):
        load(folder, chatml, train_weights=[1, 2, 3])
    (folder / "empty.jsonl").touch()
    config = DataConfig(train_batch_size=4, train_weights=[1, 1])
    files = [folder / "a.parquet", folder / "empty.jsonl"]
    with pytest.raises(DataError, match=r"empty\.jsonl: no row is in use, but data\.train_weights gives it a part"):
        PromptLoader(files, chatml, config, training=True)
    assert len(PromptLoader(files, chatml, config, training=False)) == 12  # validation mixes nothing


def test_draws_have_numbers_of_their_own(folder: Path, chatml: Any) -> None:
    for given in ({}, {"train_weights": [1, 9]}, {"drop_last": False}):
        loader = load(folder, chatml, ("b2", "a"), **given)
        groups = [group for _, rows in drawn(loader.batches(3)) for _, group in rows]
        assert groups == list(range(len(groups)))
    loader = load(folder, chatml, ("b2", "a"), train_weights=[9, 1], train_batch_size=16)
    _, prompts = next(loader.batches())
    assert len({prompt.row for prompt in prompts}) < len({prompt.group for prompt in prompts}) == 16
    assert [prompt.group for prompt in loader.all_prompts()] == list(range(16))


@pytest.mark.parametrize("key", ["extra_info.level", "levels.py:level"])
def test_easy_rows_come_first(folder: Path, chatml: Any, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    loader = load(folder, chatml, order_by=key, drop_last=False)
    epochs: list[list[Prompt]] = [[], []]
    for epoch, prompts in loader.batches(2):
        epochs[epoch] += prompts
    for prompts in epochs:
        assert levels(prompts) == sorted(levels(prompts))
        assert sorted(prompt.row for prompt in prompts) == list(range(22))
    assert [prompt.row for prompt in epochs[0]] != [prompt.row for prompt in epochs[1]]  # equals are shuffled
    plain = load(folder, chatml, order_by=key, shuffle=False, drop_last=False)
    rows = [prompt.row for _, prompts in plain.batches(1) for prompt in prompts]
    of_row = levels(plain.all_prompts())
    assert rows == sorted(range(22), key=lambda row: of_row[row])
    mixed = load(folder, chatml, order_by=key, train_weights=[1, 1])
    own = [prompt for _, prompts in mixed.batches(3) for prompt in prompts if prompt.data_source == "a"]
    assert levels(own[:12]) == sorted(levels(own[:12]))  # within the source, pass by pass
    assert PromptLoader(
        folder / "a.parquet", chatml, DataConfig(order_by="none"), training=False
    ).steps_per_epoch  # validation has the order of the file


@pytest.mark.parametrize(
    ("order_by", "message"),
    [
        ("level", r"a\.parquet, row 0: data\.order_by=level: there is no level here; there is "),
        ("extra_info.hard", r"there is no hard here; there is split, index, level\. Name a column"),
        ("extra_info.level.x", "there is no x here; there is no fields"),
        ("ability", "a number is expected, by which rows are ordered, not str 'math'"),
        ("none.py:level", r"data\.order_by: the file none\.py does not exist"),
        ("own.py:nothing", r"own\.py has no function 'nothing'; it has fails, gives_none, nan"),
        ("own.py:fails", r"a\.parquet, row 0: .*raised KeyError: 'difficulty' \(at own\.py:3 in fails: `return row"),
        ("own.py:gives_none", r"a\.parquet, row 0: .*a number is expected.*not nothing"),
        ("own.py:nan", "a number is expected.*not float nan"),
        ("broken.py:level", r"broken\.py cannot be loaded; it raised SyntaxError: .*\(at broken\.py:2\)"),
        ("raises.py:level", r"raises\.py cannot be loaded; it raised ZeroDivisionError: .*\(at raises\.py:1 in"),
    ],
)
def test_rows_that_cannot_be_ordered(
    folder: Path, chatml: Any, order_by: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    Path("own.py").write_text(
        "\ndef fails(row):\n    return row['difficulty']\n\ndef gives_none(row):\n    pass\n\n"
        "def nan(row):\n    return float('nan')\n"
    )
    Path("broken.py").write_text("\ndef level(:\n")
    Path("raises.py").write_text("x = 1 / 0\n")
    with pytest.raises(DataError, match=message):
        load(folder, chatml, order_by=order_by)


def test_a_value_that_one_row_lacks_names_it(chatml: Any, make_rows: MakeRows, tmp_path: Path) -> None:
    rows = make_rows(6)
    for row in rows[:4]:
        row["extra_info"]["level"] = 1
    write_rows(rows, tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=r"rows\.parquet, row 4: .*a number is expected.*not nothing"):
        load(tmp_path, chatml, ("rows",), order_by="extra_info.level")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = DataConfig(train_batch_size=2, order_by="extra_info.level")
    with pytest.raises(DataError, match=r"rows\.jsonl, row 4 \(line 5\): .*there is no level here"):
        PromptLoader(tmp_path / "rows.jsonl", chatml, config, training=True)
    config = DataConfig(train_batch_size=2, order_by="extra_info.level", shuffle=False, train_max_samples=4)
    assert len(PromptLoader(tmp_path / "rows.jsonl", chatml, config, training=True)) == 4  # it is not in use


SETTINGS: list[dict[str, Any]] = [
    {"train_weights": [0.3, 0.7]},
    {"train_weights": [0.3, 0.7], "drop_last": False, "train_batch_size": 5},
    {"train_weights": [1, 2], "order_by": "extra_info.level"},
    {"order_by": "extra_info.level"},
    {"drop_last": False},
    {"train_weights": [1, 2], "shuffle": False},
]


@pytest.mark.parametrize("given", SETTINGS)
def test_three_resumes_and_an_epoch_boundary_give_the_uninterrupted_run(
    folder: Path, chatml: Any, given: dict[str, Any]
) -> None:
    """Bug bank A12 too."""
    whole = drawn(load(folder, chatml, **given).batches(4))
    per_epoch = load(folder, chatml, **given).steps_per_epoch
    resumed: list[Any] = []
    state: dict[str, Any] | None = None
    for steps in (2, per_epoch - 2, per_epoch + 1, 99):  # the second ends with the first epoch
        loader = load(folder, chatml, **given)
        if state is not None:
            loader.load_state_dict(state)
        resumed += drawn(islice(loader.batches(4), steps))
        state = json.loads(json.dumps(loader.state_dict()))
        if len(resumed) == per_epoch:
            assert (state["epoch"], state["position"]) == (1, 0)
    assert resumed == whole
    assert len(whole) == 4 * per_epoch


def test_other_weights_order_or_entries_at_a_resume(folder: Path, chatml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    given: dict[str, Any] = {"train_weights": [1, 3], "order_by": "levels.py:level"}
    state = load(folder, chatml, **given).state_dict()
    load(folder, chatml, **{**given, "train_weights": [0.5, 1.5]}).load_state_dict(state)  # the same proportions
    for changed, message in (
        ({"train_weights": [1, 2]}, r"weights \[1, 3\] became \[1, 2\]\."),
        ({"train_weights": None}, r"weights \[1, 3\] became None"),
        ({"order_by": None}, "order by levels.py:level became None"),
        ({"order_by": "extra_info.level"}, "order by levels.py:level became extra_info.level"),
        ({"drop_last": False}, "drop last True became False"),
    ):
        with pytest.raises(DataError, match=message):
            load(folder, chatml, **{**given, **changed}).load_state_dict(state)
    with pytest.raises(DataError, match=r"the files are \[0, 1, 1\] and \[0, 0, 1\] to an entry of data.train_files"):
        (folder / "ab").mkdir()
        for name in ("a", "b1"):
            (folder / "ab" / f"{name}.parquet").write_bytes((folder / f"{name}.parquet").read_bytes())
        load(folder, chatml, ("ab/*", "b2"), **given).load_state_dict(state)
    (folder / "levels.py").write_text(LEVELS.replace("return ", "return -"))
    with pytest.raises(DataError, match=r"data\.order_by=levels\.py:level puts the same rows in another order"):
        load(folder, chatml, **given).load_state_dict(state)


def test_states_without_the_newer_fields_still_load(folder: Path, chatml: Any) -> None:
    loader = load(folder, chatml)
    rest = drawn(islice(loader.batches(), 3))[1:]
    first = load(folder, chatml)
    next(first.batches())
    state = first.state_dict()
    old = ("files", "rows", "rows sha256", "batch size", "shuffle", "seed")
    state["fingerprint"] = {name: state["fingerprint"][name] for name in old}
    second = load(folder, chatml)
    second.load_state_dict(state)
    assert drawn(islice(second.batches(), 2)) == rest
    with pytest.raises(DataError, match=r"weights None became \[1, 1\]"):
        load(folder, chatml, train_weights=[1, 1]).load_state_dict(state)


def test_a_shorter_last_batch_is_kept_where_asked_for(folder: Path, chatml: Any) -> None:
    loader = load(folder, chatml, ("b1",), drop_last=False)
    assert loader.steps_per_epoch == 2
    assert [len(prompts) for _, prompts in loader.batches(2)] == [4, 2, 4, 2]
    assert load(folder, chatml, ("b1",), drop_last=False, train_batch_size=64).steps_per_epoch == 1
    config = DataConfig(train_batch_size=4)
    dropped = PromptLoader(folder / "b1.parquet", chatml, config, training=False, drop_last=True)
    assert [[prompt.row for prompt in prompts] for _, prompts in dropped.batches(1)] == [[0, 1, 2, 3]]
    with pytest.raises(DataError, match="6 rows < batch 64"):
        PromptLoader(folder / "b1.parquet", chatml, DataConfig(train_batch_size=64), training=False, drop_last=True)


PIPELINE = """
import json, sys
from itertools import islice
from transformers import AutoTokenizer
from verl_data import DataConfig, PromptLoader

folder = sys.argv[1]
config = DataConfig(train_batch_size=4, train_weights=[1, 2], order_by=f"{folder}/levels.py:level")
files = [f"{folder}/a.parquet", f"{folder}/b*.parquet"]
loader = PromptLoader(files, AutoTokenizer.from_pretrained(f"{folder}/tokenizer"), config, training=True)
loader.load_state_dict(json.load(sys.stdin))
told = [[[p.row, p.group, p.prompt_ids] for p in prompts] for _, prompts in islice(loader.batches(), 5)]
print(json.dumps([told, loader.state_dict()]))
"""


def test_a_pipeline_of_ones_own_goes_on_in_a_fresh_process(folder: Path, chatml: Any) -> None:
    chatml.save_pretrained(folder / "tokenizer")
    loader = load(folder, chatml, train_weights=[1, 2], order_by=f"{folder}/levels.py:level")
    batches = loader.batches()
    for _ in range(4):
        next(batches)
    state = json.dumps(loader.state_dict())
    rest = [[[p.row, p.group, p.prompt_ids] for p in prompts] for _, prompts in islice(batches, 5)]
    program = [sys.executable, "-c", PIPELINE, str(folder)]
    done = subprocess.run(program, input=state, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [rest, loader.state_dict()]
