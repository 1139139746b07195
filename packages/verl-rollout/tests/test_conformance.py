import os
from pathlib import Path

import pytest
from verl_rollout import HfRollout
from verl_rollout.testing import CHECKS, Check

DEVICE = os.environ.get("VERL_TEST_DEVICE", "cpu")
SMALL_WAVES = (
    "one_completion_per_request",
    "logprobs_are_the_models",
    "responses_do_not_depend_on_the_batch",
    "streams_give_the_same_completions",
)
CASES = [(check, 256) for check in CHECKS] + [(check, 2) for check in CHECKS if check.__name__ in SMALL_WAVES]


@pytest.mark.parametrize(("check", "max_num_seqs"), CASES, ids=[f"{check.__name__}-{size}" for check, size in CASES])
def test_the_hf_engine_conforms(check: Check, max_num_seqs: int, tmp_path: Path) -> None:
    check(
        lambda folder: HfRollout(folder, device=DEVICE, dtype="float32", max_num_seqs=max_num_seqs),
        tmp_path,
    )
