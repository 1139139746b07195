"""mean@n, std@n, best@k, worst@k and maj@k against enumeration of every choice, and their laws."""

import math
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_algos.evaluation import best_at_k, maj_at_k, mean_at_n, std_at_n, worst_at_k

SCORES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12)
ANY_SCORES = st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=12)
#: Scores of 0 and 1 with answers; equal answers need not have equal scores.
ANSWERED = st.lists(st.tuples(st.sampled_from([0.0, 0.25, 1.0]), st.integers(0, 4)), min_size=1, max_size=9)


def mean_over_choices(scores: Sequence[float], k: int, of: object) -> float:
    """Mean of max or min over every choice of k scores, in exact arithmetic."""
    picked = [Fraction(max(choice) if of is max else min(choice)) for choice in combinations(scores, k)]
    return float(sum(picked) / len(picked))


def majority_over_choices(scores: Sequence[float], answers: Sequence[Hashable], k: int) -> float:
    """Mean over every choice of k responses of the mean score of each answer that is most frequent in it."""
    total, choices = Fraction(0), 0
    for choice in combinations(range(len(scores)), k):
        votes = Counter(answers[index] for index in choice)
        winners = [answer for answer, count in votes.items() if count == max(votes.values())]
        for winner in winners:
            given_by = [Fraction(scores[index]) for index in choice if answers[index] == winner]
            total += sum(given_by, Fraction(0)) / len(given_by) / len(winners)
        choices += 1
    return float(total / choices)


def test_best_at_k_is_exact_where_a_bootstrap_is_not() -> None:  # G04
    one_of_four = [0.0, 0.0, 1.0, 0.0]
    assert [best_at_k(one_of_four, k) for k in (1, 2, 4)] == [0.25, 0.5, 1.0]
    assert best_at_k([1.0] * 3 + [0.0] * 5, 4) == pytest.approx(0.928571, abs=5e-7)
    assert best_at_k([1.0] * 3 + [0.0] * 5, 4) == 1 - math.comb(5, 4) / math.comb(8, 4)


@pytest.mark.parametrize("k", [0, -1, 5])
def test_k_must_be_from_1_to_n(k: int) -> None:  # G04
    with pytest.raises(ValueError, match=rf"k is {k}.*from 1 to 4"):
        best_at_k([0.0, 0.0, 1.0, 0.0], k)
    with pytest.raises(ValueError, match=rf"k is {k}.*from 1 to 4"):
        worst_at_k([0.0, 0.0, 1.0, 0.0], k)
    with pytest.raises(ValueError, match=rf"k is {k}.*from 1 to 4"):
        maj_at_k([0.0, 0.0, 1.0, 0.0], list("abca"), k)


def test_the_published_bootstrap_values_have_exact_counterparts() -> None:
    acc = [1.0, 0.0, 0.0, 1.0]  # verl-facts M1, whose bootstrap gives best@2 0.738, best@4 0.926 and worst@2 0.278
    assert mean_at_n(acc) == std_at_n(acc) == 0.5
    assert best_at_k(acc, 2) == 5 / 6
    assert best_at_k(acc, 4) == 1.0
    assert worst_at_k(acc, 2) == 1 / 6
    assert worst_at_k(acc, 4) == 0.0


@pytest.mark.parametrize(
    ("of", "k", "published", "deviation", "exact"),
    [
        (max, 2, 0.738, 0.439723, 5 / 6),
        (max, 4, 0.926, 0.261771, 1.0),
        (min, 2, 0.278, None, 1 / 6),
        (min, 4, 0.082, None, 0.0),
    ],
)
def test_m1_differs_from_the_original_on_purpose(
    of: Callable[..., Any], k: int, published: float, deviation: float | None, exact: float
) -> None:
    """M1: the original draws k of the n responses with replacement, 1,000 times, from numpy's global generator.

    So best@4 of four responses with two right ones is 0.926 there although the best of the four is right: an estimate,
    biased and noisy, of a number that is known. Here it is the expectation without replacement (pass@k).
    """
    accuracies = np.array([1.0, 0.0, 0.0, 1.0])
    draws = accuracies[np.random.RandomState(42).choice(4, (1000, k))]
    best = np.array([of(draw) for draw in draws])
    assert best.mean() == pytest.approx(published, abs=1e-9)
    assert deviation is None or best.std() == pytest.approx(deviation, abs=1e-6)
    ours = best_at_k if of is max else worst_at_k
    assert ours(accuracies.tolist(), k) == exact
    assert mean_at_n(accuracies.tolist()) == accuracies.mean() == 0.5
    assert std_at_n(accuracies.tolist()) == accuracies.std() == 0.5


def test_majority_by_hand() -> None:
    scores, answers = [1.0, 1.0, 0.0, 0.0, 0.0], ["42", "42", "7", "8", "9"]
    assert maj_at_k(scores, answers, 1) == pytest.approx(2 / 5)
    # Of 10 pairs one is 42 twice, six are a tie that 42 wins half of the time, three lack it.
    assert maj_at_k(scores, answers, 2) == pytest.approx((1 + 6 / 2) / 10)
    assert maj_at_k(scores, answers, 5) == 1.0
    assert maj_at_k([1.0, 0.0], ["a", "b"], 2) == 0.5  # a tie is not decided by who came first
    assert maj_at_k([0.5, 1.0, 0.0], ["a", "a", None], 3) == 0.75  # one answer, scored in two ways


def test_many_responses_with_many_answers() -> None:
    different = [1.0] + [0.0] * 63
    assert maj_at_k(different, range(64), 32) == pytest.approx(1 / 64, rel=1e-12)
    answers = [index // 2 for index in range(64)]
    assert maj_at_k(different, answers, 32) == pytest.approx(1 / 64, rel=1e-12)  # by symmetry, half of 1/32
    assert maj_at_k([1.0] * 64, [index * index % 23 for index in range(64)], 16) == 1.0


def test_over_a_thousand_responses_stay_exact() -> None:
    n, c, k = 1024, 3, 512
    expected = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
    assert best_at_k([1.0] * c + [0.0] * (n - c), k) == float(expected)
    # Three answers of equal weight share the win.
    assert maj_at_k([1.0] * 341 + [0.0] * 682, ["a"] * 341 + ["b"] * 341 + ["c"] * 341, 511) == pytest.approx(1 / 3)


def test_nothing_but_numpy_is_imported() -> None:
    code = "import verl_algos.evaluation, sys; print(sys.modules.keys() & {'torch', 'pandas', 'scipy'} or 'none')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "none"


@pytest.mark.parametrize("scores", [[], [0.0, math.nan], [math.inf]])
def test_scores_must_be_there_and_finite(scores: list[float]) -> None:
    statistics_of: list[Callable[[], float]] = [
        lambda: mean_at_n(scores),
        lambda: std_at_n(scores),
        lambda: best_at_k(scores, 1),
        lambda: worst_at_k(scores, 1),
        lambda: maj_at_k(scores, scores, 1),
    ]
    for statistic in statistics_of:
        with pytest.raises(ValueError, match="score"):
            statistic()


def test_every_score_needs_an_answer() -> None:
    with pytest.raises(ValueError, match="2 scores and 1 answers"):
        maj_at_k([0.0, 1.0], ["a"], 1)


@settings(deadline=None)
@given(SCORES, st.data())
def test_best_and_worst_are_means_over_all_choices(scores: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(scores)))
    assert best_at_k(scores, k) == mean_over_choices(scores, k, max)
    assert worst_at_k(scores, k) == mean_over_choices(scores, k, min)


@settings(deadline=None)
@given(ANSWERED, st.data())
def test_majority_is_the_mean_over_all_choices(answered: list[tuple[float, int]], data: st.DataObject) -> None:
    scores, answers = [score for score, _ in answered], [answer for _, answer in answered]
    k = data.draw(st.integers(1, len(scores)))
    assert maj_at_k(scores, answers, k) == pytest.approx(
        majority_over_choices(scores, answers, k), rel=1e-12, abs=1e-15
    )


@settings(deadline=None)
@given(ANY_SCORES)
def test_mean_and_deviation_are_rounded_once(scores: list[float]) -> None:
    exact = [Fraction(score) for score in scores]
    assert mean_at_n(scores) == float(sum(exact) / len(exact))
    if max(map(abs, scores)) < 1e150:  # beyond, the square is none of float64's
        assert std_at_n(scores) == pytest.approx(statistics.pstdev(exact), rel=1e-15, abs=1e-300)
    else:
        assert math.isfinite(std_at_n(scores))


@settings(deadline=None)
@given(ANY_SCORES)
def test_ends_of_k(scores: list[float]) -> None:
    n = len(scores)
    assert best_at_k(scores, 1) == worst_at_k(scores, 1) == mean_at_n(scores)
    assert best_at_k(scores, n) == max(scores)
    assert worst_at_k(scores, n) == min(scores)
    assert maj_at_k(scores, ["same"] * n, n) == mean_at_n(scores)


@settings(deadline=None)
@given(ANY_SCORES)
def test_more_draws_find_better_and_worse(scores: list[float]) -> None:
    best = [best_at_k(scores, k) for k in range(1, len(scores) + 1)]
    worst = [worst_at_k(scores, k) for k in range(1, len(scores) + 1)]
    assert best == sorted(best)
    assert worst == sorted(worst, reverse=True)


@settings(deadline=None)
@given(ANSWERED, st.data())
def test_the_order_of_the_responses_changes_no_bit(answered: list[tuple[float, int]], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(answered)))
    shuffled = data.draw(st.permutations(answered))

    def everything(pairs: Sequence[tuple[float, int]]) -> tuple[float, ...]:
        scores, answers = [score for score, _ in pairs], [answer for _, answer in pairs]
        return (
            mean_at_n(scores),
            std_at_n(scores),
            best_at_k(scores, k),
            worst_at_k(scores, k),
            maj_at_k(scores, answers, k),
        )

    assert everything(answered) == everything(shuffled)


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.data())
def test_the_majority_chances_of_all_answers_add_up_to_one(answers: list[int], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(answers)))
    chances = [maj_at_k([float(given == answer) for given in answers], answers, k) for answer in set(answers)]
    assert math.fsum(chances) == pytest.approx(1.0, rel=1e-12)
