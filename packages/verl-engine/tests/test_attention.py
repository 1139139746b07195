from typing import Any

import pytest
import torch
from verl_engine.attention import packed_attention

LENGTHS = (4, 1, 7, 3)
MODULE = torch.nn.Identity()


def draw(seed: int, heads: int, tokens: int = sum(LENGTHS), size: int = 8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, heads, tokens, size, generator=generator, dtype=torch.float64)


def boundaries() -> dict[str, Any]:
    cu = torch.tensor([0, *LENGTHS]).cumsum(0).to(torch.int32)
    return {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu, "max_length_q": max(LENGTHS), "max_length_k": max(LENGTHS)}


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: int) -> torch.Tensor:
    """Attention by its definition over one block-diagonal, lower-triangular matrix."""
    sequence = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    place = torch.arange(len(sequence))
    age = place[:, None] - place[None, :]
    allowed = (sequence[:, None] == sequence[None, :]) & (age >= 0) & (age < window)
    k, v = (states.repeat_interleave(q.shape[1] // k.shape[1], 1) for states in (k, v))
    scores = (q @ k.transpose(-1, -2) * scale).masked_fill(~allowed, -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2)


@pytest.mark.parametrize("window", [None, 1, 3, 100])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_equals_the_definition(window: int | None, kv_heads: int) -> None:
    q, k, v = (draw(seed, heads).requires_grad_() for seed, heads in enumerate((4, kv_heads, kv_heads)))
    found, weights = packed_attention(MODULE, q, k, v, None, scaling=0.3, sliding_window=window, **boundaries())
    expected = reference(q, k, v, 0.3, window or 1000)
    assert weights is None
    torch.testing.assert_close(found, expected)
    toward = draw(9, 4).transpose(1, 2)
    for one, other in zip(
        torch.autograd.grad(found, (q, k, v), toward), torch.autograd.grad(expected, (q, k, v), toward), strict=True
    ):
        torch.testing.assert_close(one, other)


def test_other_sequences_have_no_influence_at_all() -> None:
    q, k, v = (draw(seed, 2).float() for seed in range(3))
    before, _ = packed_attention(MODULE, q, k, v, None, **boundaries())
    for states in (q, k, v):
        states[:, :, : LENGTHS[0]] += 1
    after, _ = packed_attention(MODULE, q, k, v, None, **boundaries())
    assert torch.equal(before[:, LENGTHS[0] :], after[:, LENGTHS[0] :])
    assert not torch.equal(before, after)


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"softcap": 50.0}, "softcap"),
        ({"s_aux": torch.zeros(2)}, "s_aux"),
        ({"position_bias": torch.zeros(1)}, "position_bias"),
        ({"dropout": 0.1}, "dropout"),
        ({"is_causal": False}, "bidirectional"),
        ({"attention_mask": torch.zeros(1)}, "attention_mask"),
        ({"cu_seq_lens_q": None}, "boundaries of the packed sequences"),
    ],
)
def test_what_it_does_not_compute_is_refused(asked: dict[str, Any], named: str) -> None:
    q, k, v = (draw(seed, 2) for seed in range(3))
    with pytest.raises(ValueError, match=named):
        packed_attention(MODULE, q, k, v, **({"attention_mask": None} | boundaries() | asked))
