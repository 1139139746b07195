"""What every training engine must do, as tests: subclass `EngineConformance` with the backend's factory and run "
"pytest."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.distributed.tensor import DTensor
from verl_data import PackedBatch

from verl_engine.config import EngineConfig, FsdpConfig, ModelConfig, OptimConfig
from verl_engine.errors import EngineError
from verl_engine.interface import Denominators, Loss, Output, TrainEngine
from verl_engine.metrics import Metrics, merge_metrics
from verl_engine.testing.batches import count, random_batch
from verl_engine.testing.losses import PolicyLoss, ValueLoss
from verl_engine.testing.plain import PlainEngine
from verl_engine.testing.ranks import RankPool
from verl_engine.testing.tiny import tiny_model

EngineFactory = Callable[[EngineConfig], TrainEngine]
Weights = dict[str, NDArray[np.float64]]

_LENGTHS = (5, 1, 9, 4, 2, 7, 3, 6)
_TIGHT: dict[str, Any] = {"max_tokens_per_micro_batch": 9}
_ONE_BY_ONE: dict[str, Any] = {"max_sequences_per_micro_batch": 1}
_LM_OUTPUTS: tuple[Output, ...] = ("logprobs", "entropy", "sum_pi_squared")


def suite_device() -> Literal["cpu", "cuda"]:
    """Where the suite computes: the environment variable VERL_TEST_DEVICE, by default the CPU."""
    return "cuda" if os.environ.get("VERL_TEST_DEVICE") == "cuda" else "cpu"


def engine_config(model: Path, dtype: str = "fp64", lr: float = 1e-2, **settings: Any) -> EngineConfig:
    """A configuration for tests that computes in the dtype in which it stores; `settings` are fields of "
    "EngineConfig."""
    defaults: dict[str, Any] = {"optim": OptimConfig(lr=lr), "device": suite_device()}
    return EngineConfig(
        model=ModelConfig(str(model)), fsdp=FsdpConfig(model_dtype=dtype, dtype=dtype), **(defaults | settings)
    )


def full_weights(engine: TrainEngine) -> Weights:
    """Copies of all weights, gathered. Collective."""
    return {name: _full(weight).double().cpu().numpy().copy() for name, weight in engine.weights()}


def _full(weight: torch.Tensor) -> torch.Tensor:
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


def train_share(
    make: EngineFactory,
    config: EngineConfig,
    shares: Sequence[PackedBatch],
    losses: Sequence[Loss],
    counted: Denominators,
) -> tuple[list[Metrics], Weights, Weights]:
    """On each rank: train on its share, a step for each loss. Returns metrics and the weights before and after."""
    engine = make(config)
    before = full_weights(engine)
    share = shares[dist.get_rank()]
    metrics = [engine.train_batch(share, loss, counted) for loss in losses]
    return metrics, before, full_weights(engine)


def forward_share(
    make: EngineFactory, config: EngineConfig, shares: Sequence[PackedBatch], outputs: Sequence[Output]
) -> dict[str, NDArray[np.float32]]:
    """On each rank: compute outputs of its share."""
    return make(config).forward(shares[dist.get_rank()], outputs)


def save_share(
    make: EngineFactory, config: EngineConfig, shares: Sequence[PackedBatch], counted: Denominators, to: Path
) -> Weights:
    """On each rank: take a step, save and export into `to`, take another step. Returns the weights after it."""
    engine = make(config)
    share = shares[dist.get_rank()]
    engine.train_batch(share, PolicyLoss(), counted)
    engine.save(to / "state")
    engine.export(to / "export")
    engine.train_batch(share, PolicyLoss(scale=-1.0), counted)
    return full_weights(engine)


def assert_close(found: Weights, expected: Weights, tolerance: float) -> None:
    """Compare weights by name, absolute tolerance."""
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        np.testing.assert_allclose(found[name], weight, rtol=0, atol=tolerance, err_msg=name)


class EngineConformance:
    """Every backend passes these. Set `make`; tests that take `ranks` need such a fixture, a RankPool of two."""

    make: EngineFactory

    def test_outputs_equal_those_of_a_plain_module(self, tmp_path: Path) -> None:
        config = engine_config(tiny_model(tmp_path), temperature=0.7, **_TIGHT)
        batch = random_batch(1, _LENGTHS)
        found = self.make(config).forward(batch, _LM_OUTPUTS)
        expected = PlainEngine(config).forward(batch, _LM_OUTPUTS)
        for name, column in expected.items():
            assert found[name].dtype == np.float32
            np.testing.assert_allclose(found[name], column, rtol=1e-6, atol=1e-6, err_msg=name)
            assert not found[name][~batch["sampled_mask"]].any()

    def test_rows_come_back_in_their_own_order(self, tmp_path: Path) -> None:
        engine = self.make(engine_config(tiny_model(tmp_path), max_tokens_per_micro_batch=6))
        batch = random_batch(2, (5, 1, 4, 2))
        together = engine.forward(batch, ("logprobs",))["logprobs"]
        alone = [engine.forward(batch.select([row]), ("logprobs",))["logprobs"] for row in range(len(batch))]
        np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-6)

    def test_outputs_do_not_depend_on_micro_batches(self, tmp_path: Path) -> None:
        model, batch = tiny_model(tmp_path), random_batch(19, _LENGTHS)
        whole, *split = (
            self.make(engine_config(model, **caps)).forward(batch, _LM_OUTPUTS) for caps in ({}, _TIGHT, _ONE_BY_ONE)
        )
        for name, column in whole.items():
            assert column[batch["sampled_mask"]].any(), name
            for found in split:
                np.testing.assert_allclose(found[name], column, rtol=1e-6, err_msg=name)

    def test_outputs_of_two_ranks_equal_those_of_one(self, tmp_path: Path, ranks: RankPool) -> None:
        config = engine_config(tiny_model(tmp_path), temperature=0.7, **_TIGHT)
        batch = random_batch(20, (*_LENGTHS, 8))
        rows = [np.array([0, 1, 2, 3, 4, 5, 6]), np.array([7, 8])]  # one rank has more micro-batches
        found = ranks.run(forward_share, self.make, config, [batch.select(own) for own in rows], _LM_OUTPUTS)
        for name, column in self.make(config).forward(batch, _LM_OUTPUTS).items():
            together = np.concatenate([share[name] for share in found])
            np.testing.assert_allclose(together, column, rtol=1e-6, err_msg=name)

    def test_packed_sequences_do_not_see_each_other(self, tmp_path: Path) -> None:
        engine = self.make(engine_config(tiny_model(tmp_path), dtype="fp32"))
        batch = random_batch(3, (3, 2)).with_columns(
            tokens={"sampled_mask": np.array([False, True, True, False, True])}
        )
        ids = batch["input_ids"].copy()
        ids[:3] = (ids[:3] + 1) % 32
        changed = batch.with_columns(tokens={"input_ids": ids})
        first, second = (engine.forward(given, ("logprobs",))["logprobs"] for given in (batch, changed))
        assert (first[1:3] != second[1:3]).all()
        assert first[4] == second[4]
        np.testing.assert_allclose(first[3:], engine.forward(batch.select([1]), ("logprobs",))["logprobs"], atol=1e-5)

    def test_training_equals_a_plain_module(self, tmp_path: Path) -> None:
        optim = OptimConfig(
            lr=1e-2, lr_scheduler_type="cosine", total_training_steps=4, lr_warmup_steps=2, clip_grad=0.1
        )
        config = engine_config(tiny_model(tmp_path), optim=optim, **_TIGHT)
        engine, plain = self.make(config), PlainEngine(config)
        for seed in range(3):
            batch = random_batch(seed, _LENGTHS)
            found = engine.train_batch(batch, PolicyLoss(entropy_coeff=0.1), count(batch))
            expected = plain.train_batch(batch, PolicyLoss(entropy_coeff=0.1), count(batch))
            for name, metric in expected.items():
                np.testing.assert_allclose(found[name].number(), metric.number(), rtol=1e-10, err_msg=name)
        assert_close(full_weights(engine), plain.weights(), 1e-10)

    def test_micro_batches_change_nothing(self, tmp_path: Path) -> None:
        model, batch = tiny_model(tmp_path), random_batch(4, _LENGTHS)
        for dtype, tolerance in (("fp64", 1e-10), ("fp32", 1e-6)):
            results = []
            for caps in ({}, _TIGHT, _ONE_BY_ONE):
                engine = self.make(engine_config(model, dtype, **caps))
                metrics = engine.train_batch(batch, PolicyLoss(entropy_coeff=0.1), count(batch))
                results.append((metrics, full_weights(engine)))
            assert [metrics["micro_batches"].number() for metrics, _ in results] == [1.0, 5.0, 8.0]
            for metrics, weights in results[1:]:
                for name in ("loss", "grad_norm", "logprob"):
                    expected = results[0][0][name].number()
                    np.testing.assert_allclose(metrics[name].number(), expected, rtol=tolerance, err_msg=name)
                if dtype == "fp64":
                    assert_close(weights, results[0][1], tolerance)

    def test_recomputed_activations_change_nothing(self, tmp_path: Path) -> None:
        config, batch = engine_config(tiny_model(tmp_path)), random_batch(5, _LENGTHS)
        kept = replace(config, model=replace(config.model, enable_gradient_checkpointing=False))
        results = []
        for engine in (self.make(config), self.make(kept)):
            engine.train_batch(batch, PolicyLoss(), count(batch))
            results.append(full_weights(engine))
        assert_close(results[0], results[1], 1e-10)

    def test_first_ratio_is_exactly_one(self, tmp_path: Path) -> None:
        batch = random_batch(6, _LENGTHS)
        engine = self.make(engine_config(tiny_model(tmp_path), "fp32", temperature=0.5, **_TIGHT))
        old = engine.forward(batch, ("logprobs", "entropy"))["logprobs"]
        batch = batch.with_columns(tokens={"old_logprobs": old})
        first, second = (engine.train_batch(batch, PolicyLoss(), count(batch)) for _ in range(2))
        assert first["off_policy_tokens"].number() == 0
        assert second["off_policy_tokens"].number() > 0

    def test_value_head_starts_at_zero_and_learns_like_a_plain_module(self, tmp_path: Path) -> None:
        config = engine_config(tiny_model(tmp_path), head="value", temperature=0.5, **_TIGHT)
        engine, plain = self.make(config), PlainEngine(config)
        batch = random_batch(7, _LENGTHS)
        assert not engine.forward(batch, ("values",))["values"].any()
        for _ in range(3):
            found = engine.train_batch(batch, ValueLoss(), count(batch))
            expected = plain.train_batch(batch, ValueLoss(), count(batch))
            np.testing.assert_allclose(found["grad_norm"].number(), expected["grad_norm"].number(), rtol=1e-10)
        assert_close(full_weights(engine), plain.weights(), 1e-10)
        values = engine.forward(batch, ("values",))["values"]
        assert values.any() and not values[~batch["sampled_mask"]].any()
        np.testing.assert_allclose(values, plain.forward(batch, ("values",))["values"], atol=1e-6)

    def test_resuming_equals_going_on(self, tmp_path: Path) -> None:
        optim = OptimConfig(lr=1e-3, lr_warmup_steps=10)
        config = engine_config(tiny_model(tmp_path / "model"), "fp32", optim=optim)
        batch = random_batch(8, _LENGTHS)
        engine = self.make(config)
        for _ in range(5):
            engine.train_batch(batch, PolicyLoss(), count(batch))
        engine.save(tmp_path / "state")
        resumed = self.make(config)
        resumed.load(tmp_path / "state")
        for scale in (-1.0, 1.0):  # a gradient that turns round shows moments that were lost
            metrics = [each.train_batch(batch, PolicyLoss(scale=scale), count(batch)) for each in (engine, resumed)]
            assert _numbers(metrics[0]) == _numbers(metrics[1])
            assert_close(full_weights(resumed), full_weights(engine), 0.0)
        np.testing.assert_allclose(metrics[0]["lr"].number(), 7e-4)

    def test_export_gives_equal_outputs(self, tmp_path: Path) -> None:
        batch = random_batch(9, _LENGTHS)
        for head, loss, tied in (("lm", PolicyLoss(), True), ("lm", PolicyLoss(), False), ("value", ValueLoss(), True)):
            folder = tmp_path / f"{head}-{tied}"
            config = engine_config(tiny_model(folder / "model", tied=tied), "fp32", head=head)
            engine = self.make(config)
            for _ in range(2):
                engine.train_batch(batch, loss, count(batch))
            engine.export(folder / "export")
            again = self.make(replace(config, model=ModelConfig(str(folder / "export"))))
            found, expected = (each.forward(batch, loss.outputs) for each in (again, engine))
            for name, column in expected.items():
                assert column.any()
                np.testing.assert_array_equal(found[name], column)

    def test_weights_have_hugging_face_names_and_are_read_again(self, tmp_path: Path) -> None:
        engine = self.make(engine_config(tiny_model(tmp_path, tied=True), "fp32"))
        source = engine.weights()
        metadata = source.metadata()
        names = [entry.name for entry in metadata]
        assert "model.layers.1.self_attn.q_proj.weight" in names and "model.embed_tokens.weight" in names
        assert "lm_head.weight" not in names  # tied: sent once
        assert source.held_names() == set(names)
        for _ in range(2):
            for entry, (name, weight) in zip(metadata, source, strict=True):
                assert (name, weight.dtype, tuple(weight.shape)) == (entry.name, entry.dtype, entry.shape)
        before = full_weights(engine)
        batch = random_batch(10, _LENGTHS)
        engine.train_batch(batch, PolicyLoss(), count(batch))
        assert all((_full(weight).double().cpu().numpy() != before[name]).any() for name, weight in source)

    def test_gradient_that_is_not_finite_changes_nothing(self, tmp_path: Path) -> None:
        batch = random_batch(11, _LENGTHS)
        config = engine_config(tiny_model(tmp_path), optim=OptimConfig(lr=1e-2, lr_warmup_steps=4))
        engine, untouched = self.make(config), self.make(config)
        for scale in (float("nan"), float("inf")):
            before = full_weights(engine)
            metrics = engine.train_batch(batch, PolicyLoss(scale=scale), count(batch))
            assert metrics["grad_norm_nonfinite"].number() == 1.0 and metrics["lr"].number() == 0.0
            assert_close(full_weights(engine), before, 0.0)
        # Moments, schedule and gradients are as if nothing had happened.
        results = [each.train_batch(batch, PolicyLoss(), count(batch)) for each in (engine, untouched)]
        assert _numbers(results[0]) == _numbers(results[1])
        assert results[0]["grad_norm_nonfinite"].number() == 0.0 and results[0]["lr"].number() == 2.5e-3
        assert_close(full_weights(engine), full_weights(untouched), 0.0)

    def test_batch_without_trained_tokens_takes_no_step(self, tmp_path: Path) -> None:
        batch = random_batch(12, _LENGTHS)
        engine = self.make(
            engine_config(tiny_model(tmp_path), optim=OptimConfig(lr=0.1, weight_decay=0.1, lr_warmup_steps=4))
        )
        engine.train_batch(batch, PolicyLoss(), count(batch))  # moments that a step without gradient would act on
        before = full_weights(engine)
        empty = batch.with_columns(tokens={"loss_mask": np.zeros(batch.num_tokens, bool)})
        metrics = engine.train_batch(empty, PolicyLoss(), count(empty))
        assert metrics["grad_norm"].number() == 0.0 and metrics["lr"].number() == 0.0
        assert_close(full_weights(engine), before, 0.0)
        assert engine.train_batch(batch, PolicyLoss(), count(batch))["lr"].number() == 0.05

    def test_micro_batch_without_sampled_tokens_is_fine(self, tmp_path: Path) -> None:
        config = engine_config(tiny_model(tmp_path), **_ONE_BY_ONE)
        batch = random_batch(13, (4, 5))
        mask = batch["sampled_mask"] & (np.arange(9) >= 4)
        batch = batch.with_columns(tokens={"sampled_mask": mask, "loss_mask": mask})
        found = self.make(config).train_batch(batch, PolicyLoss(entropy_coeff=0.1), count(batch))
        expected = PlainEngine(config).train_batch(batch, PolicyLoss(entropy_coeff=0.1), count(batch))
        np.testing.assert_allclose(found["grad_norm"].number(), expected["grad_norm"].number(), rtol=1e-10)

    def test_offloaded_parts_are_refused_and_come_back(self, tmp_path: Path) -> None:
        batch = random_batch(14, _LENGTHS)
        engine = self.make(engine_config(tiny_model(tmp_path), "fp32"))
        engine.train_batch(batch, PolicyLoss(), count(batch))
        before = engine.forward(batch, ("logprobs",))["logprobs"]
        engine.offload(("optimizer", "grads"))
        np.testing.assert_array_equal(engine.forward(batch, ("logprobs",))["logprobs"], before)
        _raises(EngineError, "onload", lambda: engine.train_batch(batch, PolicyLoss(), count(batch)))
        engine.offload(("params",))
        _raises(EngineError, "onload", lambda: engine.forward(batch, ("logprobs",)))
        engine.onload(("params", "optimizer"))
        np.testing.assert_array_equal(engine.forward(batch, ("logprobs",))["logprobs"], before)
        assert engine.train_batch(batch, PolicyLoss(), count(batch))["lr"].number() > 0

    def test_two_ranks_equal_one(self, tmp_path: Path, ranks: RankPool) -> None:
        model, batch = tiny_model(tmp_path), random_batch(15, _LENGTHS)
        shares = [batch.select(rows) for rows in batch.split(2)]
        losses = [PolicyLoss(entropy_coeff=0.1), PolicyLoss(scale=-1.0)]
        for dtype, tolerance in (("fp64", 1e-10), ("fp32", 1e-6)):
            config = engine_config(model, dtype, **_TIGHT)
            engine = self.make(config)
            alone = [engine.train_batch(batch, loss, count(batch)) for loss in losses[: 2 if dtype == "fp64" else 1]]
            results = ranks.run(train_share, self.make, config, shares, losses[: len(alone)], count(batch))
            for step, expected in enumerate(alone):
                found = merge_metrics(metrics[step] for metrics, _, _ in results)
                for name, metric in _numbers(expected).items():
                    if name != "micro_batches":
                        np.testing.assert_allclose(found[name].number(), metric.number(), rtol=tolerance, err_msg=name)
            for _, _, weights in results if dtype == "fp64" else ():
                assert_close(weights, full_weights(engine), tolerance)

    def test_ranks_with_fewer_micro_batches_wait_without_effect(self, tmp_path: Path, ranks: RankPool) -> None:
        config = engine_config(tiny_model(tmp_path), max_tokens_per_micro_batch=8)
        batch = random_batch(16, (8, 8, 8, 2))
        shares = [batch.select([0, 1, 2]), batch.select([3])]
        results = ranks.run(train_share, self.make, config, shares, [PolicyLoss()], count(batch))
        assert [metrics[0]["micro_batches"].number() for metrics, _, _ in results] == [3.0, 1.0]
        plain = PlainEngine(config)
        expected = plain.train_batch(batch, PolicyLoss(), count(batch))
        total = merge_metrics(metrics[0] for metrics, _, _ in results)["loss"].number()
        np.testing.assert_allclose(total, expected["loss"].number(), rtol=1e-10)
        assert_close(results[1][2], plain.weights(), 1e-10)

    def test_gradient_that_is_not_finite_on_one_rank_stops_all(self, tmp_path: Path, ranks: RankPool) -> None:
        config = engine_config(tiny_model(tmp_path))
        batch = random_batch(17, (4, 5))
        poison = np.where(np.arange(9) < 4, np.float32("nan"), batch["advantages"])
        batch = batch.with_columns(tokens={"advantages": poison})
        shares = [batch.select([0]), batch.select([1])]
        for metrics, before, after in ranks.run(train_share, self.make, config, shares, [PolicyLoss()], count(batch)):
            assert metrics[0]["grad_norm_nonfinite"].number() == 1.0
            assert_close(after, before, 0.0)

    def test_checkpoint_of_two_ranks_goes_on_at_one(self, tmp_path: Path, ranks: RankPool) -> None:
        config, batch = engine_config(tiny_model(tmp_path / "model")), random_batch(18, _LENGTHS)
        shares = [batch.select(rows) for rows in batch.split(2)]
        after = ranks.run(save_share, self.make, config, shares, count(batch), tmp_path)
        engine = self.make(config)
        engine.load(tmp_path / "state")
        exported = self.make(replace(config, model=ModelConfig(str(tmp_path / "export"))))
        assert_close(full_weights(exported), full_weights(engine), 0.0)
        engine.train_batch(batch, PolicyLoss(scale=-1.0), count(batch))
        assert_close(full_weights(engine), after[0], 1e-10)


def _numbers(metrics: Metrics) -> Metrics:
    """Return what was computed, without the memory that it took."""
    return {name: metric for name, metric in metrics.items() if not name.startswith("perf/")}


def _raises(kind: type[Exception], text: str, call: Callable[[], Any]) -> None:
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"{kind.__name__} was not raised")
