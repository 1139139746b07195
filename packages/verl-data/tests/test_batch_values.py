"""What a batch refuses because it would hold other values than it was given, and when two batches are equal."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_data import DataError, PackedBatch, Ragged

UNSIGNED = [np.uint8, np.uint16, np.uint32, np.uint64]


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_falling_offsets_of_unsigned_type_are_refused(dtype: Any) -> None:
    with pytest.raises(ValueError, match="'cu_seqlens' must be integers that start at 0 and never fall"):
        PackedBatch(np.array([0, 5, 3, 6], dtype), {"input_ids": np.arange(6)})
    with pytest.raises(ValueError, match="'x' must be integers that start at 0 and never fall"):
        PackedBatch([0, 1, 2], ragged={"x": Ragged(np.zeros(3), np.array([0, 7, 3], dtype))})
    assert PackedBatch(np.array([0, 2, 2, 5], dtype)).lengths.tolist() == [2, 0, 3]


@pytest.mark.parametrize("offsets", [np.array([0, 2**63 + 4], np.uint64), np.array([0, 2**63 - 1, -(2**63)])])
def test_offsets_that_wrap_around_are_refused(offsets: Any) -> None:
    with pytest.raises(ValueError, match="never fall"):
        PackedBatch(offsets)


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("input_ids", [1.7, 2.2], "is float64; it must hold integers that fit int64"),
        ("input_ids", [1.0, 2.0], "is float64"),
        ("input_ids", ["12", "3"], "is <U2"),
        ("input_ids", [np.nan, 3e30], "is float64"),
        ("input_ids", [1, None], "is object"),
        ("input_ids", [True, False], "is bool"),
        ("input_ids", [2**64 - 1], "holds 18446744073709551615; it must hold integers that fit int64"),
        ("input_ids", np.array([1, 2**63], np.uint64), "holds 9223372036854775808"),
        ("input_ids", [1, 2**64], "is object"),
        ("input_ids", 7, "is 7; give the values of each sequence as a list"),
        ("input_ids", [[1], [2, 3]], "makes no array"),
        ("loss_mask", [-100, 0.4], "holds -100.0; it must hold booleans, or 0 and 1"),
        ("loss_mask", [-100, 5], "holds -100"),
        ("sampled_mask", [1, 2], "holds 2"),
        ("sampled_mask", [np.nan, 1], "holds nan"),
        ("loss_mask", ["False", ""], "is <U5"),
        ("loss_mask", [None, True], "is object"),
        ("weight_version", [0, 2**32 + 1], "holds 4294967297; it must hold integers that fit int32"),
        ("weight_version", [0, -(2**31) - 1], "holds -2147483649"),
        ("weight_version", [0.0, 1.5], "is float64"),
        ("rollout_logprobs", [None, 1.0], "is object; it must hold numbers that fit float32"),
        ("rollout_logprobs", ["-1.5", "0"], "is <U4"),
        ("token_rewards", [True, False], "is bool"),
        ("values", [1 + 2j, 0], "is complex128"),
        ("returns", [0.0, -1e39], r"holds -1e\+39; it must hold numbers that fit float32"),
        ("advantages", np.array([0, 1], "datetime64[s]"), "is datetime64"),
    ],
)
def test_standard_columns_are_not_cast_to_other_values(name: str, row: Any, message: str) -> None:
    right = [0, 1] if name in ("input_ids", "weight_version") else [0.0, 1.0]
    with pytest.raises(ValueError, match=f"Column '{name}', row 2, {message}"):
        PackedBatch.from_sequences({name: [right, [], row, right]})


def test_the_row_at_fault_is_named_among_rows_of_other_types() -> None:
    rows: list[Any] = [np.array([1, 2], np.uint64), [3], np.zeros(0), np.array([4, 2**63], np.uint64), [5]]
    with pytest.raises(ValueError, match="'input_ids', row 3, holds 9223372036854775808"):
        PackedBatch.from_sequences({"input_ids": rows})
    rows[3] = np.array([2**63 - 1], np.uint64)  # beside signed integers, numpy would make floats of these
    batch = PackedBatch.from_sequences({"input_ids": rows})
    assert batch["input_ids"].tolist() == [1, 2, 3, 2**63 - 1, 5] and batch["input_ids"].dtype == np.int64


def test_what_a_standard_column_takes() -> None:
    batch = PackedBatch.from_sequences(
        {
            "input_ids": [np.array([1, 2], np.uint8), [], [3]],
            "loss_mask": [[0, 1], [], [True]],
            "sampled_mask": [np.array([0.0, 1.0]), [], np.array([1], np.uint8)],
            "weight_version": [np.array([2**31 - 1, -(2**31)]), [], np.array([7], np.uint64)],
            "rollout_logprobs": [[-0.1, -np.inf], [], [np.nan]],
            "values": [np.array([0.5, 1], np.float16), [], [3]],
            "token_rewards": [[1, 0], [], [1e-50]],
        }
    )
    assert batch["input_ids"].tolist() == [1, 2, 3]
    assert batch["loss_mask"].tolist() == [False, True, True] == batch["sampled_mask"].tolist()
    assert batch["weight_version"].tolist() == [2**31 - 1, -(2**31), 7]
    assert np.array_equal(batch["rollout_logprobs"], np.array([-0.1, -np.inf, np.nan], np.float32), equal_nan=True)
    assert batch["values"].tolist() == [0.5, 1, 3]
    assert batch["token_rewards"].tolist() == [1, 0, 0]
    assert [column.dtype.name for column in batch.tokens.values()] == [
        "int64",
        "bool",
        "bool",
        "int32",
        *["float32"] * 3,
    ]


ROWS = st.lists(st.lists(st.integers(-(2**64), 2**64) | st.integers(-2, 2) | st.booleans(), max_size=3), max_size=3)


@settings(deadline=None, max_examples=300)
@given(ROWS, st.sampled_from(["input_ids", "loss_mask", "weight_version", "reference"]))
def test_integers_arrive_as_they_were_or_not_at_all(rows: list[list[int]], name: str) -> None:
    try:
        batch = PackedBatch.from_sequences({name: rows})
    except ValueError:
        return
    if name != "reference" or batch["reference"].dtype.kind in "biu":
        assert [part.tolist() for part in batch.per_sequence(name)] == rows


class Fetched:
    def __init__(self, values: Any) -> None:
        self.values = values

    def fetch(self) -> Any:
        return self.values


def test_handles_resolve_by_the_same_rule() -> None:
    batch = PackedBatch([0, 2, 3], sequences={"loss_mask": [Fetched([0, 1]), Fetched([-100])]})
    with pytest.raises(ValueError, match="'loss_mask', row 1, holds -100"):
        batch.resolve(tokens=["loss_mask"])
    assert batch.resolve(ragged=["loss_mask"]).ragged["loss_mask"].values.tolist() == [0, 1, -100]
    with pytest.raises(ValueError, match="'x', row 0, is 5; give"):
        PackedBatch([0, 1], sequences={"x": [Fetched(5)]}).resolve(ragged=["x"])


# Equality.


def holding(*values: Any) -> PackedBatch:
    return PackedBatch(np.zeros(len(values) + 1, np.int64), sequences={"extra": list(values)})


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.arange(3),
        lambda: np.array([1.0, np.nan]),
        lambda: np.array(["a", None, np.arange(2)], dtype=object),
        lambda: np.array(["2020-01-01", "NaT"], "datetime64[D]"),
        lambda: {"image": np.zeros((2, 2)), "sizes": [np.arange(2), (np.arange(1), None)]},
        lambda: float("nan"),
        lambda: np.float32("nan"),
        lambda: [1, {"a": (float("nan"), "b")}],
        lambda: {"a", "b"},
    ],
)
def test_lists_compare_by_content(make: Callable[[], Any]) -> None:
    batch = holding(make(), "end")
    assert batch == holding(make(), "end") == pickle.loads(pickle.dumps(batch))
    assert batch.union(holding(make(), "end")) == batch
    assert batch != holding("other", "end") and holding("other", "end") != batch
    assert batch != holding([make()], "end") and holding([make()], "end") != batch
    with pytest.raises(ValueError, match="'extra' is in both batches and differs"):
        batch.union(holding(make(), None))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (np.arange(3), np.arange(4)),
        (np.arange(3), np.arange(3.0)),
        (np.arange(3), [0, 1, 2]),
        (np.arange(1), 0),
        (np.float64(1), [[1], [2, 3]]),
        ({"a": np.arange(3)}, {"a": np.array([0, 1, 3])}),
        ({"a": 1}, {"b": 1}),
        ([1, 2], (1, 2)),
        ([1], [1, 2]),
        (float("nan"), 1.0),
        (float("nan"), None),
    ],
)
def test_lists_of_other_content_differ(a: Any, b: Any) -> None:
    assert holding(a) != holding(b)
    assert holding(b) != holding(a)


def test_tensors_in_lists_compare_by_content() -> None:
    torch = pytest.importorskip("torch")
    assert holding({"x": torch.arange(3)}) == holding({"x": torch.arange(3)})
    assert holding(torch.arange(3)) != holding(torch.arange(4))
    assert holding(torch.arange(3)) != holding(np.arange(3))


# The stored form, edited.


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "batch.parquet"
    PackedBatch.from_sequences(
        {"input_ids": [[1, 2, 3], [4]], "routes": [np.ones((3, 2), np.uint8), np.ones((1, 2), np.uint8)]},
        {"reward": np.array([0.5, 1.0], np.float32), "features": np.ones((2, 2)), "data_source": ["a", "b"]},
        {"pixels": Ragged(np.arange(3), np.array([0, 3, 3]))},
    ).to_parquet(path)
    return path


def edit(path: Path, name: str, column: pa.Array | None) -> None:
    table = pq.read_table(path)
    place = table.column_names.index(name)
    pq.write_table(table.remove_column(place) if column is None else table.set_column(place, name, column), path)


PAIRS = pa.list_(pa.uint8(), 2)


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("num_tokens", pa.array([2, 2]), "'input_ids', row 0, has 3 values for 2 tokens"),
        ("num_tokens", pa.array([3, None], pa.int64()), "'num_tokens' has null values"),
        ("num_tokens", pa.array([3.0, 1.0]), "'num_tokens' is double; it was stored as int64"),
        ("num_tokens", None, "Its columns are input_ids, .* it was stored with num_tokens, input_ids"),
        ("input_ids", None, "Its columns are num_tokens, routes"),
        ("input_ids", pa.array([[1, None, 3], [4]], pa.large_list(pa.int64())), "'input_ids' has null values"),
        ("input_ids", pa.array([[1, 2, 3], None], pa.large_list(pa.int64())), "'input_ids' has null values"),
        ("input_ids", pa.array([[1.7, 2, 3], [4]], pa.large_list(pa.float64())), "'input_ids' is large_list"),
        ("input_ids", pa.array([["1", "2", "3"], ["4"]], pa.large_list(pa.string())), "'input_ids' is large_list"),
        ("input_ids", pa.array([1, 2]), "'input_ids' is int64"),
        ("routes", pa.array([[[1, 2], None, [1, 2]], [[1, 2]]], pa.large_list(PAIRS)), "'routes' has null values"),
        ("routes", pa.array([[[1, 2], [1, None], [1, 2]], [[1, 2]]], pa.large_list(PAIRS)), "'routes' has null values"),
        ("reward", pa.array([0.5, None], pa.float32()), "'reward' has null values"),
        ("features", pa.array([[0.5, None], [1, 2]], pa.list_(pa.float64(), 2)), "'features' has null values"),
        ("data_source", pa.array(['"a"', None], pa.large_string()), "'data_source' has null values"),
        ("data_source", pa.array(['"a"', '"b'], pa.large_string()), "Unterminated string"),
        ("pixels", pa.array([[0, None, 2], []], pa.large_list(pa.int64())), "'pixels' has null values"),
        ("pixels", pa.array([[0, 1, 2], None], pa.large_list(pa.int64())), "'pixels' has null values"),
    ],
)
def test_an_edited_file_is_refused(stored: Path, name: str, column: pa.Array | None, message: str) -> None:
    edit(stored, name, column)
    with pytest.raises(DataError, match=f"batch.parquet was changed after .*{message}.* Store the batch again"):
        PackedBatch.from_parquet(stored)


def test_a_file_with_another_column_is_refused(stored: Path) -> None:
    pq.write_table(pq.read_table(stored).append_column("more", pa.array([1, 2])), stored)
    with pytest.raises(DataError, match="more, but it was stored with"):
        PackedBatch.from_parquet(stored)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (b"{", "metadata is damaged"),
        (b"[]", "metadata is damaged"),
        (b'{"schema_version": 1}', "metadata is damaged"),
        (b'{"schema_version": 2, "columns": {}}', "schema version 2; this verl-data reads 1"),
        (b'{"schema_version": 1, "columns": {"num": {}}}', "is no batch any more"),
        (b'{"schema_version": 1, "columns": {"x": {"kind": "tokens"}}}', "is no batch any more"),
        (b'{"schema_version": 1, "columns": {"x": {"kind": "tokens", "shape": [], "dtype": "int"}}}', "no batch any"),
    ],
)
def test_edited_metadata_is_refused(tmp_path: Path, metadata: bytes, message: str) -> None:
    path = tmp_path / "batch.parquet"
    table = pa.table({"num_tokens": pa.array([1]), "x": pa.array([["a"]], pa.large_list(pa.string()))})
    pq.write_table(table.replace_schema_metadata({b"verl_data.packed_batch": metadata}), path)
    with pytest.raises(DataError, match=message):
        PackedBatch.from_parquet(path)


def test_metadata_of_a_type_that_the_column_may_not_have_is_refused(stored: Path) -> None:
    table = pq.read_table(stored)
    header = json.loads(table.schema.metadata[b"verl_data.packed_batch"])
    header["columns"]["input_ids"]["dtype"] = "int32"
    place = table.column_names.index("input_ids")
    table = table.set_column(place, "input_ids", pa.array([[1, 2, 3], [4]], pa.large_list(pa.int32())))
    metadata = {b"verl_data.packed_batch": json.dumps(header).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), stored)
    with pytest.raises(DataError, match="'input_ids' is int32; it must be int64"):
        PackedBatch.from_parquet(stored)
