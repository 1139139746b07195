"""Several rewards for each sequence, each compared by itself: GDPO."""

from collections.abc import Mapping

import torch
from torch import Tensor

from verl_algos._layout import check_sequence_column
from verl_algos._numbers import checked
from verl_algos.advantages._blocks import LARGEST, refuse
from verl_algos.advantages._group_relative import normalised
from verl_algos.advantages._groups import GroupIds, Groups, Outcomes


@torch.no_grad()
def gdpo(
    *,
    token_rewards: Tensor,
    group: GroupIds,
    reward_components: Mapping[str, Tensor],
    reward_weights: Mapping[str, float] | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    norm_by_std: bool = True,
    whiten: bool = True,
    compat: bool = False,
) -> tuple[Tensor, Tensor]:
    """Group reward-decoupled normalisation (Liu et al. 2026, arXiv:2601.05242).

    ``A_i = whiten(sum_k w_k GRPO_k(i))``: each component is normalised within its group before the weighted sum, so
    that different combinations of rewards stay different; then the sum is brought to mean 0 and variance 1 over all
    valid tokens of the sequences that were compared (``/ sqrt(var + 1e-8)``).

    Args:
        token_rewards: (B, T) or (T,); only says which sequences were scored at all (NaN: not), the numbers come from
            the components.
        group: see `grpo`.
        reward_components: (N,) per name; NaN where a component does not apply to a sequence or was not scored: the
            sequence neither votes in that component nor receives anything for it.
        reward_weights: by name, finite; 1 for components that it does not name.
        mask, cu_seqlens: see `grpo`.
        norm_by_std: divide each component by the group's std.
        whiten: normalise the sum over the batch.
        compat: the only scored sequence of a group keeps its (normalised) reward and enters the batch's mean and
            variance, as in the original.

    Returns:
        Advantages and, equal to them, returns.

    Raises:
        ValueError: shapes disagree, there is no component, a weight names none or is not finite, or a reward is
            infinite (`NonFiniteError`).
    """
    weights = _weights(reward_components, reward_weights)
    outcomes = Outcomes.of(token_rewards, mask, cu_seqlens)
    total = torch.zeros_like(outcomes.rewards)
    voting = torch.zeros_like(outcomes.scored)
    for name, column in reward_components.items():
        check_sequence_column(f"reward_components[{name!r}]", column, outcomes.layout)
        scored = outcomes.scored & ~column.isnan()
        refuse(f"reward_components[{name!r}]", column, scored & column.isinf())
        groups = Groups.of(group, scored)
        rewards = torch.where(scored, column, 0).double().clamp_(-LARGEST, LARGEST)
        total += weights[name] * normalised(rewards, groups, norm_by_std, compat)
        voting |= groups.scored if compat else groups.compared
    return outcomes.spread(outcomes.whitened(total, voting) if whiten else total)


def _weights(components: Mapping[str, Tensor], given: Mapping[str, float] | None) -> dict[str, float]:
    for name, mapping in (("reward_components", components), ("reward_weights", given)):
        if mapping is not None and not isinstance(mapping, Mapping):
            raise ValueError(
                f"{name} is a {type(mapping).__name__}, but gdpo takes a mapping from the names of rewards, such as "
                '{"right": ..., "short": ...}.'
            )
    if not components:
        raise ValueError("reward_components is empty: gdpo needs at least one reward per sequence, by name.")
    given = given or {}
    if unknown := sorted(set(given) - set(components)):
        raise ValueError(
            f"reward_weights names {', '.join(map(repr, unknown))}, which reward_components does not have: it has "
            f"{', '.join(map(repr, components))}."
        )
    return {
        name: checked(f"reward_weights[{name!r}]", given.get(name, 1.0), "it weighs the component in the sum")
        for name in components
    }
