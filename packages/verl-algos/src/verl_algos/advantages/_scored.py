"""What a trainer counts: sequences without a score, and groups with only one."""

import torch
from torch import Tensor

from verl_algos._layout import Layout, as_mask
from verl_algos.advantages._groups import GroupIds, Groups


def scored_sequences(token_rewards: Tensor, mask: Tensor | None = None, cu_seqlens: Tensor | None = None) -> Tensor:
    """Sequences that have a valid token and no NaN among the rewards of their valid tokens, bool (N,).

    The others do not enter group statistics; clear their loss mask before counting denominators.
    """
    layout = Layout.of(mask, cu_seqlens, token_rewards=token_rewards)
    return (layout.counts() > 0) & ~layout.sums(token_rewards).isnan()


def singleton_groups(group: GroupIds, scored: Tensor | None = None) -> int:
    """The number of groups with exactly one scored sequence: group-relative estimators learn nothing from these.

    Args:
        group: integer (N,), or a list of N whole numbers or strings.
        scored: bool (N,) as from `scored_sequences`; all of them if None.
    """
    if scored is None:
        device = group.device if isinstance(group, Tensor) else None
        scored = torch.ones(len(group), dtype=torch.bool, device=device)
    return int((Groups.of(group, as_mask("scored", scored)).sizes == 1).sum())
