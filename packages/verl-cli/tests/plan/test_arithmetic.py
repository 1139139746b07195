"""Batch arithmetic against numbers worked out by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_cli.plan.arithmetic import (
    Cut,
    MicroBatch,
    Wave,
    micro_batches,
    mini_batches,
    per_rank,
    rank_problem,
    steps_with,
    waves,
)


def test_micro_batches_by_tokens_at_worst() -> None:
    # 102 sequences of 160 tokens are 16,320 tokens, 103 would be 16,480.
    cut = Cut.of(dynamic=False, sequences=None, tokens=16384)
    assert cut.worst(256, 160) == 3
    assert cut.most_tokens(160) == 16384


def test_micro_batches_by_sequences_at_worst() -> None:
    cut = Cut.of(dynamic=False, sequences=6, tokens=16384)
    assert cut.worst(256, 160) == 43
    assert cut.most_tokens(160) == 960


def test_dynamic_batching_wins_over_a_number_of_sequences() -> None:
    assert Cut.of(dynamic=True, sequences=6, tokens=1000) == Cut(1000, None)


def test_a_sequence_longer_than_the_cap_fits_nowhere() -> None:
    cut = Cut(100, None)
    assert cut.worst(4, 101) is None
    assert micro_batches([60, 20], 50, cut) == []


def test_micro_batches_of_real_prompts() -> None:
    # Lengths 14, 12, 11, 13 under a cap of 26: 14 + 12 and 13 + 11.
    assert sorted(micro_batches([4, 2, 1, 3], 10, Cut(26, None))) == [MicroBatch(2, 24, 20), MicroBatch(2, 26, 20)]
    assert micro_batches([4, 2, 1], 10, Cut(None, 2)) == [MicroBatch(2, 26, 20), MicroBatch(1, 11, 10)]


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=60),
    st.integers(1, 50),
    st.one_of(
        st.integers(100, 400).map(lambda tokens: Cut(tokens, None)),
        st.integers(1, 9).map(lambda sequences: Cut(None, sequences)),
    ),
)
def test_micro_batches_hold_every_sequence_once(prompts: list[int], response: int, cut: Cut) -> None:
    parts = micro_batches(prompts, response, cut)
    assert sum(part.sequences for part in parts) == len(prompts)
    assert sum(part.tokens for part in parts) == sum(prompts) + response * len(prompts)
    assert all(part.targets == response * part.sequences for part in parts)
    assert all(part.tokens <= (cut.tokens or part.tokens) for part in parts)
    worst = cut.worst(len(prompts), 50 + 50)
    assert worst is not None and len(parts) <= max(worst, 1)


def test_mini_batches_repeat_prompts_side_by_side() -> None:
    assert mini_batches([5, 7, 9], prompts=4, prompts_per_mini_batch=2, n=2) == [[5, 5, 7, 7], [9, 9, 5, 5]]


def test_mini_batches_that_do_not_divide_the_batch_are_counted() -> None:
    assert [len(part) for part in mini_batches([5], prompts=10, prompts_per_mini_batch=4, n=1)] == [4, 4, 2]


@settings(deadline=None)
@given(st.one_of(st.just(-1), st.integers(1, 40)), st.integers(0, 60), st.booleans())
def test_frequencies_count_steps_as_the_trainer_does(frequency: int, steps: int, first: bool) -> None:
    due = [step for step in range(1, steps + 1) if step == steps or (frequency > 0 and step % frequency == 0)]
    assert steps_with(frequency, steps, first=first) == [*([0] if first else []), *due]


def test_fewer_sequences_than_ranks_are_refused() -> None:
    """Bug bank F01: mini 4, n 1, dp 8."""
    problem = rank_problem(4, 1, 8, "actor_rollout_ref.actor.ppo_mini_batch_size")
    assert problem is not None
    assert "4*1 < 8" in problem and "actor_rollout_ref.actor.ppo_mini_batch_size" in problem
    assert rank_problem(4, 2, 8, "critic.ppo_mini_batch_size") is None


@pytest.mark.parametrize(("sequences", "ranks", "each"), [(10, 4, (2, 3)), (2, 4, (0, 1)), (12, 4, (3, 3))])
def test_sequences_are_dealt_out_without_padding(sequences: int, ranks: int, each: tuple[int, int]) -> None:
    """Bug bank F04: no sequence is added, so nothing has to be taken out of the metrics again."""
    assert per_rank(sequences, ranks) == each


def test_waves_put_like_prompts_together() -> None:
    # Sorted: 3 3, 5 5, 9 9; four sequences at a time; the last of 10 response tokens is never fed back.
    assert waves([9, 3, 5], n=2, response_tokens=10, max_num_seqs=4, context=None) == [
        Wave(sequences=4, prompts=2, prompt_tokens=5, tokens=14, padded=True),
        Wave(sequences=2, prompts=1, prompt_tokens=9, tokens=18, padded=False),
    ]


def test_a_wave_ends_with_the_models_context() -> None:
    assert waves([9], n=1, response_tokens=10, max_num_seqs=4, context=16)[0].tokens == 16
