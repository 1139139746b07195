"""Advantages of sampled tokens from rewards, values and groups.

An estimator is a function of token columns, padded (B, T) or packed (T,) with cu_seqlens, that returns
``(advantages, returns)`` in the same shape: exactly 0 at tokens that the mask excludes, whatever the inputs hold there.
The mask is the one of sampled tokens: tokens that the policy did not sample (tool output, padding) are skipped without
discounting, and rewards of tokens that only the loss mask rejects still count.
"""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from verl_algos._layout import Layout, at_least_float32, check_sequence_column
from verl_algos.errors import NonFiniteError
from verl_algos.masked import masked_whiten

__all__ = ["REQUIRED_INPUTS", "compute", "gae", "grpo", "scored_sequences", "singleton_groups"]

_STD_EPSILON = 1e-6


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
            (`NonFiniteError`).
    """
    for name, factor in (("gamma", gamma), ("lam", lam)):
        if not 0.0 <= factor <= 1.0:
            raise ValueError(f"{name}={factor} is outside [0, 1].")
    layout = Layout.of(mask, cu_seqlens, token_rewards=token_rewards, values=values)
    rewards = at_least_float32(layout.compact(token_rewards))
    state_values = at_least_float32(layout.compact(values))
    _refuse("token_rewards", rewards, ~rewards.isfinite())
    _refuse("values", state_values, ~state_values.isfinite())
    remaining = layout.remaining()

    deltas = rewards - state_values
    deltas[:-1].add_(torch.where(remaining[:-1] > 1, state_values[1:], 0), alpha=gamma)
    advantages = _discounted_suffix_sums(deltas, remaining, gamma * lam)
    returns = advantages + state_values
    if whiten:
        advantages = masked_whiten(advantages, torch.ones_like(advantages, dtype=torch.bool))
    return layout.restore(advantages), layout.restore(returns)


def grpo(
    *,
    token_rewards: Tensor,
    group: Tensor,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    norm_by_std: bool = True,
) -> tuple[Tensor, Tensor]:
    """Group-relative advantages: GRPO (Shao et al. 2024, arXiv:2402.03300), without std Dr. GRPO (arXiv:2503.20783).

    ``A_i = (r_i - mean_group) / (std_group + 1e-6)`` with r_i the sum of sequence i's valid token rewards and the
    unbiased std; every valid token of the sequence receives it. Only sequences that have a valid token and a reward
    (see `scored_sequences`) enter mean and std; the others receive 0, as does the only such sequence of a group:
    nothing says whether its reward is good (count these with `singleton_groups`; the original returns the reward
    itself).

    Args:
        token_rewards: (B, T) or (T,); NaN at a valid token marks the sequence as not scored.
        group: integer (N,); sequences with the same number belong to one prompt, in whatever order they stand.
        mask: shape of token_rewards, the sampled tokens; all of them if None.
        cu_seqlens: (N+1,) offsets of packed sequences.
        norm_by_std: divide by the group's std.

    Returns:
        Advantages and, equal to them, returns: there is no critic to fit.

    Raises:
        ValueError: shapes disagree or the reward of a sequence is infinite (`NonFiniteError`).
    """
    layout = Layout.of(mask, cu_seqlens, token_rewards=token_rewards)
    check_sequence_column("group", group, layout)
    rewards = layout.sums(token_rewards)
    _refuse("token_rewards, summed over each sequence,", rewards, rewards.isinf())
    scored = (layout.counts() > 0) & ~rewards.isnan()
    rewards = torch.where(scored, rewards, 0.0)

    members, sizes = _group_members(group, scored)
    centred = torch.where(
        scored, rewards - _group_sums(rewards, members, sizes)[members] / sizes.clamp(min=1)[members], 0.0
    )
    if norm_by_std:
        variance = _group_sums(centred.square(), members, sizes) / (sizes - 1).clamp(min=1)
        centred = centred / (variance.sqrt() + _STD_EPSILON)[members]
    per_sequence = torch.where(sizes[members] > 1, centred, 0.0)
    advantages = layout.spread(per_sequence.to(torch.promote_types(token_rewards.dtype, torch.float32)))
    return advantages, advantages.clone()


def scored_sequences(token_rewards: Tensor, mask: Tensor | None = None, cu_seqlens: Tensor | None = None) -> Tensor:
    """Sequences that have a valid token and no NaN among the rewards of their valid tokens, bool (N,).

    The others do not enter group statistics; clear their loss mask before counting denominators.
    """
    layout = Layout.of(mask, cu_seqlens, token_rewards=token_rewards)
    return (layout.counts() > 0) & ~layout.sums(token_rewards).isnan()


def singleton_groups(group: Tensor, scored: Tensor | None = None) -> int:
    """The number of groups with exactly one scored sequence: group-relative estimators learn nothing from these.

    Args:
        group: integer (N,).
        scored: bool (N,) as from `scored_sequences`; all of them if None.
    """
    if scored is None:
        scored = torch.ones_like(group, dtype=torch.bool)
    elif scored.shape != group.shape:
        raise ValueError(f"scored has shape {tuple(scored.shape)} but group has {tuple(group.shape)}: both are (N,).")
    return int((_group_members(group, scored)[1] == 1).sum())


_ESTIMATORS: Mapping[str, Callable[..., tuple[Tensor, Tensor]]] = MappingProxyType({"gae": gae, "grpo": grpo})


def _required_inputs(estimator: Callable[..., object]) -> tuple[str, ...]:
    parameters = inspect.signature(estimator).parameters.values()
    return tuple(parameter.name for parameter in parameters if parameter.default is inspect.Parameter.empty)


#: What each estimator cannot do without, by name: the columns that a trainer must be able to supply.
REQUIRED_INPUTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {name: _required_inputs(estimator) for name, estimator in _ESTIMATORS.items()}
)


def compute(
    name: str,
    *,
    token_rewards: Tensor,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    group: Tensor | None = None,
    values: Tensor | None = None,
    gamma: float = 1.0,
    lam: float = 1.0,
    whiten: bool = True,
    norm_by_std: bool = True,
) -> tuple[Tensor, Tensor]:
    """Compute ``(advantages, returns)`` with the estimator called `name` ("gae", "grpo"), without gradient.

    The arguments are those of all estimators (see each one's docstring); an estimator receives the ones that it names.

    Raises:
        ValueError: the name is not known, an input in ``REQUIRED_INPUTS[name]`` is None, or the inputs do not fit
            together.
    """
    if name not in _ESTIMATORS:
        raise ValueError(f"Unknown advantage estimator {name!r}. Known: {', '.join(sorted(_ESTIMATORS))}.")
    inputs = {
        "token_rewards": token_rewards,
        "mask": mask,
        "cu_seqlens": cu_seqlens,
        "group": group,
        "values": values,
        "gamma": gamma,
        "lam": lam,
        "whiten": whiten,
        "norm_by_std": norm_by_std,
    }
    missing = [required for required in REQUIRED_INPUTS[name] if inputs[required] is None]
    if missing:
        raise ValueError(
            f"The advantage estimator {name!r} needs {' and '.join(missing)}, which was not given: "
            "supply it, or choose an estimator that does without."
        )
    estimator = _ESTIMATORS[name]
    with torch.no_grad():
        return estimator(**{parameter: inputs[parameter] for parameter in inspect.signature(estimator).parameters})


def _discounted_suffix_sums(x: Tensor, remaining: Tensor, discount: float) -> Tensor:
    """``y_t = x_t + discount y_{t+1}`` within each sequence, in log2(longest sequence) passes over the packed tokens.

    Doubling: once y_t holds the terms t to t+span-1, adding ``discount^span y_{t+span}`` makes it hold twice as many.
    """
    sums = x.clone()
    longest = int(remaining.max()) if len(remaining) else 0
    span = 1
    while span < longest:
        later = torch.where(remaining[:-span] > span, sums[span:], 0)
        sums[:-span].add_(later, alpha=discount**span)
        span *= 2
    return sums


def _group_members(group: Tensor, scored: Tensor) -> tuple[Tensor, Tensor]:
    """Each sequence's group as an index (N,), and the number of scored sequences in each group (G,)."""
    groups, members = torch.unique(group, return_inverse=True)
    sizes = torch.zeros_like(groups, dtype=torch.int64).index_add(0, members, scored.long())
    return members, sizes


def _group_sums(per_sequence: Tensor, members: Tensor, sizes: Tensor) -> Tensor:
    return per_sequence.new_zeros(sizes.shape).index_add(0, members, per_sequence)


def _refuse(name: str, numbers: Tensor, bad: Tensor) -> None:
    if bad.any():
        raise NonFiniteError(
            f"{name} holds {int(bad.sum())} valid entries that are not finite, the first is {float(numbers[bad][0])}: "
            "repair the reward or the critic that produced them, or mask the sequence.",
            name,
        )
