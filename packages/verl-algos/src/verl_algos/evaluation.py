"""Statistics of the n responses that one prompt was given: mean@n, std@n, best@k, worst@k and maj@k.

What is reported at k below n is the expectation over a choice of k of the n responses, each choice as likely as any
other and without replacement: an exact number, where a bootstrap (which draws with replacement) is noisy and biased.
Every function takes the scores of one prompt; the mean over prompts is the caller's. The order of the responses does
not matter.

All but maj@k are computed in whole numbers and rounded once, so that best@n is the maximum, best@1 the mean, and a
score of 0 or 1 stays one.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache

import numpy as np

__all__ = ["best_at_k", "maj_at_k", "mean_at_n", "std_at_n", "worst_at_k"]


def mean_at_n(scores: Sequence[float]) -> float:
    """Mean of the n scores of a prompt.

    Args:
        scores: (n,), finite.

    Raises:
        ValueError: there is no score, or one that is not finite.
    """
    numerators, denominator = _as_integers(scores)
    return sum(numerators) / (len(numerators) * denominator)


def std_at_n(scores: Sequence[float]) -> float:
    """Population standard deviation of the n scores of a prompt: the root of the mean square minus the squared mean.

    Args:
        scores: (n,), finite.

    Raises:
        ValueError: there is no score, or one that is not finite.
    """
    numerators, denominator = _as_integers(scores)
    n = len(numerators)
    square = n * sum(x * x for x in numerators) - sum(numerators) ** 2  # of n * denominator * std
    shift = max(0, 128 - square.bit_length() // 2)  # so that the integer root has more bits than a float
    return math.isqrt(square << 2 * shift) / (n * denominator << shift)


def best_at_k(scores: Sequence[float], k: int) -> float:
    """Expected maximum of k of the n scores of a prompt, drawn without replacement.

    With the scores in ascending order, the sum over i of s_i (C(i, k) - C(i-1, k)) / C(n, k): score i is the maximum
    where the other k-1 are among those before it. For scores of 0 and 1, c of them 1, this is
    1 - C(n-c, k) / C(n, k), the unbiased pass@k of Chen et al. (2021, arXiv:2107.03374, equation 1).

    Args:
        scores: (n,), finite.
        k: from 1 (the mean) to n (the maximum).

    Raises:
        ValueError: k is not from 1 to n, there is no score, or one that is not finite.
    """
    numerators, denominator = _as_integers(scores)
    choices = _choices(_checked_k(k, len(numerators)), len(numerators))
    total = sum(x * (choices[i + 1] - choices[i]) for i, x in enumerate(sorted(numerators)))
    return total / (choices[-1] * denominator)


def worst_at_k(scores: Sequence[float], k: int) -> float:
    """Expected minimum of k of the n scores of a prompt, drawn without replacement: best@k with the sign turned.

    For scores of 0 and 1, c of them 1, this is C(c, k) / C(n, k), the chance that all k responses are right.

    Args:
        scores: (n,), finite.
        k: from 1 (the mean) to n (the minimum).

    Raises:
        ValueError: k is not from 1 to n, there is no score, or one that is not finite.
    """
    return 0.0 - best_at_k([-float(score) for score in scores], k)  # 0.0 - x, so that no 0 is negative


def maj_at_k(scores: Sequence[float], answers: Sequence[Hashable], k: int) -> float:
    """Expected score of the answer that most of k responses give, the k drawn from the n without replacement.

    This is self-consistency (Wang et al. 2023, arXiv:2203.11171) as an expectation. Each of the answers that are most
    frequent among the k is as likely to be taken; its score is the mean over the responses that gave it. A missing
    answer (None) is an answer like any other.

    Exact up to rounding (a relative error of about 1e-13 at n = 1024), by dynamic programming over the counts of the
    answers; time grows with n k^2 log k at most.

    Args:
        scores: (n,), finite.
        answers: (n,), the answer of each response; equal answers count together.
        k: from 1 (the mean) to n.

    Raises:
        ValueError: k is not from 1 to n, the lengths differ, there is no score, or one that is not finite.
    """
    if len(scores) != len(answers):
        raise ValueError(f"There are {len(scores)} scores and {len(answers)} answers; each response has one of both.")
    values = _finite(scores)
    _checked_k(k, len(values))
    of_answer: dict[Hashable, list[float]] = {}
    for answer, value in zip(answers, values, strict=True):
        of_answer.setdefault(answer, []).append(value)
    chances = _majority_chances(tuple(sorted(Counter(map(len, of_answer.values())).items())), k)
    groups = [(chances[len(group)], mean_at_n(group)) for group in of_answer.values()]
    # The chances add up to 1 only up to rounding; divided by their sum, equal scores give exactly that score.
    return math.fsum(chance * score for chance, score in groups) / math.fsum(chance for chance, _ in groups)


def _finite(scores: Sequence[float]) -> list[float]:
    values = [float(score) for score in scores]
    if not values:
        raise ValueError("There is no score: a prompt has at least one response.")
    if bad := [value for value in values if not math.isfinite(value)]:
        raise ValueError(f"A score is {bad[0]}; scores must be finite.")
    return values


def _as_integers(scores: Sequence[float]) -> tuple[list[int], int]:
    """The scores as whole numbers over one denominator: every float is a whole number over a power of two."""
    ratios = [value.as_integer_ratio() for value in _finite(scores)]
    denominator = max(below for _, below in ratios)
    return [above * (denominator // below) for above, below in ratios], denominator


def _checked_k(k: int, n: int) -> int:
    if not 1 <= k <= n:
        raise ValueError(f"k is {k}, but {n} responses were scored: k must be from 1 to {n}.")
    return k


@lru_cache(maxsize=64)
def _choices(k: int, n: int) -> tuple[int, ...]:
    """C(i, k) for i from 0 to n."""
    return tuple(math.comb(i, k) for i in range(n + 1))


@lru_cache(maxsize=4096)
def _majority_chances(multiplicities: tuple[tuple[int, int], ...], k: int) -> dict[int, float]:
    """The chance of one answer to be the majority of k draws, for each number of responses that an answer has.

    `multiplicities` are pairs (m, r): r answers have m responses each, n = sum of m r. All chances share one factor.

    Draws without replacement are draws of every response by itself with probability k/n, given that they are k in all.
    So an answer with m responses is drawn x times with the binomial chance b_m(x), independently of the others, and the
    chance to win with c draws together with t others is the coefficient of z^(k-c) y^t in
    b_m(c) * product over the other answers of [sum over x < c of b(x) z^x  +  b(c) z^c y], divided by t + 1.
    Answers with fewer than c responses neither win nor tie: they are drawn from as one. All terms are positive, so
    nothing cancels.
    """
    n = sum(m * r for m, r in multiplicities)
    chances = dict.fromkeys((m for m, _ in multiplicities), 0.0)
    for c in range(1, min(k, max(chances)) + 1):
        rivals = [(_drawn(m, n, k), r) for m, r in multiplicities if m >= c]
        if not any(drawn[c] for drawn, _ in rivals):
            continue
        begin = np.zeros((k - c + 1, (k - c) // c + 1))  # by what the others draw, and how many tie
        rest = _drawn(n - sum((len(drawn) - 1) * r for drawn, r in rivals), n, k)[: k - c + 1]
        begin[: len(rest), 0] = rest
        for drawn, r in rivals:
            for _ in range(r - 1):
                begin = _times(begin, drawn, c)
        for drawn, product in _without_one([drawn for drawn, _ in rivals], begin, c):
            shares = product[k - c] / np.arange(1, product.shape[1] + 1)
            chances[len(drawn) - 1] += float(drawn[c] * shares.sum())
    return chances


def _without_one(factors: Sequence[np.ndarray], product: np.ndarray, c: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield each factor with the product of all the others and `product`; halving shares what they have in common."""
    if len(factors) == 1:
        yield factors[0], product
        return
    middle = len(factors) // 2
    for kept, multiplied in ((factors[:middle], factors[middle:]), (factors[middle:], factors[:middle])):
        partial = product
        for drawn in multiplied:
            partial = _times(partial, drawn, c)
        yield from _without_one(kept, partial, c)


def _times(product: np.ndarray, drawn: np.ndarray, c: int) -> np.ndarray:
    """Multiply a product (draws, ties) by the factor of one more answer, which is drawn at most c times."""
    result: np.ndarray = drawn[0] * product
    for x in range(1, min(c, len(product))):
        if drawn[x]:  # where k is n, all responses are drawn
            result[x:] += drawn[x] * product[:-x]
    if c < len(product):
        result[c:, 1:] += drawn[c] * product[:-c, :-1]
    return result


@lru_cache(maxsize=4096)
def _drawn(m: int, n: int, k: int) -> np.ndarray:
    """(m+1,): the binomial chances that x of m responses are drawn, each with probability k/n."""
    return np.array([math.comb(m, x) * k**x * (n - k) ** (m - x) / n**m for x in range(m + 1)])
