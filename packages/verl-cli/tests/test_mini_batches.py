import numpy as np
from verl_cli.controller import LocalController, RoleSpec
from verl_cli.losses import SftLoss
from verl_cli.mini_batches import forward, mini_batches, train
from verl_cli.phases import Step
from verl_data import PackedBatch
from verl_engine import Denominators, Metric, Metrics


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
    """Gives back the tokens as log-probs, and the next of the given metrics for each mini-batch."""

    def __init__(self, metrics: list[Metrics]) -> None:
        self.metrics = metrics
        self.denominators: list[Denominators] = []

    def forward(self, batch: PackedBatch, outputs: tuple[str, ...]) -> dict[str, np.ndarray]:
        return {name: np.asarray(batch["input_ids"]).astype(np.float32) for name in outputs}

    def train_batch(self, batch: PackedBatch, loss: object, denominators: Denominators) -> Metrics:
        self.denominators.append(denominators)
        return self.metrics[len(self.denominators) - 1]


def test_columns_come_back_in_the_order_of_the_batch() -> None:
    step = step_of([0, 1, 2, 0, 1, 2])
    workers = LocalController().start({"actor": RoleSpec(Engine, {"metrics": []})})["actor"]
    columns = forward(workers, step.batch, mini_batches(step, 1, shuffle_seed=5), ("logprobs",))
    np.testing.assert_array_equal(columns["logprobs"], step.batch["input_ids"])


def test_the_metrics_of_several_optimiser_steps_are_reduced_as_they_declare() -> None:
    step = step_of([0, 0, 1, 1])
    engine = Engine(
        [
            {
                "loss": Metric(2.0, "sum", over_steps="mean"),
                "clip": Metric.mean(1.0, 4.0),
                "lr": Metric(1.0, "last"),
                "min_max": Metric(3.0, "sum"),
            },
            {
                "loss": Metric(4.0, "sum", over_steps="mean"),
                "clip": Metric.mean(6.0, 6.0),
                "lr": Metric(0.5, "last"),
                "min_max": Metric(4.0, "sum"),
            },
        ]
    )
    workers = LocalController().start({"actor": RoleSpec(lambda: engine, {})})["actor"]
    metrics = train(workers, step.batch, mini_batches(step, 1, shuffle_seed=None), SftLoss(), 1)
    assert metrics == {"actor/loss": 3.0, "actor/clip": 0.7, "actor/lr": 0.5, "actor/min_max": 7.0}
    assert [tuple(d) for d in engine.denominators] == [(2.0, 2.0), (2.0, 2.0)]
