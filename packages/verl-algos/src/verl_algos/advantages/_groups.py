"""Sequences of one prompt compared with each other: which of them vote, and statistics over those that do."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verl_algos._finite import narrowed
from verl_algos._ids import numbered
from verl_algos._layout import Layout, check_device, is_whole
from verl_algos.advantages._blocks import LARGEST, blocks, refuse
from verl_algos.masked import VARIANCE_EPSILON

STD_EPSILON = 1e-6
"""Added to the standard deviation of a group, as published; never to the variance, which would damp small ones."""

#: Which prompt each of the N sequences belongs to: an integer tensor (N,), or N whole numbers or strings.
GroupIds = Tensor | Sequence[int | str]


def group_numbers(group: GroupIds, like: Tensor) -> Tensor:
    """The ids of `group` as integers (N,), equal where the ids are equal, beside `like` (N,).

    Raises:
        ValueError: there are not N ids, or they are no ids: floating-point numbers (equal prompts may differ by
            rounding, and NaN differs from itself), flags, or None.
    """
    if not isinstance(group, Tensor):
        return _numbered(group, like)
    if group.shape != like.shape:
        raise ValueError(
            f"group has shape {tuple(group.shape)} but there are {len(like)} sequences: it needs one id per sequence, "
            f"shape ({len(like)},)."
        )
    if not is_whole(group):
        raise ValueError(
            f"group has dtype {group.dtype}, but its entries are the ids of prompts and are compared for equality: "
            "pass an integer tensor, or a list of whole numbers or strings."
        )
    check_device("group", group, "the token columns", like)
    return group.long()


def _numbered(group: Sequence[int | str], like: Tensor) -> Tensor:
    ids = list(group) if isinstance(group, Iterable) and not isinstance(group, str | bytes | Mapping) else None
    if ids is None or len(ids) != len(like):
        raise ValueError(
            f"group is a {type(group).__name__}{'' if ids is None else f' of {len(ids)} entries'} but there are "
            f"{len(like)} sequences: it is an integer tensor ({len(like)},), or a list of as many whole numbers or "
            "strings."
        )
    return torch.tensor(numbered(ids), dtype=torch.int64, device=like.device)


@dataclass(frozen=True)
class Groups:
    """The groups of N sequences. Only scored sequences enter statistics."""

    members: Tensor
    """The group of each sequence as an index, int64 (N,)."""
    scored: Tensor
    """Bool (N,)."""
    sizes: Tensor
    """Scored sequences of each group, int64 (G,)."""

    @classmethod
    def of(cls, group: GroupIds, scored: Tensor) -> "Groups":
        """Group sequences by equal ids in `group` (see `group_numbers`), wherever they stand.

        Raises:
            ValueError: it holds something else than ids, or not one for every sequence.
        """
        values, members = torch.unique(group_numbers(group, scored), return_inverse=True)
        sizes = torch.zeros_like(values, dtype=torch.int64).index_add(0, members, scored.long())
        return cls(members, scored, sizes)

    @property
    def compared(self) -> Tensor:
        """Scored sequences whose group has another one, bool (N,)."""
        return self.scored & (self.sizes > 1)[self.members]

    @property
    def alone(self) -> Tensor:
        """Scored sequences whose group has no other one, bool (N,)."""
        return self.scored & (self.sizes == 1)[self.members]

    def sums(self, per_sequence: Tensor) -> Tensor:
        """Sum over the scored sequences of each group, (G,)."""
        selected = torch.where(self.scored, per_sequence, 0)
        return selected.new_zeros(self.sizes.shape).index_add(0, self.members, selected)

    def centred(self, rewards: Tensor, weights: Tensor | None = None) -> Tensor:
        """Rewards less the mean of their group, weighted by `weights` (N,) if given; 0 where not scored.

        Exactly 0 in a group of equal rewards, whose mean need not round to them: statistics are taken of the
        differences to the group's least reward.
        """
        selected = torch.where(self.scored, rewards, torch.inf)
        least = selected.new_full(self.sizes.shape, torch.inf).scatter_reduce(0, self.members, selected, "amin")
        above = torch.where(self.scored, rewards - least[self.members], 0.0)
        if weights is None:
            means = self.sums(above) / self.sizes.clamp(min=1)
        else:
            total = self.sums(weights.to(above.dtype))
            means = self.sums(above * weights) / torch.where(total > 0, total, 1.0)
        return torch.where(self.scored, above - means[self.members], 0.0)

    def stds(self, centred: Tensor) -> Tensor:
        """Unbiased standard deviation of each group, for every sequence of it (N,); 0 for fewer than two."""
        variances = self.sums(centred.square()) / (self.sizes - 1).clamp(min=1)
        return variances.sqrt()[self.members]

    def two_best(self, per_sequence: Tensor) -> tuple[Tensor, Tensor]:
        """Of each group with at least two scored sequences the first and the second by `per_sequence`, as indices
        (N', 2) into the batch, and those groups (N',)."""
        candidates = self.compared.nonzero().squeeze(1)
        falling = candidates[per_sequence[candidates].argsort(descending=True, stable=True)]
        ordered = falling[self.members[falling].argsort(stable=True)]
        several = (self.sizes > 1).nonzero().squeeze(1)
        starts = self.sizes[several].cumsum(0) - self.sizes[several]
        return torch.stack([ordered[starts], ordered[starts + 1]], dim=1), several


@dataclass(frozen=True)
class Outcomes:
    """The reward of each sequence of a batch, as far as it is known."""

    layout: Layout
    rewards: Tensor
    """float64 (N,): the sum over the valid tokens; 0 where not scored."""
    scored: Tensor
    """Bool (N,): sequences that have a valid token and no NaN among the rewards of their valid tokens."""
    lengths: Tensor
    """Valid tokens, int64 (N,)."""
    dtype: torch.dtype
    """Of the results."""

    @classmethod
    def of(
        cls, token_rewards: Tensor, mask: Tensor | None, cu_seqlens: Tensor | None, **columns: Tensor | None
    ) -> "Outcomes":
        """Add up the rewards; `columns` are further token columns, whose shapes are checked, or None.

        Raises:
            ValueError: shapes disagree or the reward of a sequence is infinite (`NonFiniteError`).
        """
        given = {name: column for name, column in columns.items() if column is not None}
        layout = Layout.of(mask, cu_seqlens, token_rewards=token_rewards, **given)
        rewards = token_rewards.new_empty(layout.num_sequences, dtype=torch.float64)
        lengths = torch.zeros_like(rewards, dtype=torch.int64)
        for block in blocks(layout):
            rewards[block.sequences] = block.layout.sums(token_rewards[block.part])
            lengths[block.sequences] = block.counts
        refuse("token_rewards, summed over each sequence,", rewards, rewards.isinf())
        scored = (lengths > 0) & ~rewards.isnan()
        dtype = torch.promote_types(token_rewards.dtype, torch.float32)
        return cls(layout, torch.where(scored, rewards, 0.0).clamp_(-LARGEST, LARGEST), scored, lengths, dtype)

    def groups(self, group: GroupIds) -> Groups:
        """The scored sequences by prompt."""
        return Groups.of(group, self.scored)

    def whitened(self, per_sequence: Tensor, voting: Tensor) -> Tensor:
        """`per_sequence` (N,) with mean 0 and variance 1 over the valid tokens of the `voting` sequences, 0 for others:
        `masked.masked_whiten` of what every token receives."""
        weights = torch.where(voting, self.lengths, 0).to(per_sequence.dtype)
        tokens = weights.sum()
        centred = per_sequence - (weights * per_sequence).sum() / tokens.clamp(min=1)
        variance = (weights * centred.square()).sum() / (tokens - 1).clamp(min=1)
        return torch.where(voting, centred * torch.rsqrt(variance + VARIANCE_EPSILON), 0.0)

    def spread(self, per_sequence: Tensor) -> tuple[Tensor, Tensor]:
        """Advantages in which every valid token has its sequence's number; and, equal to them, returns."""
        advantages = torch.empty(self.layout.mask.shape, dtype=self.dtype, device=self.layout.mask.device)
        numbers = narrowed(per_sequence, self.dtype)
        for block in blocks(self.layout):
            advantages[block.part] = block.layout.spread(numbers[block.sequences])
        return advantages, advantages.clone()
