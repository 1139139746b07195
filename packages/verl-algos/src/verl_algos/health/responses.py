"""Numbers of the responses of one step: do their rewards teach anything, and are they different at all?

A response is a row: `rewards` (N,), `group` (N,) of prompt ids (whole numbers or strings) in any order, `lengths` (N,)
in tokens. A reward that is not finite was not scored and is left out of everything that is about rewards. A result is
None where it is undefined.
"""

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from verl_algos._ids import numbered


def equal_groups(rewards: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, int]:
    """The reward of every group whose scored responses all have the same one, and the number of groups looked at.

    Only groups with two or more scored responses are looked at: one response cannot be compared. Equal means equal to
    the last bit, as for the advantage estimators, which give such groups exactly 0.

    Returns:
        (K,) one reward for each of the K groups of equal rewards; the number of groups with two or more.
    """
    rewards, group = _scored(rewards, _prompts(group))
    order = np.argsort(group, kind="stable")
    rewards, group = rewards[order], group[order]
    starts = np.flatnonzero(np.r_[True, group[1:] != group[:-1]]) if group.size else np.zeros(0, np.int64)
    if not starts.size:
        return np.zeros(0), 0
    low, high = np.minimum.reduceat(rewards, starts), np.maximum.reduceat(rewards, starts)
    compared = np.diff(np.r_[starts, group.size]) > 1
    return low[compared & (low == high)], int(compared.sum())


def zero_variance_groups(rewards: np.ndarray, group: np.ndarray) -> float | None:
    """Share of the groups with two or more scored responses whose rewards are all equal: they teach nothing."""
    equal, groups = equal_groups(rewards, group)
    return len(equal) / groups if groups else None


def most_common_reward(rewards: np.ndarray) -> float | None:
    """Share of the scored responses that have the most frequent reward; 1 means that nothing distinguishes them."""
    (rewards,) = _scored(rewards)
    return int(np.unique(rewards, return_counts=True)[1].max()) / rewards.size if rewards.size else None


def share_at(rewards: np.ndarray, value: float) -> float | None:
    """Share of the scored responses whose reward is `value`, such as the greatest that the run has seen."""
    (rewards,) = _scored(rewards)
    return float(np.mean(rewards == value)) if rewards.size else None


def reward_length_correlation(
    rewards: np.ndarray, lengths: np.ndarray, group: np.ndarray | None = None
) -> float | None:
    """Pearson correlation of reward and response length.

    With `group` it is taken within groups: both numbers count from their group's mean, so that hard prompts, whose
    answers are long and often wrong, do not look like a reward for brevity. That is what a group-relative advantage
    sees. Without `group` it is taken over the batch, which is all that is known with one response per prompt.

    Returns:
        from -1 to 1; None where rewards or lengths do not differ, or with fewer than three responses (within groups:
        fewer than two more responses than groups), where it would be -1 or 1 whatever they are.
    """
    ids = np.zeros(len(rewards), np.int64) if group is None else _prompts(group)
    rewards, lengths, ids = _scored(rewards, lengths, ids)
    _, row_group = np.unique(ids, return_inverse=True)
    if rewards.size - (row_group.max(initial=-1) + 1) < 2:
        return None
    x, y = _from_mean(rewards, row_group), _from_mean(lengths, row_group)
    if not (x.any() and y.any()):
        return None
    return float(np.clip(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)), -1.0, 1.0))


def duplicate_responses(responses: Sequence[np.ndarray], group: np.ndarray | None = None) -> float | None:
    """Share of the responses that have a twin, token by token, in their group (without `group`: in the batch).

    Args:
        responses: the sampled token ids of each response.
        group: (N,). Responses that are alone in their group are not looked at.
    """
    ids = [0] * len(responses) if group is None else _prompts(group).tolist()
    rows = list(zip(ids, _fingerprints(responses), strict=True))
    sizes, twins = Counter(ids), Counter(rows)
    compared = [twins[row] > 1 for row in rows if sizes[row[0]] > 1]
    return sum(compared) / len(compared) if compared else None


def most_common_response(responses: Sequence[np.ndarray], group: np.ndarray) -> float | None:
    """Share of the responses of a batch that are the most frequent one, token by token; None with a single prompt."""
    if len(set(_prompts(group).tolist())) < 2:
        return None
    return max(Counter(_fingerprints(responses)).values()) / len(responses)


def _scored(rewards: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray, ...]:
    """The rows with a finite reward.

    Raises:
        ValueError: the columns have not the same number of rows.
    """
    rewards = np.asarray(rewards, np.float64)
    if rows := [len(other) for other in others if len(other) != len(rewards)]:
        raise ValueError(f"There are {len(rewards)} rewards, but {rows[0]} rows in a column beside them: one for each.")
    scored = np.isfinite(rewards)
    return rewards[scored], *(np.asarray(other)[scored] for other in others)


def _from_mean(values: np.ndarray, row_group: np.ndarray) -> np.ndarray:
    """Values less their group's mean, times some number, so that the largest is about 1; exactly 0 in groups of equal
    values."""
    values = _about_1(values.astype(np.float64))
    count = np.bincount(row_group)
    first = np.zeros(len(count))
    first[row_group] = values  # one of each group's values
    values = values - first[row_group]  # equal values are 0 now, and so is their mean
    return _about_1(values - (np.bincount(row_group, values) / count)[row_group])


def _about_1(values: np.ndarray) -> np.ndarray:
    """Finite values times a power of two, so that neither their sums nor their squares overflow or vanish."""
    _, exponent = np.frexp(np.abs(values).max(initial=0.0))
    scaled: np.ndarray = np.ldexp(values, -exponent)
    return scaled


def _prompts(group: np.ndarray) -> np.ndarray:
    """The ids of prompts as integers (N,), equal where the ids are equal: of whole numbers or strings.

    Raises:
        ValueError: there is an id that is something else.
    """
    ids = np.asarray(group)
    if ids.dtype.kind == "f" and (np.abs(ids) < 1 << 53).all() and (ids == np.rint(ids)).all():
        ids = ids.astype(np.int64)
    return ids if ids.dtype.kind in "iu" else np.array(numbered(ids.tolist()), np.int64)


def _fingerprints(responses: Sequence[np.ndarray]) -> list[bytes]:
    """A digest of each response's tokens: far less memory than the tokens, and no two alike but by their tokens."""
    return [
        blake2b(np.ascontiguousarray(tokens, dtype=np.int64).tobytes(), digest_size=16).digest() for tokens in responses
    ]
