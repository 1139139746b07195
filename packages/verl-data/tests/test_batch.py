import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_data import DataError, PackedBatch, Ragged

scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3)
DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
]
json_values = st.recursive(
    scalars | st.just("\ud83d, half of a pair") | st.just("中文"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


@st.composite
def batches(draw: st.DrawFn, sequences: int | None = None) -> PackedBatch:
    n = draw(st.integers(0, 5)) if sequences is None else sequences
    lengths = draw(st.lists(st.integers(0, 6), min_size=n, max_size=n))
    total = sum(lengths)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    logprobs = rng.normal(size=total).astype(np.float32)
    logprobs[rng.random(total) < 0.1] = np.nan
    owned = rng.integers(0, 4, n)

    def numbers(rows: int) -> Any:
        dtype = draw(st.sampled_from(DTYPES))
        shape = (rows, *draw(st.sampled_from([(), (3,), (2, 2), (0,), (2, 0)])))
        return (
            rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize)).astype(np.uint8).view(dtype)[..., 0]
            if (dtype != "bool")
            else rng.random(shape) < 0.5
        )

    return PackedBatch(
        np.cumsum([0, *lengths]),
        {
            "input_ids": rng.integers(0, 9, total),
            "sampled_mask": rng.random(total) < 0.5,
            "old_logprobs": logprobs,
            "routes": rng.integers(0, 255, (total, 2, 3)).astype(np.uint8),
            "any_tokens": numbers(total),
        },
        {
            "group": rng.integers(0, 3, n),
            "features": rng.normal(size=(n, 2)),
            "nothing": np.zeros((n, 0), np.float32),
            "any_sequences": numbers(n),
            "extra_info": draw(st.lists(json_values, min_size=n, max_size=n)),
        },
        {
            "images": Ragged(rng.normal(size=(owned.sum(), 2)).astype(np.float16), np.cumsum([0, *owned])),
            "any_ragged": Ragged(numbers(int(owned.sum())), np.cumsum([0, *owned])),
        },
    )


@pytest.fixture
def small() -> PackedBatch:
    return PackedBatch.from_sequences(
        {"input_ids": [[1, 2, 3], [4], [5, 6]], "loss_mask": [[0, 1, 1], [0], [0, 1]]},
        {"reward": np.array([0.5, 0.0, 1.0], np.float32), "finish_reason": ["stop", "length", "stop"]},
    )


def test_from_sequences_gives_standard_types_and_shapes(small: PackedBatch) -> None:
    assert small.cu_seqlens.tolist() == [0, 3, 4, 6]
    assert small.cu_seqlens.dtype == np.int64
    assert (len(small), small.num_tokens, small.lengths.tolist()) == (3, 6, [3, 1, 2])
    assert small["input_ids"].dtype == np.int64
    assert small["loss_mask"].dtype == np.bool_
    assert small["finish_reason"] == ["stop", "length", "stop"]
    assert [part.tolist() for part in small.per_sequence("input_ids")] == [[1, 2, 3], [4], [5, 6]]
    assert small.nbytes == 4 * 8 + 6 * 8 + 6 + 3 * 4
    assert small.schema_version == 1
    assert "input_ids" in small and "values" not in small


def test_arrays_are_read_only_views_without_a_copy() -> None:
    ids = np.arange(4)
    batch = PackedBatch(
        [0, 4], {"input_ids": ids}, {"reward": np.zeros(1)}, {"x": Ragged(np.ones(2), np.array([0, 2]))}
    )
    assert np.shares_memory(batch["input_ids"], ids)
    for array in (batch.cu_seqlens, batch["input_ids"], batch["reward"], batch["x"].values, batch["x"].offsets):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    ids[0] = 9  # the caller's own array stays writable
    with pytest.raises(TypeError):
        batch.tokens["y"] = ids  # type: ignore[index]
    with pytest.raises(AttributeError):
        batch.cu_seqlens = ids  # type: ignore[misc]


def test_select_keeps_the_order_asked_for_and_repeats(small: PackedBatch) -> None:
    chosen = small.select([2, 0, 2])
    assert chosen["input_ids"].tolist() == [5, 6, 1, 2, 3, 5, 6]
    assert chosen["finish_reason"] == ["stop", "stop", "stop"]
    assert chosen["reward"].tolist() == [1.0, 0.5, 1.0]
    assert len(small.select([])) == 0
    for bad in (3, -1):
        with pytest.raises(IndexError, match=f"row {bad} .* 3 sequences"):
            small.select([bad])
    with pytest.raises(TypeError, match="bool"):
        small.select(np.array([True, False, True]))


@settings(deadline=None)
@given(batches(), st.data())
def test_splitting_and_joining_again_is_the_identity(batch: PackedBatch, data: st.DataObject) -> None:
    parts = batch.split(data.draw(st.integers(1, 4)))
    rows = np.concatenate(parts)
    assert sorted(rows.tolist()) == list(range(len(batch)))
    assert all(part.tolist() == sorted(part.tolist()) for part in parts)
    joined = PackedBatch.concat([batch.select(part) for part in parts])
    assert joined.select(np.argsort(rows)) == batch
    order = data.draw(st.permutations(range(len(batch))))
    assert batch.select(order).select(np.argsort(order)) == batch


@settings(deadline=None)
@given(batches())
def test_union_of_the_columns_apart_is_the_whole(batch: PackedBatch) -> None:
    left = batch.without("routes", "extra_info", "images")
    right = batch.without("input_ids", "group")
    assert left.union(right) == batch
    assert "routes" in batch  # nothing was changed in place
    with_new = batch.with_columns(sequences={"input_ids": np.zeros(len(batch))})
    assert "input_ids" not in with_new.tokens
    assert with_new["input_ids"].shape == (len(batch),)


@settings(deadline=None, max_examples=20)
@given(batches())
def test_parquet_round_trip(tmp_path_factory: pytest.TempPathFactory, batch: PackedBatch) -> None:
    path = tmp_path_factory.mktemp("batch") / "batch.parquet"
    batch.to_parquet(path)
    assert PackedBatch.from_parquet(path) == batch
    assert pq.read_table(path)["input_ids"].to_pylist() == [part.tolist() for part in batch.per_sequence("input_ids")]


def one_by_one(batch: PackedBatch) -> list[dict[str, Any]]:
    """The batch as plain Python, a dict per sequence: the oracle of what moves with a sequence."""
    rows: list[dict[str, Any]] = []
    for row in range(len(batch)):
        begin, end = batch.cu_seqlens[row : row + 2]
        plain: dict[str, Any] = {name: column[begin:end].tolist() for name, column in batch.tokens.items()}
        for name, values in batch.sequences.items():
            plain[name] = values[row] if isinstance(values, list) else values[row].tolist()
        for name, (numbers, offsets) in batch.ragged.items():
            plain[name] = numbers[offsets[row] : offsets[row + 1]].tolist()
        rows.append(plain)
    return rows


@settings(deadline=None)
@given(batches(), st.data())
def test_a_sequence_moves_with_all_that_is_its_own(batch: PackedBatch, data: st.DataObject) -> None:
    known = one_by_one(batch)
    asked = data.draw(st.lists(st.sampled_from(range(len(batch))), max_size=8)) if len(batch) else []
    chosen = batch.select(asked)
    assert repr(one_by_one(chosen)) == repr([known[row] for row in asked])  # repr: NaN equals NaN
    assert chosen.lengths.tolist() == [int(batch.lengths[row]) for row in asked]
    joined = PackedBatch.concat([chosen, batch, chosen])
    assert repr(one_by_one(joined)) == repr([*(known[row] for row in asked), *known, *(known[row] for row in asked)])
    assert all(joined[name].dtype == batch[name].dtype for name in batch.tokens)
    work = 24576 * batch.lengths + batch.lengths**2
    parts = batch.split(3)
    heaviest = max(int(work[part].sum()) for part in parts)
    assert heaviest - min(int(work[part].sum()) for part in parts) <= max(work, default=0)


@settings(deadline=None)
@given(batches(), st.booleans())
def test_pickle_round_trip_arrives_read_only(batch: PackedBatch, out_of_band: bool) -> None:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append if out_of_band else None)
    copy = pickle.loads(data, buffers=buffers)
    assert copy == batch
    for name in ("input_ids", "features"):
        assert not copy[name].flags.writeable


def test_pickle_5_moves_numeric_columns_without_a_copy() -> None:
    ids = np.arange(1_000_000)
    batch = PackedBatch(
        [0, 1_000_000], {"input_ids": ids, "old_logprobs": ids.astype(np.float32)}, {"data_source": ["x"]}
    )
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
    assert len(data) < 1000
    copy = pickle.loads(data, buffers=buffers)
    assert np.shares_memory(copy["input_ids"], ids)


@settings(deadline=None)
@given(batches())
def test_every_numeric_column_is_a_view_of_its_buffer_on_both_sides(batch: PackedBatch) -> None:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
    arrived = [bytes(buffer.raw()) for buffer in buffers]  # what a network would bring
    copy = pickle.loads(data, buffers=arrived)
    assert sum(map(len, arrived)) == batch.nbytes

    def arrays(of: PackedBatch) -> list[Any]:
        numeric = [*of.tokens.values(), *(column for column in of.sequences.values() if isinstance(column, np.ndarray))]
        return [of.cu_seqlens, *numeric, *(array for column in of.ragged.values() for array in column)]

    views = [np.frombuffer(buffer, np.uint8) for buffer in arrived]
    sent = [np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers]
    for ours, theirs in zip(arrays(batch), arrays(copy), strict=True):
        assert not theirs.flags.writeable
        if ours.nbytes:
            assert any(np.shares_memory(ours, view) for view in sent)
            assert any(np.shares_memory(theirs, view) for view in views)


class Stored:
    """A handle: values under a key in a store that only the test's worker reads."""

    store: ClassVar[dict[str, Any]] = {}

    def __init__(self, key: str) -> None:
        self.key = key

    def fetch(self) -> Any:
        return self.store[self.key]


def test_a_column_of_handles_moves_like_any_other_and_is_resolved_by_who_needs_it(small: PackedBatch) -> None:
    Stored.store = {f"routes {n}": np.full((n, 2), n, np.uint8) for n in (1, 2, 3)}
    Stored.store |= {f"image {n}": np.arange(n, dtype=np.float32) for n in (0, 4, 2)}
    routes: list[Any] = [Stored(f"routes {n}") for n in (3, 1, 2)]
    images: list[Any] = [Stored(f"image {n}") for n in (0, 4, 2)]
    batch = small.with_columns(sequences={"routes": routes, "images": images})
    sent = pickle.loads(pickle.dumps(batch.select([2, 0])))
    resolved = sent.resolve(tokens=["routes"], ragged=["images"])
    assert resolved.tokens["routes"].tolist() == [[2, 2], [2, 2], [3, 3], [3, 3], [3, 3]]
    assert resolved.tokens["routes"].dtype == np.uint8
    assert resolved.ragged["images"].values.tolist() == [0.0, 1.0]
    assert resolved.ragged["images"].offsets.tolist() == [0, 2, 2]
    assert "images" not in resolved.sequences and resolved["finish_reason"] == ["stop", "stop"]
    assert len(batch.select([]).resolve(tokens=["routes"], ragged=["images"])) == 0
    with pytest.raises(ValueError, match="'images', row 0, resolves to 0 values for 3 tokens"):
        batch.resolve(tokens=["images"])
    with pytest.raises(ValueError, match="'finish_reason' is no list of handles"):
        batch.resolve(ragged=["finish_reason"])


def test_empty_sequences_keep_type_and_shape() -> None:
    routes = [np.zeros((0, 3), np.uint8), np.zeros((0, 3), np.uint8)]
    batch = PackedBatch.from_sequences({"input_ids": [[], []], "routes": routes})
    assert batch["routes"].dtype == np.uint8 and batch["routes"].shape == (0, 3)
    assert (len(batch), batch.num_tokens) == (2, 0)
    mixed = PackedBatch.from_sequences({"routes": [routes[0], np.ones((2, 3), np.uint8)], "x": [[], [1, 2.5]]})
    assert mixed["routes"].shape == (2, 3) and mixed["x"].tolist() == [1, 2.5]


def test_numbers_of_other_machines_become_native(tmp_path: Path) -> None:
    batch = PackedBatch([0, 2], {"x": np.array([1, 258], ">i4")})
    batch.to_parquet(tmp_path / "b.parquet")
    back = PackedBatch.from_parquet(tmp_path / "b.parquet")
    assert back == batch and back["x"].tolist() == [1, 258] and back["x"].dtype == np.int32
    with pytest.raises(ValueError, match="wider than 8 bytes"):
        PackedBatch([0, 1], {"x": np.zeros(1, np.longdouble)})


def test_to_torch_copies_numeric_columns(small: PackedBatch) -> None:
    torch = pytest.importorskip("torch")
    tensors = small.to_torch()
    assert set(tensors) == {"cu_seqlens", "input_ids", "loss_mask", "reward"}
    assert tensors["input_ids"].dtype == torch.int64 and tensors["loss_mask"].dtype == torch.bool
    tensors["input_ids"][0] = 99
    assert small["input_ids"][0] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"cu_seqlens": [0, 2], "tokens": {"input_ids": [1]}},
            "'input_ids' has shape .1,., but the batch holds 2 tokens",
        ),
        ({"cu_seqlens": [1, 2]}, "'cu_seqlens' must be integers that start at 0"),
        ({"cu_seqlens": [0, 3, 2]}, "never fall"),
        ({"cu_seqlens": [0.0, 1.0]}, "integers"),
        (
            {"cu_seqlens": [0, 1], "tokens": {"input_ids": np.zeros(1, np.int32)}},
            "'input_ids' is int32; it must be int64",
        ),
        ({"cu_seqlens": [0, 1], "tokens": {"sampled_mask": np.zeros(1)}}, "'sampled_mask' is float64; it must be bool"),
        ({"cu_seqlens": [0, 1], "tokens": {"text": np.array(["a"])}}, "Pass other values as a list"),
        ({"cu_seqlens": [0, 1], "sequences": {"group": np.zeros(2)}}, "'group' has 2 entries, but the batch holds 1"),
        ({"cu_seqlens": [0, 1], "tokens": {"x": [1]}, "sequences": {"x": [1]}}, "unique"),
        ({"cu_seqlens": [0, 1], "sequences": {"cu_seqlens": [1]}}, "none of cu_seqlens"),
        ({"cu_seqlens": [0, 1], "ragged": {"x": Ragged(np.zeros(2), np.array([0, 1]))}}, "'x' has 2 offsets up to 1"),
    ],
)
def test_columns_that_do_not_fit_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PackedBatch(**arguments)


def test_errors_of_operations_name_the_column(small: PackedBatch) -> None:
    with pytest.raises(KeyError, match="no column 'values'; there are finish_reason, input_ids, loss_mask, reward"):
        small["values"]
    with pytest.raises(KeyError, match="no column 'values'"):
        small.without("values")
    with pytest.raises(KeyError, match="no token column 'reward'"):
        small.per_sequence("reward")
    with pytest.raises(ValueError, match="'reward' is in both batches and differs"):
        small.union(small.with_columns(sequences={"reward": np.zeros(3, np.float32)}))
    with pytest.raises(ValueError, match="different sequences"):
        small.union(small.select([0]))
    with pytest.raises(ValueError, match=r"'reward' is sequences float32.* and missing"):
        PackedBatch.concat([small, small.without("reward")])
    with pytest.raises(ValueError, match=r"'reward' .* float64"):
        PackedBatch.concat([small, small.with_columns(sequences={"reward": np.zeros(3)})])
    with pytest.raises(ValueError, match="no batch"):
        PackedBatch.concat([])
    with pytest.raises(ValueError, match="'input_ids' and 'x' differ in the lengths"):
        PackedBatch.from_sequences({"input_ids": [[1]], "x": [[1, 2]]})


def test_storing_refuses_what_would_come_back_changed(small: PackedBatch, tmp_path: Path) -> None:
    for value in ((1, 2), {1: "a"}, object()):
        with pytest.raises(ValueError, match="'extra', row 1, holds a"):
            small.with_columns(sequences={"extra": [None, value, None]}).to_parquet(tmp_path / "b.parquet")
    assert list(tmp_path.iterdir()) == []


def test_loading_refuses_other_files(small: PackedBatch, tmp_path: Path) -> None:
    path = tmp_path / "b.parquet"
    with pytest.raises(FileNotFoundError, match="does not exist"):
        PackedBatch.from_parquet(path)
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(DataError, match="not a stored batch"):
        PackedBatch.from_parquet(path)
    small.to_parquet(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        PackedBatch.from_parquet(path)
