"""Estimators whose advantages differ from token to token: GAE, REINFORCE++, ReMax."""

import torch
from torch import Tensor

from verl_algos._finite import at_least_float32, narrowed, saturated
from verl_algos._layout import Layout, check_sequence_column
from verl_algos._numbers import checked
from verl_algos.advantages._blocks import (
    Block,
    all_finite,
    blocks,
    refuse,
    suffix_sums,
    unchecked_suffix_sums,
    whiten_,
    widened,
)
from verl_algos.advantages._groups import Outcomes


@torch.no_grad()
def gae(
    *,
    token_rewards: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    gamma: float = 1.0,
    lam: float = 1.0,
    whiten: bool = True,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

    ``delta_t = r_t + gamma V_{t+1} - V_t``, ``A_t = delta_t + gamma lam A_{t+1}`` where t+1 is the next valid token
    of the sequence and V after the last one is 0. Returns are ``A + V``; then, if `whiten`, advantages are brought
    to mean 0 and variance 1 over all valid tokens of the call.

    Args:
        token_rewards: (B, T) or (T,).
        values: same shape; the value of the state in which token t was chosen.
        mask: same shape, the sampled tokens; all of them if None.
        cu_seqlens: (N+1,) offsets of packed sequences.
        gamma: discount per sampled token, within [0, 1].
        lam: weight of longer returns, within [0, 1].
        whiten: normalise the advantages, as the published PPO trainers do.

    Raises:
        ValueError: shapes disagree, gamma or lam is out of range, or a valid reward or value is not finite
            (`NonFiniteError`): a sequence that was not scored would teach the critic a return that nobody measured.
    """
    _check_factor("gamma", gamma)
    _check_factor("lam", lam)
    layout = Layout.of(mask, cu_seqlens, token_rewards=token_rewards, values=values)
    dtype = torch.promote_types(torch.promote_types(token_rewards.dtype, values.dtype), torch.float32)
    advantages, returns = layout.zeros(dtype), layout.zeros(dtype)
    for block in blocks(layout):
        rewards, state_values = block.rows(token_rewards).to(dtype), block.rows(values).to(dtype)
        sums = _discounted_deltas(rewards, state_values, gamma, lam)
        goals = sums + state_values
        if not all_finite(goals):
            for name, column in (("token_rewards", token_rewards), ("values", values)):
                valid = layout.compact(column)
                refuse(name, valid, ~valid.isfinite())
            wide_values = widened(state_values)  # the numbers were finite, their sums are not
            wide_sums = _discounted_deltas(widened(rewards), wide_values, gamma, lam)
            sums, goals = narrowed(wide_sums, dtype), narrowed(wide_sums + wide_values, dtype)
        block.write(advantages, sums)
        block.write(returns, goals)
    if whiten:
        whiten_(advantages, layout)
    return advantages, returns


@torch.no_grad()
def reinforce_plus_plus(
    *,
    token_rewards: Tensor,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    gamma: float = 1.0,
    whiten: bool = True,
) -> tuple[Tensor, Tensor]:
    """REINFORCE++ (Hu et al. 2025, arXiv:2501.03262): discounted rewards to go, normalised over the whole batch.

    ``G_t = r_t + gamma G_{t+1}`` where t+1 is the next valid token, ``A = (G - mean) / sqrt(var + 1e-8)`` over all
    valid tokens of the call. There is neither a critic nor a group; the KL penalty belongs into the rewards.

    Args:
        token_rewards: (B, T) or (T,); NaN at a valid token marks the sequence as not scored: it receives 0 and does
            not enter mean and variance.
        mask: same shape, the sampled tokens; all of them if None.
        cu_seqlens: (N+1,) offsets of packed sequences.
        gamma: discount per sampled token, within [0, 1].
        whiten: normalise; otherwise the advantages are the returns.

    Returns:
        Advantages, and the returns G.

    Raises:
        ValueError: shapes disagree, gamma is out of range or the reward of a sequence is infinite (`NonFiniteError`).
    """
    _check_factor("gamma", gamma)
    outcomes = Outcomes.of(token_rewards, mask, cu_seqlens)
    returns = rewards_to_go(token_rewards, outcomes, gamma)
    advantages = returns.clone()
    if whiten:
        whiten_(advantages, outcomes.layout, outcomes.scored)
    return advantages, returns


@torch.no_grad()
def remax(
    *,
    token_rewards: Tensor,
    baseline: Tensor,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """ReMax (Li et al. 2024, arXiv:2310.10505): rewards to go, less the reward of the prompt's greedy response.

    ``A_t = sum_{s >= t} r_s - b`` at valid tokens.

    Args:
        token_rewards: (B, T) or (T,); NaN at a valid token marks the sequence as not scored: it receives 0.
        baseline: (N,), the reward b of the greedy response to each sequence's prompt; NaN if that was not scored: the
            sequence receives 0, as nothing says whether its reward is good.
        mask: shape of token_rewards, the sampled tokens; all of them if None.
        cu_seqlens: (N+1,) offsets of packed sequences.

    Returns:
        Advantages, and the rewards to go as returns.

    Raises:
        ValueError: shapes disagree, or the reward of a sequence or a baseline is infinite (`NonFiniteError`).
    """
    outcomes = Outcomes.of(token_rewards, mask, cu_seqlens)
    check_sequence_column("baseline", baseline, outcomes.layout)
    refuse("baseline", baseline, baseline.isinf() & outcomes.scored)
    returns = rewards_to_go(token_rewards, outcomes, 1.0)
    known = outcomes.scored & ~baseline.isnan()
    baselines = narrowed(torch.where(known, baseline, 0.0).double(), returns.dtype)
    advantages = torch.empty_like(returns)
    for block in blocks(outcomes.layout):
        own = saturated(returns[block.part] - block.layout.spread(baselines[block.sequences]))
        learning = block.layout.spread(known[block.sequences]).bool()
        advantages[block.part] = own.masked_fill_(~learning, 0.0)
    return advantages, returns


def rewards_to_go(token_rewards: Tensor, outcomes: Outcomes, gamma: float) -> Tensor:
    """Discounted sums of this and all later rewards of a sequence, shape of token_rewards; 0 where not scored."""
    returns = outcomes.layout.zeros(outcomes.dtype)
    for block in blocks(outcomes.layout):
        block.write(returns, suffix_sums(scored_rows(token_rewards, outcomes, block), gamma))
    return returns


def scored_rows(token_rewards: Tensor, outcomes: Outcomes, block: Block) -> Tensor:
    """Rewards of a block's valid tokens (R, L), 0 in sequences that were not scored."""
    rewards = at_least_float32(block.rows(token_rewards))
    return torch.where(outcomes.scored[block.sequences].unsqueeze(1), rewards, 0.0)


def _discounted_deltas(rewards: Tensor, values: Tensor, gamma: float, lam: float) -> Tensor:
    """GAE of rows (R, L), before anything is normalised; it may overflow."""
    deltas = rewards - values
    deltas[:, :-1].add_(values[:, 1:], alpha=gamma)
    return unchecked_suffix_sums(deltas, gamma * lam)


def _check_factor(name: str, factor: float) -> None:
    checked(name, factor, "1 weighs what comes later in full, 0 not at all", minimum=0.0, maximum=1.0)
