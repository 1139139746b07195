"""A baseline of its own for every position of a group: the optimal token baseline."""

from collections.abc import Sequence

import torch
from torch import Tensor

from verl_algos._finite import at_least_float32, narrowed, saturated
from verl_algos._vocabulary import row_parts
from verl_algos.advantages._blocks import Block, all_finite, blocks, refuse, suffix_sums, widened
from verl_algos.advantages._groups import GroupIds, Outcomes
from verl_algos.advantages._reward_to_go import scored_rows
from verl_algos.logprobs import _log_distribution

_ENERGY_EPSILON = 1e-8
_LARGEST_WEIGHT = 1e40  # so that a float64 holds its square times any sum of rewards


@torch.no_grad()
def optimal_token_baseline(
    *,
    token_rewards: Tensor,
    group: GroupIds,
    old_logprobs: Tensor,
    sum_pi_squared: Tensor,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    rollout_weights: Tensor | None = None,
    compat: bool = False,
) -> tuple[Tensor, Tensor]:
    """Optimal token baseline (Li et al. 2026, "The Optimal Token Baseline", PMLR 306).

    ``A_t = G_t - B_t``, with the reward to go G, and at each position t of a group

    ``B_t = sum_i G_it W_it / (sum_i W_it + 1e-8)``, ``W_it = sum_{s <= t} (1 - 2 pi_is + sum_v pi_isv^2)``,

    over the scored sequences i that have a valid token there. W stands for the squared gradient norm of the sequence so
    far: ``1 - 2 pi + sum_v pi_v^2`` is the squared norm of a token's gradient with respect to its logits. Past the end
    of the second longest sequence of a group, where nothing is left to compare, ``B_t = 0``.

    Positions are counted from the first valid token of a sequence; tokens that the policy did not sample count as
    positions, see `tir_optimal_token_baseline`.

    Args:
        token_rewards: (B, T) or (T,); NaN at a valid token marks the sequence as not scored: it receives 0.
        group: integer (N,), or a list of N whole numbers or strings; sequences with the same id are of one prompt.
        old_logprobs: shape of token_rewards, log pi of each token.
        sum_pi_squared: shape of token_rewards, see `advantages.sum_pi_squared`.
        mask: shape of token_rewards, the sampled tokens; all of them if None.
        cu_seqlens: (N+1,) offsets of packed sequences.
        rollout_weights: shape of token_rewards or None: truncated importance weights rho of the rollout. Each token's
            part of W is multiplied by rho squared.
        compat: the only scored sequence of a group has baseline 0, as in the original, instead of advantage 0.

    Returns:
        Advantages, and the rewards to go as returns.

    Raises:
        ValueError: shapes disagree, or a valid number is not finite (`NonFiniteError`; NaN among the rewards is not
            scored).
    """
    return _token_baseline(
        token_rewards, group, old_logprobs, sum_pi_squared, mask, cu_seqlens, rollout_weights, compat, gaps=True
    )


@torch.no_grad()
def tir_optimal_token_baseline(
    *,
    token_rewards: Tensor,
    group: GroupIds,
    old_logprobs: Tensor,
    sum_pi_squared: Tensor,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    rollout_weights: Tensor | None = None,
    compat: bool = False,
) -> tuple[Tensor, Tensor]:
    """`optimal_token_baseline` for tool-integrated reasoning: positions count only tokens that the policy sampled.

    The n-th sampled tokens of a group's sequences are compared, however long the tool output between them was.
    Arguments, results and errors are those of `optimal_token_baseline`.
    """
    return _token_baseline(
        token_rewards, group, old_logprobs, sum_pi_squared, mask, cu_seqlens, rollout_weights, compat, gaps=False
    )


@torch.no_grad()
def sum_pi_squared(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """``sum_v pi_v^2`` of the distribution softmax(logits / temperature), shape (...) for logits (..., V), float32 at
    least; the rows are worked through a few at a time.

    Raises:
        ValueError: the temperature is not above 0.
    """
    rows = logits.reshape(-1, logits.shape[-1])
    sums = rows.new_empty(len(rows), dtype=torch.promote_types(logits.dtype, torch.float32))
    for part in row_parts(rows):
        sums[part] = _log_distribution(rows[part], temperature).mul_(2.0).exp_().sum(dim=-1)
    return sums.view(logits.shape[:-1])


def _token_baseline(
    token_rewards: Tensor,
    group: GroupIds,
    old_logprobs: Tensor,
    sum_pi_squared: Tensor,
    mask: Tensor | None,
    cu_seqlens: Tensor | None,
    rollout_weights: Tensor | None,
    compat: bool,
    *,
    gaps: bool,
) -> tuple[Tensor, Tensor]:
    probabilities = {"old_logprobs": old_logprobs, "sum_pi_squared": sum_pi_squared}
    if rollout_weights is not None:
        probabilities["rollout_weights"] = rollout_weights
    outcomes = Outcomes.of(token_rewards, mask, cu_seqlens, **probabilities)
    groups = outcomes.groups(group)
    returns = outcomes.layout.zeros(outcomes.dtype)

    parts = list(blocks(outcomes.layout))  # where their tokens are takes longer to find than to keep
    lengths = outcomes.lengths if not gaps else _spans(parts, outcomes)  # in positions
    longest = torch.zeros_like(groups.sizes).scatter_reduce(0, groups.members, lengths, "amax")
    starts = (longest.cumsum(0) - longest)[groups.members]  # of each group's baselines
    # One more than there are positions: a group without any begins there, and adds 0.
    weighted = torch.zeros(int(longest.sum()) + 1, dtype=torch.float64, device=returns.device)
    energies = torch.zeros_like(weighted)
    for block in parts:
        to_go = suffix_sums(scored_rows(token_rewards, outcomes, block), 1.0)
        block.write(returns, to_go)
        energy = _energy(block, outcomes, probabilities)
        places = _places(block, _positions(block, lengths), starts).flatten()
        weighted.scatter_add_(0, places, (energy * widened(to_go)).flatten())
        energies.scatter_add_(0, places, energy.flatten())
    baselines = narrowed(weighted.div_(energies.add_(_ENERGY_EPSILON)), returns.dtype)

    pairs, several = groups.two_best(lengths)
    compared_until = torch.zeros_like(groups.sizes).index_copy(0, several, lengths[pairs[:, 1]])[groups.members]
    learning = groups.scored if compat else groups.compared
    advantages = torch.zeros_like(returns)
    for block in parts:
        positions = _positions(block, lengths)
        baseline = baselines.index_select(0, _places(block, positions, starts).flatten()).view(block.shape)
        baseline.masked_fill_(positions >= compared_until[block.sequences].unsqueeze(1), 0.0)
        rows = saturated(block.rows(returns) - baseline)
        block.write(advantages, rows.masked_fill_(~learning[block.sequences].unsqueeze(1), 0.0))
    return advantages, returns


def _spans(parts: Sequence[Block], outcomes: Outcomes) -> Tensor:
    """Positions from the first to the last valid token of each sequence, int64 (N,)."""
    spans = torch.zeros_like(outcomes.lengths)
    for block in parts:
        if block.is_full:
            spans[block.sequences] = block.counts
            continue
        ends = block.counts.cumsum(0)
        sampled = block.counts > 0
        first, last = (ends - block.counts)[sampled], ends[sampled] - 1
        spans[block.sequences][sampled] = block.tokens[last] - block.tokens[first] + 1
    return spans


def _positions(block: Block, lengths: Tensor) -> Tensor:
    """The position of each valid token in its sequence, int64 (R, L); anything where there is none."""
    if bool((lengths[block.sequences] == block.counts).all()):  # no gaps, or they are not counted
        return torch.arange(block.shape[1], device=lengths.device).repeat(block.shape[0], 1)
    places = block.aligned(block.tokens)
    return places - places[:, :1]


def _places(block: Block, positions: Tensor, starts: Tensor) -> Tensor:
    """Where the baseline of each valid token stands, int64 (R, L); that of the first position where there is none."""
    return positions.masked_fill(~block.inside, 0).add_(starts[block.sequences].unsqueeze(1))


def _energy(block: Block, outcomes: Outcomes, probabilities: dict[str, Tensor]) -> Tensor:
    """W of the scored sequences, float64 (R, L), 0 where there is no token."""
    rows = {name: block.rows(column) for name, column in probabilities.items()}
    scored = outcomes.scored[block.sequences].unsqueeze(1)
    for name, row in rows.items():
        if not all_finite(row):
            refuse(name, row, ~row.isfinite() & scored)
    probabilities_of_tokens = at_least_float32(rows["old_logprobs"]).clamp(max=0.0).exp_()
    norms = probabilities_of_tokens.mul_(-2.0).add_(1.0) + rows["sum_pi_squared"]
    if "rollout_weights" in rows:
        weights = rows["rollout_weights"].double().clamp(-_LARGEST_WEIGHT, _LARGEST_WEIGHT)
        norms = norms * weights.square_()
    return norms.cumsum(1, dtype=torch.float64).masked_fill_(~(block.inside & scored), 0.0)
