from collections.abc import Iterator

import pytest
import torch
from verl_engine import FsdpEngine
from verl_engine.testing import EngineConformance, RankPool, suite_device


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    if suite_device() == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("two ranks need two GPUs")
    with RankPool(2, suite_device()) as pool:
        yield pool


class TestFsdp(EngineConformance):
    make = FsdpEngine
