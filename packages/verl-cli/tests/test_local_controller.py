from typing import Any

import numpy as np
import pytest
from verl_cli.controller import LocalController, RoleSpec
from verl_data import PackedBatch


class Worker:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def scale(self, batch: PackedBatch, column: str) -> np.ndarray:
        return np.asarray(batch[column]) * self.factor

    def writable(self, batch: PackedBatch) -> bool:
        return bool(batch.tokens["values"].flags.writeable)

    def fail(self) -> None:
        raise RuntimeError("the worker failed")

    def give(self, value: Any) -> Any:
        return value


@pytest.fixture(params=[False, True], ids=["direct", "through pickle"])
def controller(request: pytest.FixtureRequest) -> LocalController:
    return LocalController(through_pickle=request.param)


def batch() -> PackedBatch:
    return PackedBatch.from_sequences({"values": [[1.0, 2.0], [3.0]]})


def test_a_call_gives_the_share_and_the_arguments_to_the_worker(controller: LocalController) -> None:
    workers = controller.start({"critic": RoleSpec(Worker, {"factor": 2.0})})["critic"]
    np.testing.assert_array_equal(workers.call("scale", batch(), column="values"), [2.0, 4.0, 6.0])
    assert (workers.role, workers.world_size) == ("critic", 1)


def test_arrays_arrive_read_only(controller: LocalController) -> None:
    workers = controller.start({"critic": RoleSpec(Worker, {"factor": 1.0})})["critic"]
    assert workers.call("writable", batch()) is False


def test_a_workers_exception_is_raised_at_the_call(controller: LocalController) -> None:
    workers = controller.start({"critic": RoleSpec(Worker, {"factor": 1.0})})["critic"]
    with pytest.raises(RuntimeError, match="the worker failed"):
        workers.call("fail")


def test_what_cannot_travel_is_found_out_by_pickle() -> None:
    workers = LocalController(through_pickle=True).start({"critic": RoleSpec(Worker, {"factor": 1.0})})["critic"]
    with pytest.raises((AttributeError, TypeError), match="pickle"):
        workers.call("give", value=lambda: None)
