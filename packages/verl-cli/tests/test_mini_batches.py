from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from verl_cli.controller import LocalController, RoleSpec
from verl_cli.losses import SftLoss
from verl_cli.mini_batches import forward, mini_batches, train
from verl_cli.phases import Step
from verl_data import PackedBatch
from verl_engine import Denominators


def step_of(groups: list[int]) -> Step:
    batch = PackedBatch.from_sequences(
        {
            "input_ids": [[group * 10 + i, 1] for i, group in enumerate(groups)],
            "loss_mask": [[False, True]] * len(groups),
        },
        sequences={"group": np.array(groups)},
    )
    return Step(number=3, epoch=0, prompts=[], batch=batch)


def test_a_mini_batch_is_all_responses_of_its_prompts() -> None:
    rows = mini_batches(step_of([0, 0, 1, 1, 2, 2, 3, 3]), 2, shuffle_seed=None)
    assert [list(part) for part in rows] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_groups_are_found_by_their_number_not_by_their_place() -> None:
    rows = mini_batches(step_of([0, 1, 2, 0, 1, 2]), 1, shuffle_seed=None)
    assert [list(part) for part in rows] == [[0, 3], [1, 4], [2, 5]]


def test_shuffling_moves_whole_groups_and_is_the_same_each_time_it_is_asked() -> None:
    step = step_of([g for g in range(20) for _ in range(2)])
    shuffled = mini_batches(step, 4, shuffle_seed=7)
    again = mini_batches(step, 4, shuffle_seed=7)
    assert [list(part) for part in shuffled] == [list(part) for part in again]
    assert [list(part) for part in shuffled] != [list(part) for part in mini_batches(step, 4, shuffle_seed=8)]
    assert sorted(np.concatenate(shuffled)) == list(range(40))
    for part in shuffled:
        groups = np.asarray(step.batch["group"])[part]
        assert all((groups == group).sum() == 2 for group in set(groups))


class Engine:
    """Gives back the tokens as log-probs, and one metric of each kind per call."""

    def __init__(self, terms: list[Mapping[str, Any]]) -> None:
        self.terms = terms
        self.denominators: list[Denominators] = []

    def forward(self, batch: PackedBatch, outputs: tuple[str, ...]) -> dict[str, np.ndarray]:
        return {name: np.asarray(batch["input_ids"]).astype(np.float32) for name in outputs}

    def train_batch(self, batch: PackedBatch, loss: object, denominators: Denominators) -> Mapping[str, Any]:
        self.denominators.append(denominators)
        return self.terms[len(self.denominators) - 1]


def test_columns_come_back_in_the_order_of_the_batch() -> None:
    step = step_of([0, 1, 2, 0, 1, 2])
    workers = LocalController().start({"actor": RoleSpec(Engine, {"terms": []})})["actor"]
    columns = forward(workers, step.batch, mini_batches(step, 1, shuffle_seed=5), ("logprobs",))
    np.testing.assert_array_equal(columns["logprobs"], step.batch["input_ids"])


def test_metrics_are_means_over_optimiser_steps_of_sums_over_their_counts() -> None:
    step = step_of([0, 0, 1, 1])
    engine = Engine([{"loss": (2.0, None), "clip": (1.0, 4.0)}, {"loss": (4.0, None), "clip": (3.0, 4.0)}])
    workers = LocalController().start({"actor": RoleSpec(lambda: engine, {})})["actor"]
    metrics = train(workers, step.batch, mini_batches(step, 1, shuffle_seed=None), SftLoss(), 1)
    assert metrics == {"actor/loss": pytest.approx(3.0), "actor/clip": pytest.approx(0.5)}
    assert [tuple(d) for d in engine.denominators] == [(2.0, 2.0), (2.0, 2.0)]
