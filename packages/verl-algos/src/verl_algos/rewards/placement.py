"""From one reward per sequence to rewards per token."""

import torch
from torch import Tensor

from verl_algos._layout import Layout, check_sequence_column


def place_rewards(reward: Tensor, mask: Tensor, cu_seqlens: Tensor | None = None) -> tuple[Tensor, int]:
    """Write each sequence's reward to its last sampled token.

    Args:
        reward: (N,); NaN for a sequence that was not scored.
        mask: the sampled tokens, (B, T), or (T,) with cu_seqlens.
        cu_seqlens: (N+1,) offsets of packed sequences.

    Returns:
        Token rewards in the shape of mask, 0 elsewhere, and the number of sequences without a sampled token, whose
        reward has no place.

    Raises:
        ValueError: shapes disagree.
    """
    layout = Layout.of(mask, cu_seqlens, sampled_mask=mask)
    check_sequence_column("reward", reward, layout)
    counts = layout.counts()
    sampled = counts > 0
    last = layout.compact(torch.arange(mask.numel(), device=mask.device).view(mask.shape))[
        counts.cumsum(0)[sampled] - 1
    ]
    token_rewards = reward.new_zeros(mask.numel()).index_copy(0, last, reward[sampled])
    return token_rewards.view(mask.shape), int((~sampled).sum())
