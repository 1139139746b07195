"""Dynamic sampling: which groups are kept, how the batch is filled, when a step gives up, and whole runs with it."""

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_cli.build import build
from verl_cli.commands.train import run_training
from verl_cli.config import ConfigError, FilterGroupsConfig, Resolved, resolve
from verl_cli.controller import LocalController
from verl_cli.errors import UserError
from verl_cli.filter_groups import fill_batch, keep_groups, merged_metrics, uninformative_groups
from verl_cli.phases import Step, run_phases
from verl_cli.ppo import PPO
from verl_cli.reported import reported_columns
from verl_cli.sampling import training_requests
from verl_cli.scoring import Scored
from verl_cli.step_metrics import of_time
from verl_data import PackedBatch, Prompt, Ragged

Overrides = Callable[..., list[str]]
#: The values of the responses to each prompt of a round.
Round = Sequence[Sequence[float]]
NAN = float("nan")

ROUND_1: Round = [[1, 1], [1, 0], [0, 0]]
ROUND_2: Round = [[0, 1], [1, 1], [1, 0]]


def prompt(row: int, *, truncated: bool = False) -> Prompt:
    return Prompt(row, row, [1, 2 + row], "text", "test", "0", {}, {}, truncated)


def batch_of(values: Round, name: str = "acc") -> PackedBatch:
    """One response a value, of as many tokens as its number in the round says; every kind of column there is."""
    flat = np.array([value for group in values for value in group], np.float32)
    lengths = [2 + row for row in range(len(flat))]
    tokens = [np.full(length, row) for row, length in enumerate(lengths)]
    return PackedBatch.from_sequences(
        {"input_ids": tokens, "sampled_mask": [np.arange(length) >= 1 for length in lengths]},
        sequences={
            "group": np.repeat(np.arange(len(values)), [len(group) for group in values]),
            "reward": flat * 10,
            f"reward/{name}": flat,
            "uid": [f"{number}.{repeat}" for number, group in enumerate(values) for repeat in range(len(group))],
        },
        ragged={
            "routes": Ragged(
                np.concatenate([np.full(3, row) for row in range(len(flat))]), 3 * np.arange(len(flat) + 1)
            )
        },
    )


def scored_of(values: Round, name: str = "acc", **counts: float) -> Scored:
    flat = np.array([value for group in values for value in group], np.float32)
    counted = {f"reward/{key}": value for key, value in counts.items()}
    known = flat[~np.isnan(flat)]
    means = {f"reward/{name}": float(np.mean(known))} if known.size else {}
    return Scored(flat, [], {"score": flat, name: flat}, {}, means, counted)


class Rounds:
    """Prompts whose responses have these values, round by round; the row of prompt p of round r is 10 r + p."""

    def __init__(self, *rounds: Round, name: str = "acc") -> None:
        self.rounds, self.name, self.drawn = rounds, name, 0
        self.keys: list[tuple[int, ...]] = []
        self.step = Step(4, 2, self.draw(), draw=self.draw, batches_per_epoch=3)
        self.sample(self.step)

    def draw(self) -> list[Prompt]:
        self.drawn += 1
        return [prompt(10 * self.drawn + place) for place in range(len(self.rounds[self.drawn - 1]))]

    def sample(self, step: Step) -> None:
        values = self.rounds[self.drawn - 1]
        assert (step.number, step.epoch) == (4, 2)
        self.keys += [request.key for request in training_requests(step, n=len(values[0]))]
        step.batch, step.scored = batch_of(values, self.name), scored_of(values, self.name, timeout=1.0)
        step.metrics = {**step.scored.metrics, "reward/empty_responses": 2.0}

    def fill(self, size: int, **config: Any) -> Step:
        fill_batch(self.step, FilterGroupsConfig(**{"metric": self.name, **config}), size, self.sample)
        return self.step


def counted(step: Step) -> dict[str, float]:
    prefix = "training/filter_groups/"
    return {name.removeprefix(prefix): value for name, value in step.metrics.items() if name.startswith(prefix)}


# Which groups


def test_every_dropped_row_is_dropped_from_all_columns() -> None:
    """Bug bank C30: groups A with rewards [1, 1] and B with [1, 0]; the filter keeps B.

    Total reward [1, 0], uids [B, B], all columns of length 2; the defect leaves one of length 4 or with A's values.
    """
    batch = batch_of([[1, 1], [1, 0]]).with_columns(sequences={"uid": ["A", "A", "B", "B"]})
    dropped = uninformative_groups(np.asarray(batch["group"]), np.asarray(batch["reward/acc"]))
    assert dropped == {0: 1.0}
    kept, prompts = keep_groups(batch, [prompt(7), prompt(8)], [1])
    assert (kept["reward/acc"].tolist(), kept["uid"]) == ([1, 0], ["B", "B"])
    assert (kept["reward"].tolist(), kept["group"].tolist()) == ([10, 0], [0, 0])
    assert [row.tolist() for row in kept.per_sequence("input_ids")] == [[2] * 4, [3] * 5]
    assert kept["routes"].values.tolist() == [2, 2, 2, 3, 3, 3]
    assert [prompt.row for prompt in prompts] == [8]
    assert all(len(column) == 2 for column in kept.sequences.values())


@pytest.mark.parametrize(
    ("values", "dropped"),
    [
        ([[1, 1], [1, 0], [0, 0]], {0: 1.0, 2: 0.0}),
        ([[0.5, 0.5, 0.5], [0.5, 0.5, 0.25]], {0: 0.5}),
        ([[-1, -1], [-1, 1]], {0: -1.0}),
        # A response that could not be scored does not count, neither as equal nor as different.
        ([[1, NAN, 1], [1, NAN, 0]], {0: 1.0}),
        ([[1, NAN], [NAN, NAN], [0, 1]], {0: None, 1: None}),
        # Values that float32 can just tell apart differ.
        ([[1, np.nextafter(np.float32(1), np.float32(2))]], {}),
    ],
)
def test_groups_whose_scored_responses_are_alike_have_no_information(
    values: Round, dropped: dict[int, float | None]
) -> None:
    batch = batch_of(values)
    assert uninformative_groups(np.asarray(batch["group"]), np.asarray(batch["reward/acc"])) == dropped


def test_nothing_is_kept_of_a_round_without_information() -> None:
    kept, prompts = keep_groups(batch_of([[1, 1]]), [prompt(0)], [])
    assert (len(kept), kept.num_tokens, prompts) == (0, 0, [])
    assert set(kept.sequences) == {"group", "reward", "reward/acc", "uid"}


# Filling the batch


def test_the_batch_is_refilled_to_its_size() -> None:
    """Bug bank C32: need 2 groups; round 1 has accuracies [1,1], [1,0], [0,0], round 2 [0,1], [1,1], [1,0]; 2 rounds.

    The batch is item 2 of round 1 and item 1 of round 2, exactly 2 groups; the extra group is counted as dropped.
    """
    rounds = Rounds(ROUND_1, ROUND_2)
    step = rounds.fill(2, max_num_gen_batches=2)
    assert [prompt.row for prompt in step.prompts] == [11, 20]
    assert step.batch["uid"] == ["1.0", "1.1", "0.0", "0.1"]
    assert step.batch["group"].tolist() == [0, 0, 1, 1]
    assert step.batch["reward/acc"].tolist() == [1, 0, 0, 1]
    assert step.batch["reward"].tolist() == [10, 0, 0, 10]
    assert [ids[0] for ids in step.batch.per_sequence("input_ids")] == [2, 3, 0, 1]
    assert counted(step) == {
        "evicted_samples": 3.0,
        "evicted_value/mean": pytest.approx(2 / 3),
        "discarded_surplus_samples": 1.0,
        "unscored_samples": 0.0,
        "num_gen_batches": 2.0,
    }
    assert len(set(rounds.keys)) == len(rounds.keys) == 12
    assert rounds.keys[6:8] == [(4, 3, 0), (4, 3, 1)]


def test_a_full_first_round_draws_no_further_prompts() -> None:
    rounds = Rounds([[1, 0], [0, 1], [0, 0]])
    step = rounds.fill(2)
    assert (rounds.drawn, step.batch["group"].tolist()) == (1, [0, 0, 1, 1])
    assert counted(step)["num_gen_batches"] == 1.0


def test_surplus_groups_of_a_round_are_dropped_and_counted() -> None:
    step = Rounds([[1, 0]] * 5).fill(2)
    assert ([prompt.row for prompt in step.prompts], len(step.batch)) == ([10, 11], 4)
    assert counted(step)["discarded_surplus_samples"] == 3.0
    assert "evicted_value/mean" not in counted(step)


def test_data_that_is_all_solved_is_one_clear_error_after_the_last_batch() -> None:
    """Bug bank C32: then all-solved data: a clear error after 2 rounds with the counts per reason."""
    rounds = Rounds([[1, 1], [1, 1], [0, 0]], [[1, 1], [NAN, 1], [1, 0]])
    before = rounds.step.batch
    with pytest.raises(UserError) as caught:
        rounds.fill(2, max_num_gen_batches=2)
    text = str(caught.value)
    assert rounds.drawn == 2
    assert "Only 1 of 2 groups have responses that differ in acc, after 2 batches of prompts" in text
    assert "(algorithm.filter_groups.max_num_gen_batches=2)" in text
    assert (
        "Of 6 groups, 5 were dropped: all of acc 1: 3 groups; all of acc 0: 1 group; fewer than two responses could "
        "be scored: 1 group." in text
    )
    assert "train on harder ones" in text and "\n" not in text
    assert rounds.step.batch is before  # the step is not half done


def test_of_many_values_an_error_lists_the_most_frequent_ones() -> None:
    values = [[place / 8] * 2 for place in range(8)] + [[0.5, 0.5]] * 3
    with pytest.raises(UserError, match=r"all of acc 0\.5: 4 groups; .*; all of another acc each: 3 groups") as caught:
        Rounds(values).fill(2, max_num_gen_batches=1)
    assert str(caught.value).count("all of acc") == 5


@pytest.mark.parametrize(
    ("values", "remedy"),
    [([[0, 0]], "train on easier ones"), ([[-1, -1]], "train on easier ones"), ([[NAN, 1]], "Rewards failed")],
)
def test_what_to_do_follows_the_most_frequent_reason(values: Round, remedy: str) -> None:
    with pytest.raises(UserError, match=remedy):
        Rounds(values).fill(1, max_num_gen_batches=1)


def test_without_a_limit_one_pass_over_the_data_is_the_limit() -> None:
    rounds = Rounds([[1, 1]], [[1, 1]], [[1, 1]], [[1, 0]])
    with pytest.raises(UserError, match=r"after 3 batches of prompts .*max_num_gen_batches=0, one pass over the data"):
        rounds.fill(1, max_num_gen_batches=0)
    assert rounds.drawn == 3


def test_the_rewards_own_numbers_are_those_of_every_response_sampled() -> None:
    step = Rounds(ROUND_1, ROUND_2).fill(2)
    assert step.metrics["reward/acc"] == pytest.approx(7 / 12)
    assert (step.metrics["reward/timeout"], step.metrics["reward/empty_responses"]) == (2.0, 4.0)


def test_metrics_of_several_scorings_are_those_of_one() -> None:
    """Means weigh responses and not rounds; a round in which nothing was reported takes no part."""
    parts = [
        scored_of([[1, 1, 1], [1, NAN, 0]], timeout=1.0),
        scored_of([[0, NAN]], timeout=2.0),
        Scored(nothing := np.array([NAN], np.float32), [], {"score": nothing}, {}, {}, {"reward/timeout": 3.0}),
    ]
    assert merged_metrics(parts) == {"reward/acc": pytest.approx(4 / 6), "reward/timeout": 6.0}


def test_the_time_of_a_generated_token_counts_what_the_phase_generated() -> None:
    step = Rounds([[1, 1], [1, 1], [1, 0]], [[1, 0]]).fill(2)
    step.seconds = {"gen": 1.0, "step": 2.0}
    sampled = sum(1 + row for row in range(6))  # of the first round, kept or not
    assert of_time(step, devices=1)["timing_per_token_ms/gen"] == pytest.approx(1000 / sampled)


VALUES = st.sampled_from([0.0, 0.5, 1.0, NAN])


@given(st.data(), st.integers(1, 4), st.integers(0, 2), st.integers(2, 4))
@settings(deadline=None)
def test_a_step_trains_on_the_first_informative_groups_or_not_at_all(
    data: st.DataObject, size: int, more: int, n: int
) -> None:
    """Against a plain loop over the groups of all rounds, for any values: batch, counts and keys."""
    per_round = size + more
    group = st.lists(VALUES, min_size=n, max_size=n)
    rounds = data.draw(st.lists(st.lists(group, min_size=per_round, max_size=per_round), min_size=1, max_size=4))

    def informs(values: Sequence[float]) -> bool:
        return len({value for value in values if not np.isnan(value)}) > 1

    found: list[tuple[int, list[float]]] = []
    used = 0
    while used < len(rounds) and len(found) < size:
        found += [(10 * (used + 1) + p, values) for p, values in enumerate(rounds[used]) if informs(values)]
        used += 1
    harness = Rounds(*rounds)
    if len(found) < size:
        with pytest.raises(UserError, match=f"Only {len(found)} of {size} groups"):
            harness.fill(size, max_num_gen_batches=len(rounds))
        return
    step = harness.fill(size, max_num_gen_batches=len(rounds))
    assert [prompt.row for prompt in step.prompts] == [row for row, _ in found[:size]]
    np.testing.assert_array_equal(step.batch["reward/acc"], np.ravel([values for _, values in found[:size]]))
    np.testing.assert_array_equal(step.batch["reward"], 10 * step.batch["reward/acc"])
    np.testing.assert_array_equal(step.batch["group"], np.repeat(np.arange(size), n))
    counts = counted(step)
    assert counts["num_gen_batches"] == used == harness.drawn
    assert counts["evicted_samples"] == used * per_round - len(found)
    assert counts["discarded_surplus_samples"] == len(found) - size
    assert len(set(harness.keys)) == used * per_round * n


# The number by which responses are compared


def test_a_number_that_is_not_reported_is_an_error_that_names_those_that_are() -> None:
    scored = scored_of([[1, 0]])
    with pytest.raises(UserError) as caught:
        reported_columns(scored, [prompt(0)] * 2, {"f1": "algorithm.filter_groups.metric"})
    assert str(caught.value).startswith(
        "algorithm.filter_groups.metric asks for 'f1', which the reward does not report; it reports acc, score."
    )


def test_a_number_that_is_reported_for_some_responses_only_is_an_error() -> None:
    scored = scored_of([[1, 0, 1]])
    scored = Scored(**{**vars(scored), "extra": {"score": scored.rewards, "acc": np.array([1, NAN, NAN], np.float32)}})
    with pytest.raises(UserError, match=r"not for 2 of 3, the first to row 5 of the data files \(data source 'test'\)"):
        reported_columns(scored, [prompt(4), prompt(5), prompt(6)], {"acc": "KEY"})


def test_responses_that_could_not_be_scored_have_no_number() -> None:
    nothing = np.full(2, NAN, np.float32)
    scored = Scored(nothing, [], {"score": nothing}, {}, {}, {})
    columns = reported_columns(scored, [prompt(0)] * 2, {"acc": "KEY", "score": "KEY"})
    assert {name: np.isnan(column).all() for name, column in columns.items()} == {
        "reward/acc": True,
        "reward/score": True,
    }
    one = scored_of([[1, NAN]])
    assert reported_columns(one, [prompt(0)] * 2, {"acc": "KEY"})["reward/acc"].tolist()[0] == 1.0


# The configuration

PATHS = ("data.train_files=train.parquet", "data.val_files=val.parquet", "actor_rollout_ref.model.path=model")
SECTION = "algorithm.filter_groups"
ENABLE = (f"{SECTION}.enable=true", "actor_rollout_ref.rollout.n=4")


def configured(*arguments: str, **options: Any) -> Resolved:
    return resolve([*PATHS, *arguments], **options)


def refused(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        configured(*arguments)
    return "\n".join(caught.value.problems)


def test_it_is_off_unless_asked_for_and_compares_acc() -> None:
    assert configured().config.algorithm.filter_groups == FilterGroupsConfig(False, "acc", 10)
    assert configured(*ENABLE).config.algorithm.filter_groups == FilterGroupsConfig(True, "acc", 10)


def test_what_a_published_file_says_of_a_run_without_it_is_accepted() -> None:
    published = {"enable": "false", "metric": "null", "max_num_gen_batches": "0", "max_inflight_gen_batches": "1"}
    resolved = configured(*(f"{SECTION}.{name}={value}" for name, value in published.items()))
    assert resolved.notices == []
    assert not resolved.config.algorithm.filter_groups.enable


@pytest.mark.parametrize("override", ["metric=score", "max_num_gen_batches=3"])
def test_its_keys_have_no_effect_while_it_is_off(override: str) -> None:
    assert f"{SECTION}.enable=false" in refused(f"{SECTION}.{override}")
    assert len(configured(f"{SECTION}.{override}", allow_unused=True).notices) == 1


def test_published_metrics_are_renamed_or_have_a_reason() -> None:
    resolved = configured(*ENABLE, f"{SECTION}.metric=seq_reward")
    assert resolved.config.algorithm.filter_groups.metric == "score"
    assert any("is now called" in notice for notice in resolved.notices)
    assert "before the KL penalty is known" in refused(*ENABLE, f"{SECTION}.metric=seq_final_reward")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (f"{SECTION}.max_inflight_gen_batches=2", "in step with training"),
        ("data.gen_batch_size=12", "drawn data.train_batch_size at a time"),
        (f"{SECTION}.max_num_gen_batches=-1", "or 0 for one pass over the training prompts"),
        ("actor_rollout_ref.rollout.n=1", "a single response differs from nothing"),
    ],
)
def test_what_cannot_be_is_told(override: str, words: str) -> None:
    assert words in refused(*ENABLE, override)


# With a real engine

#: Gives the accuracies of a list, one response after the other, and then `rest` for ever.
SCRIPTED = """
accuracies = iter({accuracies})

def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    acc = next(accuracies, {rest})
    return {{"score": 2.0 * acc + 1, "acc": acc}}
"""
ON: dict[str, object] = {"algorithm__filter_groups__enable": "true", "reward__num_workers": 0}


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[..., Path]:
    def write(*rounds: Round, rest: float = 1.0) -> Path:
        accuracies = [value for values in rounds for group in values for value in group]
        path = tmp_path / "scripted.py"
        path.write_text(SCRIPTED.format(accuracies=accuracies, rest=rest))
        return path

    return write


def test_the_bug_banks_rounds_through_a_whole_step(overrides: Overrides, scripted: Callable[..., Path]) -> None:
    """Bug bank C30 and C32, with a model that generates, and rewards that give the accuracies of C32."""
    config = resolve(
        overrides(
            **ON,
            data__train_batch_size=2,
            actor_rollout_ref__actor__ppo_mini_batch_size=2,
            algorithm__filter_groups__max_num_gen_batches=2,
            reward__custom_reward_function__path=scripted(ROUND_1, ROUND_2),
        )
    ).config
    parts = build(config)
    algorithm = PPO(parts.config, parts.controller, parts.workers, parts.scorer, parts.tokenizer)
    every = parts.loader.all_prompts()
    further = iter([every[3:6], every[6:9]])
    step = Step(1, 0, every[:3], draw=lambda: next(further), batches_per_epoch=3)
    run_phases(algorithm.phases(), step)
    assert [prompt.row for prompt in step.prompts] == [every[1].row, every[3].row]
    batch = step.batch
    assert batch["reward"].tolist() == [3, 1, 1, 3]
    assert batch["reward/acc"].tolist() == [1, 0, 0, 1]
    assert batch["group"].tolist() == [0, 0, 1, 1]
    assert all(len(column) == 4 for column in batch.sequences.values())
    rewarded = [float(rows.sum()) for rows in batch.per_sequence("token_rewards")]
    assert len(rewarded) == 4
    for number, (ids, mask) in enumerate(
        zip(batch.per_sequence("input_ids"), batch.per_sequence("sampled_mask"), strict=True)
    ):
        assert ids[~mask].tolist() == step.prompts[number // 2].prompt_ids
    assert step.metrics["critic/score/mean"] == 2.0  # of the kept responses
    assert step.metrics["reward/acc"] == pytest.approx(7 / 12)  # of all
    assert counted(step)["discarded_surplus_samples"] == 1.0
    assert next(further) == every[6:9]  # no third batch was drawn


def rows_of(run_dir: Path) -> list[dict[str, float]]:
    return [json.loads(line)["data"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_a_run_stops_where_the_data_teach_nothing_and_keeps_its_checkpoints(
    overrides: Overrides, scripted: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug bank C32: all solved from the second step on: one clear error, after the limit of batches."""
    command = overrides(
        **ON,
        trainer__val_before_train="false",
        trainer__save_freq=1,
        algorithm__filter_groups__max_num_gen_batches=3,
        reward__custom_reward_function__path=scripted([[1, 0]] * 8),
    )
    with pytest.raises(SystemExit) as stopped:
        run_training(command)
    assert stopped.value.code == 1
    message = " ".join(capsys.readouterr().err.split())
    assert "Only 0 of 8 groups have responses that differ in acc, after 3 batches" in message
    assert "Of 24 groups, 24 were dropped: all of acc 1: 24 groups." in message
    assert (tmp_path / "run" / "global_step_1").is_dir()
    assert len(rows_of(tmp_path / "run")) == 1


def test_an_unknown_number_is_an_error_in_the_first_step(
    overrides: Overrides, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run_training(overrides(**ON, algorithm__filter_groups__metric="f1", trainer__val_before_train="false"))
    assert "asks for 'f1', which the reward does not report; it reports acc, score." in " ".join(
        capsys.readouterr().err.split()
    )


def test_an_unknown_number_is_found_before_the_models_are_loaded(
    overrides: Overrides, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reward that remembers its calls is tried in a process of its own, and meets its first response in training."""

    def start(self: LocalController, roles: object) -> None:
        raise AssertionError("models are loaded")

    (tmp_path / "reward.py").write_text(
        "calls = 0\n\ndef compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    global calls\n    calls += 1\n    return {'score': calls, 'calls': calls}\n"
    )
    own = {**ON, "reward__custom_reward_function__path": tmp_path / "reward.py"}
    monkeypatch.setattr(LocalController, "start", start)
    with pytest.raises(UserError, match=r"metric asks for 'acc', its default, .* it reports calls, score\. Set"):
        build(resolve(overrides(**own)).config)
    for keys in ({"algorithm__filter_groups__metric": "calls"}, {"trainer__val_only": "true"}):
        with pytest.raises(AssertionError, match="models are loaded"):
            build(resolve(overrides(**own, **keys)).config)
    monkeypatch.undo()
    parts = build(resolve(overrides(**own, algorithm__filter_groups__metric="calls")).config)
    first = parts.scorer.score(parts.validation_prompts[:1], ["1"], response_tokens=[1])
    assert first.rewards.tolist() == [1.0]


def test_every_step_trains_on_whole_batches_and_epochs_pass_faster(
    overrides: Overrides, assets: Path, tmp_path: Path
) -> None:
    """Steps keep their number; a step's prompts that were cut are counted over all that were drawn."""
    run_training(
        overrides(
            **ON,
            algorithm__filter_groups__metric="score",
            trainer__total_training_steps=5,
            trainer__val_before_train="false",
            data__max_prompt_length=4,
            data__truncation="left",
        )
    )
    rows = rows_of(tmp_path / "run")
    assert [row["training/global_step"] for row in rows] == [1, 2, 3, 4, 5]
    batches = [row["training/filter_groups/num_gen_batches"] for row in rows]
    assert sum(batches) > len(rows)  # responses do coincide here and there
    assert [row["data/truncated_prompts"] for row in rows] == [8 * count for count in batches]
    assert rows[-1]["data/truncated_prompts_total"] == 8 * sum(batches)
    drawn = [sum(batches[:number]) for number in range(len(rows))]
    assert [row["training/epoch"] for row in rows] == [count // 2 for count in drawn]
    for row, count in zip(rows, batches, strict=True):
        dropped = (
            row["training/filter_groups/evicted_samples"] + row["training/filter_groups/discarded_surplus_samples"]
        )
        assert 8 * count - dropped == 8
        assert row["critic/score/max"] > row["critic/score/min"]
        assert "timing_s/filter_groups" in row


def test_a_run_without_dynamic_sampling_is_the_same_as_ever(overrides: Overrides, tmp_path: Path) -> None:
    """Where every group has information, filtering drops nothing and changes no number."""
    seen = []
    reward = tmp_path / "distinct.py"
    reward.write_text(
        "calls = 0\n\n\ndef compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    global calls\n    calls += 1\n    return calls % 5 / 5\n"
    )
    for enable in ("false", "true"):
        run_dir = tmp_path / "run"
        shutil.rmtree(run_dir, ignore_errors=True)
        run_training(
            overrides(
                **{**ON, "algorithm__filter_groups__enable": enable},
                reward__custom_reward_function__path=reward,
                trainer__val_before_train="false",
            )
        )
        names = ("critic/score/mean", "actor/pg_loss", "actor/grad_norm", "critic/vf_loss", "response_length/mean")
        seen.append([{name: row[name] for name in names} for row in rows_of(run_dir)])
    assert seen[0] == seen[1]
