"""What only a GPU shows: the flash kernel in bfloat16 and memory that offloading gives back."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from verl_engine import EngineConfig, FsdpConfig, FsdpEngine, ModelConfig
from verl_engine.attention import packed_attention
from verl_engine.testing import PolicyLoss, count, random_batch, tiny_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

LENGTHS = (50, 3, 90, 41, 2, 170, 33, 64)


def config(folder: Path) -> EngineConfig:
    model = tiny_model(folder, hidden_size=256, heads=4, kv_heads=2)
    return EngineConfig(ModelConfig(str(model)), device="cuda", max_tokens_per_micro_batch=200)


@pytest.mark.parametrize("window", [None, 1, 16])
def test_flash_kernel_equals_padded_rows(window: int | None) -> None:
    cu = torch.tensor([0, *LENGTHS], device="cuda").cumsum(0).to(torch.int32)
    places: dict[str, Any] = {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu}
    places |= {"max_length_q": max(LENGTHS), "max_length_k": max(LENGTHS), "sliding_window": window}
    generator = torch.Generator("cuda").manual_seed(0)
    size = (sum(LENGTHS), 64)
    q, k, v = (torch.randn(1, heads, *size, device="cuda", generator=generator).bfloat16() for heads in (4, 2, 2))
    module = torch.nn.Identity()
    found = packed_attention(module, q, k, v, None, **places)[0].float()
    expected = packed_attention(module, q.float(), k.float(), v.float(), None, **places)[0]
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


def test_first_ratio_is_exactly_one_in_bfloat16(tmp_path: Path) -> None:
    engine = FsdpEngine(config(tmp_path))
    batch = random_batch(0, LENGTHS)
    old = engine.forward(batch, ("logprobs",))["logprobs"]
    batch = batch.with_columns(tokens={"old_logprobs": old})
    metrics = engine.train_batch(batch, PolicyLoss(), count(batch))
    assert metrics["off_policy_tokens"].number() == 0
    assert metrics["perf/max_memory_allocated_gb"].number() > 0


def test_bfloat16_is_close_to_float32(tmp_path: Path) -> None:
    half = config(tmp_path)
    batch = random_batch(1, LENGTHS)
    found, expected = (
        FsdpEngine(each).forward(batch, ("logprobs",))["logprobs"]
        for each in (half, replace(half, fsdp=FsdpConfig(dtype="fp32")))
    )
    assert np.abs(found - expected).max() < 0.1
    assert np.abs(found - expected).mean() < 0.02


def test_offloading_gives_memory_back_and_changes_nothing(tmp_path: Path) -> None:
    engine, untouched = (FsdpEngine(replace(config(tmp_path), device="cuda")) for _ in range(2))
    batch = random_batch(2, LENGTHS)
    for each in (engine, untouched):
        each.train_batch(batch, PolicyLoss(), count(batch))
    before = torch.cuda.memory_allocated()
    engine.offload(("params", "grads", "optimizer"))
    parameters = sum(int(np.prod(entry.shape)) for entry in untouched.weights().metadata())
    assert before - torch.cuda.memory_allocated() >= 3 * 4 * parameters
    engine.onload(("params", "optimizer"))
    metrics = [each.train_batch(batch, PolicyLoss(), count(batch)) for each in (engine, untouched)]
    assert metrics[0]["logprob"] == metrics[1]["logprob"]
