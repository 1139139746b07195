"""Estimators that compare the rewards of one prompt's sequences; every token of a sequence receives the same number.

Sequences without a valid token, and those that were not scored (NaN), do not vote and receive 0. So does the only
scored sequence of a group, as nothing says whether its reward is good: count these with `singleton_groups`.
"""

import torch
from torch import Tensor

from verl_algos.advantages._groups import STD_EPSILON, GroupIds, Groups, Outcomes


@torch.no_grad()
def grpo(
    *,
    token_rewards: Tensor,
    group: GroupIds,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    norm_by_std: bool = True,
    compat: bool = False,
) -> tuple[Tensor, Tensor]:
    """GRPO (Shao et al. 2024, arXiv:2402.03300); without std Dr. GRPO (Liu et al. 2025, arXiv:2503.20783).

    ``A_i = (r_i - mean_group) / (std_group + 1e-6)`` with r_i the sum of sequence i's valid token rewards and the
    unbiased std; every valid token of the sequence receives it. Only sequences that have a valid token and a reward
    (see `scored_sequences`) enter mean and std; the others receive 0, as does the only such sequence of a group.

    Args:
        token_rewards: (B, T) or (T,); NaN at a valid token marks the sequence as not scored.
        group: integer (N,), or a list of N whole numbers or strings; sequences with the same id are of one prompt, in
            whatever order they stand.
        mask: shape of token_rewards, the sampled tokens; all of them if None.
        cu_seqlens: (N+1,) offsets of packed sequences.
        norm_by_std: divide by the group's std.
        compat: the only scored sequence of a group receives its reward (/ (1 + 1e-6) with `norm_by_std`), as in the
            original.

    Returns:
        Advantages and, equal to them, returns: there is no critic to fit.

    Raises:
        ValueError: shapes disagree or the reward of a sequence is infinite (`NonFiniteError`).
    """
    outcomes = Outcomes.of(token_rewards, mask, cu_seqlens)
    return outcomes.spread(normalised(outcomes.rewards, outcomes.groups(group), norm_by_std, compat))


@torch.no_grad()
def grpo_passk(
    *,
    token_rewards: Tensor,
    group: GroupIds,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    norm_by_std: bool = True,
    compat: bool = False,
) -> tuple[Tensor, Tensor]:
    """Policy gradient of the best of k (Tang et al. 2025, arXiv:2503.19595): only the best sequence of a group learns.

    ``A_best = (r_best - r_second) / (std_group + 1e-6)``, all others 0: a leave-one-out estimate of max over the
    group. If the best reward occurs twice, all receive 0.

    Args:
        token_rewards, group, mask, cu_seqlens: see `grpo`.
        norm_by_std: divide by the group's std.
        compat: refuse a group with only one scored sequence, as the original does, instead of giving it 0.

    Returns:
        Advantages and, equal to them, returns.

    Raises:
        ValueError: shapes disagree, the reward of a sequence is infinite (`NonFiniteError`), or `compat` meets a group
            with one scored sequence.
    """
    outcomes = Outcomes.of(token_rewards, mask, cu_seqlens)
    groups = outcomes.groups(group)
    if compat and groups.alone.any():
        raise ValueError(
            f"{int(groups.alone.sum())} groups have only one scored sequence, but grpo_passk compares the best with "
            "the second: sample two or more responses per prompt, or leave compat out to give such a sequence 0."
        )
    pairs, _ = groups.two_best(outcomes.rewards)
    best, second = outcomes.rewards[pairs].unbind(1)
    lead = best - second
    if norm_by_std:
        lead = lead / (groups.stds(groups.centred(outcomes.rewards)) + STD_EPSILON)[pairs[:, 0]]
    return outcomes.spread(torch.zeros_like(outcomes.rewards).index_copy(0, pairs[:, 0], lead))


@torch.no_grad()
def rloo(
    *,
    token_rewards: Tensor,
    group: GroupIds,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    compat: bool = False,
) -> tuple[Tensor, Tensor]:
    """REINFORCE leave-one-out (Ahmadian et al. 2024, arXiv:2402.14740; Kool et al. 2019).

    ``A_i = r_i - mean of the other rewards of the group = n / (n - 1) (r_i - mean_group)``.

    Args:
        token_rewards, group, mask, cu_seqlens: see `grpo`.
        compat: the only scored sequence of a group receives its reward, as in the original's `rloo` (its
            `rloo_vectorized` gives 0, as here without `compat`).

    Returns:
        Advantages and, equal to them, returns.

    Raises:
        ValueError: shapes disagree or the reward of a sequence is infinite (`NonFiniteError`).
    """
    outcomes = Outcomes.of(token_rewards, mask, cu_seqlens)
    groups = outcomes.groups(group)
    sizes = groups.sizes[groups.members].double()
    per_sequence = groups.centred(outcomes.rewards) * (sizes / (sizes - 1).clamp(min=1))
    return outcomes.spread(_alone_as_is(per_sequence, outcomes.rewards, groups, compat))


@torch.no_grad()
def reinforce_plus_plus_baseline(
    *,
    token_rewards: Tensor,
    group: GroupIds,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    whiten: bool = True,
    compat: bool = False,
) -> tuple[Tensor, Tensor]:
    """REINFORCE++-baseline (Hu et al. 2025, arXiv:2501.03262): centred in the group, normalised over the batch.

    ``A_i = (r_i - mean_group)``, then brought to mean 0 and variance 1 over all valid tokens of the sequences that were
    compared (``/ sqrt(var + 1e-8)``): a long sequence weighs as much as it has tokens.

    Args:
        token_rewards, group, mask, cu_seqlens: see `grpo`.
        whiten: normalise over the batch.
        compat: the only scored sequence of a group keeps its reward and enters the batch's mean and variance, as in
            the original.

    Returns:
        Advantages and, equal to them, returns.

    Raises:
        ValueError: shapes disagree or the reward of a sequence is infinite (`NonFiniteError`).
    """
    outcomes = Outcomes.of(token_rewards, mask, cu_seqlens)
    groups = outcomes.groups(group)
    per_sequence = _alone_as_is(groups.centred(outcomes.rewards), outcomes.rewards, groups, compat)
    if whiten:
        per_sequence = outcomes.whitened(per_sequence, groups.scored if compat else groups.compared)
    return outcomes.spread(per_sequence)


@torch.no_grad()
def opo(
    *,
    token_rewards: Tensor,
    group: GroupIds,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    compat: bool = False,
) -> tuple[Tensor, Tensor]:
    """On-policy RL with optimal reward baseline (Hao et al. 2025, arXiv:2505.23585).

    ``A_i = r_i - sum_j l_j r_j / sum_j l_j`` over the group, with l the number of valid tokens: the baseline of least
    gradient variance if every token's gradient has the same norm.

    Args:
        token_rewards, group, mask, cu_seqlens: see `grpo`.
        compat: the only scored sequence of a group receives its reward, as in the original.

    Returns:
        Advantages and, equal to them, returns.

    Raises:
        ValueError: shapes disagree or the reward of a sequence is infinite (`NonFiniteError`).
    """
    outcomes = Outcomes.of(token_rewards, mask, cu_seqlens)
    groups = outcomes.groups(group)
    per_sequence = groups.centred(outcomes.rewards, weights=outcomes.lengths)
    return outcomes.spread(_alone_as_is(per_sequence, outcomes.rewards, groups, compat))


@torch.no_grad()
def gpg(
    *,
    token_rewards: Tensor,
    group: GroupIds,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    compat: bool = False,
) -> tuple[Tensor, Tensor]:
    """Group policy gradient (Chu et al. 2025, arXiv:2504.02546), as published with the original.

    ``A_i = alpha (r_i - mean_group)``, ``alpha = scored sequences / those among them whose reward is not 0`` (1 if
    none): it makes up for sequences that give no gradient. The paper's alpha leaves out all sequences of groups
    without any difference, the solved ones too.

    Args:
        token_rewards, group, mask, cu_seqlens: see `grpo`.
        compat: the only scored sequence of a group receives alpha times its reward, as in the original.

    Returns:
        Advantages and, equal to them, returns.

    Raises:
        ValueError: shapes disagree or the reward of a sequence is infinite (`NonFiniteError`).
    """
    outcomes = Outcomes.of(token_rewards, mask, cu_seqlens)
    groups = outcomes.groups(group)
    rewarded = torch.count_nonzero(outcomes.rewards)  # 0 where not scored
    alpha = torch.where(rewarded > 0, outcomes.scored.sum().double() / rewarded.clamp(min=1), 1.0)
    per_sequence = _alone_as_is(groups.centred(outcomes.rewards), outcomes.rewards, groups, compat)
    return outcomes.spread(alpha * per_sequence)


def normalised(rewards: Tensor, groups: Groups, norm_by_std: bool, compat: bool) -> Tensor:
    """What GRPO gives to rewards (N,)."""
    centred = groups.centred(rewards)
    if not norm_by_std:
        return _alone_as_is(centred, rewards, groups, compat)
    per_sequence = centred / (groups.stds(centred) + STD_EPSILON)
    return _alone_as_is(per_sequence, rewards / (1.0 + STD_EPSILON), groups, compat)


def _alone_as_is(per_sequence: Tensor, rewards: Tensor, groups: Groups, compat: bool) -> Tensor:
    return torch.where(groups.alone, rewards, per_sequence) if compat else per_sequence
