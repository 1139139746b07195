"""Validation: its numbers, its randomness, and what it leaves in val_samples.jsonl."""

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from verl_algos import rewards
from verl_cli.build import rollout_role
from verl_cli.config import RunConfig, resolve
from verl_cli.controller import LocalController, WorkerGroup
from verl_cli.evaluation.validation import SampleLog, ValidationResult, validate
from verl_cli.evaluation.validation_metrics import Outcome, accuracy, validation_metrics
from verl_cli.scoring import Scorer
from verl_cli.tokenizer import load_tokenizer
from verl_cli.tracking import validation_results
from verl_data import Prompt, PromptLoader

Overrides = Callable[..., list[str]]


def outcomes(source: str, row: int, *scored: tuple[float, dict[str, Any]]) -> list[Outcome]:
    return [Outcome(row, source, reward, extra) for reward, extra in scored]


# The numbers.


def test_accuracy_is_the_headline_where_the_reward_function_reports_it() -> None:
    found = validation_metrics(
        [
            *outcomes("math", 0, (1.0, {"acc": True, "pred": "4"}), (-1.0, {"acc": False, "pred": "5"})),
            *outcomes("math", 1, *((-1.0, {"acc": False, "pred": "7"}) for _ in range(2))),
            *outcomes("open", 2, (0.25, {}), (0.75, {})),
        ]
    )
    assert {name: value for name, value in found.items() if name.startswith("val-core/")} == {
        "val-core/math/acc/mean@2": 0.25,
        "val-core/math/acc/best@2": 0.5,
        "val-core/math/acc/maj@2": 0.25,
        "val-core/open/reward/mean@2": 0.5,
        "val-core/open/reward/best@2": 0.75,
    }
    assert {name: value for name, value in found.items() if name.startswith("val-aux/")} == {
        "val-aux/math/acc/std@2": 0.25,
        "val-aux/math/acc/worst@2": 0.0,
        "val-aux/math/reward/mean@2": -0.5,
        "val-aux/math/reward/std@2": 0.5,
        "val-aux/math/reward/best@2": 0.0,
        "val-aux/math/reward/worst@2": -1.0,
        "val-aux/math/reward/maj@2": -0.5,
        "val-aux/open/reward/std@2": 0.25,
        "val-aux/open/reward/worst@2": 0.25,
    }
    assert [result.name for result in validation_results(found)] == [
        "val-core/math/acc/mean@2",
        "val-core/open/reward/mean@2",
    ]


def test_k_doubles_up_to_n() -> None:
    found = validation_metrics(outcomes("a/b", 0, *((float(i == 0), {"acc": i == 0, "pred": i}) for i in range(6))))
    of_acc = {
        name.removeprefix("val-aux/a/b/acc/"): value for name, value in found.items() if "val-aux/a/b/acc" in name
    }
    assert sorted(of_acc) == [
        *("best@2", "best@4", "maj@2", "maj@4", "std@6", "worst@2", "worst@4", "worst@6"),
    ]
    assert of_acc["best@2"] == 2 / 6  # G04: 1 - C(5,2)/C(6,2)
    assert found["val-core/a/b/acc/best@6"] == 1.0
    assert found["val-core/a/b/acc/maj@6"] == pytest.approx(1 / 6)


def test_one_response_has_a_mean_only() -> None:
    found = validation_metrics(outcomes("math", 0, (1.0, {"acc": 1.0, "pred": "4", "format": True})))
    assert found == {
        "val-core/math/acc/mean@1": 1.0,
        "val-aux/math/reward/mean@1": 1.0,
        "val-aux/math/format/mean@1": 1.0,
    }


def test_rows_are_groups_and_the_order_of_outcomes_changes_no_bit() -> None:
    draw = random.Random(0)
    scored = [
        Outcome(row, f"source {row % 3}", draw.random(), {"acc": draw.random(), "pred": draw.choice("abc")})
        for row in range(12)
        for _ in range(8)
    ]
    shuffled = scored[:]
    draw.shuffle(shuffled)
    assert validation_metrics(scored) == validation_metrics(shuffled)
    assert accuracy(scored) == accuracy(shuffled)
    # The same prompt in two rows: two prompts with n = 2, not one with n = 4.
    twice = outcomes("s", 0, (1.0, {}), (1.0, {})) + outcomes("s", 1, (0.0, {}), (0.0, {}))
    assert validation_metrics(twice)["val-core/s/reward/best@2"] == 0.5


def test_what_some_responses_lack_is_counted() -> None:
    found = validation_metrics(
        [
            *outcomes("s", 0, (0.0, {"acc": 1, "tests": 3}), (1.0, {"tests": math.nan})),
            *outcomes("s", 1, (0.0, {"acc": 0, "tests": 5}), (0.0, {"acc": 1, "tests": 10**400})),
            *outcomes("s", 2, (0.0, {"acc": 0, "tests": 1}), (0.0, {"acc": 1, "tests": 2, "note": "text"})),
        ]
    )
    assert found["val-core/s/reward/mean@2"] == pytest.approx(1 / 6)  # not acc: a response lacks it
    assert found["val-aux/s/acc/missing"] == 1
    assert found["val-aux/s/acc/mean@2"] == 0.5
    assert found["val-aux/s/tests/missing"] == 2
    assert found["val-aux/s/tests/mean@2"] == 1.5
    assert not any("note" in name for name in found)


def test_answers_vote_whatever_they_are_made_of() -> None:
    answers: Sequence[Any] = [{"x": [1, 2]}, {"x": [1, 2]}, ["7"], None]
    scored = outcomes("s", 0, *((float(i < 2), {"pred": answer}) for i, answer in enumerate(answers)))
    assert validation_metrics(scored)["val-core/s/reward/maj@4"] == 1.0
    unanswered = outcomes("s", 0, (1.0, {"pred": "4"}), (0.0, {}), (0.0, {}))
    assert validation_metrics(unanswered)["val-core/s/reward/maj@3"] == 0.0  # two say nothing


# Responses of a real model.


def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any) -> dict[str, Any]:
    score = sum(map(ord, solution_str)) % 7 / 7
    return {"score": score, "acc": score > 0.5, "pred": solution_str[:1], "step": 9, "odd": math.inf, "set": {1}}


def scorer_of(function: rewards.RewardFunction) -> Scorer:
    return Scorer(rewards.RewardRunner(function, failed_score=math.nan), max_response_tokens=8)


class Setting:
    """A tiny model on its own validation prompts."""

    def __init__(self, overrides: Overrides, **changes: object) -> None:
        self.config: RunConfig = resolve(overrides(**changes)).config
        self.tokenizer = load_tokenizer(self.config.actor_rollout_ref.model)
        self.rollout: WorkerGroup = LocalController().start({"rollout": rollout_role(self.config)})["rollout"]
        data = self.config.data
        self.prompts = PromptLoader(data.val_files, self.tokenizer, data, training=False).all_prompts()
        self.scorer = scorer_of(compute_score)

    def validate(self, prompts: Sequence[Prompt] | None = None) -> ValidationResult:
        prompts = self.prompts if prompts is None else prompts
        return validate(self.config, prompts, self.rollout, self.scorer, self.tokenizer)


@pytest.fixture
def sampled(overrides: Overrides) -> Setting:
    """Four responses at temperature 1 for each of five prompts."""
    kwargs = "actor_rollout_ref__rollout__val_kwargs"
    return Setting(overrides, **{f"{kwargs}__n": 4, f"{kwargs}__temperature": 1, "data__max_response_length": 8})


def generations(result: ValidationResult) -> dict[tuple[int, int], str]:
    return {(sample["row"], sample["repeat"]): sample["generation"] for sample in result.samples}


def test_samples_are_the_same_at_every_validation_and_differ_between_repeats(sampled: Setting) -> None:
    first, second = sampled.validate(), sampled.validate()
    assert first == second
    found = generations(first)
    assert list(found) == [(row, repeat) for row in range(5) for repeat in range(4)]
    assert all(len({found[row, repeat] for repeat in range(4)}) > 1 for row in range(5))


def test_a_sample_depends_on_its_row_and_not_on_the_other_rows(sampled: Setting) -> None:
    whole = generations(sampled.validate())
    one = generations(sampled.validate([sampled.prompts[3]]))
    assert one == {key: text for key, text in whole.items() if key[0] == 3}


def test_equal_prompts_in_two_rows_are_two_groups(sampled: Setting) -> None:
    twice = [sampled.prompts[0], replace(sampled.prompts[0], row=1)]
    result = sampled.validate(twice)
    found = generations(result)
    assert [found[0, repeat] for repeat in range(4)] != [found[1, repeat] for repeat in range(4)]
    assert "val-core/verl/arithmetic/acc/mean@4" in result.metrics


def test_the_numbers_follow_from_the_samples(sampled: Setting) -> None:
    result = sampled.validate()
    acc = [float(sample["acc"]) for sample in result.samples]
    best = [max(acc[row * 4 : row * 4 + 4]) for row in range(5)]
    assert result.accuracy == result.metrics["val-core/verl/arithmetic/acc/mean@4"] == sum(acc) / 20
    assert result.metrics["val-core/verl/arithmetic/acc/best@4"] == sum(best) / 5
    lengths = [sample["response_length"] for sample in result.samples]
    assert result.metrics["val-aux/response_length/mean"] == sum(lengths) / 20
    cut = sum(sample["finish_reason"] == "length" for sample in result.samples)
    assert result.metrics["val-aux/response_length/clip_ratio"] == cut / 20


def test_calls_of_the_engine_change_nothing(overrides: Overrides) -> None:
    kwargs = "actor_rollout_ref__rollout__val_kwargs"
    changes = {f"{kwargs}__n": 4, f"{kwargs}__temperature": 1}
    whole = Setting(overrides, **changes)
    pieces = Setting(overrides, **changes, actor_rollout_ref__rollout__max_num_seqs=2)  # 2 prompts a call
    told: list[int] = []
    result = validate(pieces.config, pieces.prompts, pieces.rollout, pieces.scorer, pieces.tokenizer, told.append)
    assert told == [2, 4, 5]
    assert result.metrics == whole.validate().metrics


def test_a_sample_holds_everything_as_json(sampled: Setting, tmp_path: Path) -> None:
    log = SampleLog(tmp_path / "val_samples.jsonl")
    log.write(0, sampled.validate())
    rows = [json.loads(line) for line in (tmp_path / "val_samples.jsonl").read_text().splitlines()]
    assert len(rows) == 20
    first = rows[0]
    assert set(first) == {
        *("step", "data_source", "row", "repeat", "prompt", "generation", "initial_generation", "ground_truth"),
        *("score", "response_length", "finish_reason", "acc", "pred", "reward/step", "odd", "set"),
    }
    assert first["step"] == 0
    assert (first["reward/step"], first["odd"], first["set"]) == (9, None, "{1}")
    assert first["score"] == compute_score("", first["generation"], "", None)["score"]
    assert first["initial_generation"] == first["generation"]
    assert isinstance(first["acc"], bool)


def test_a_resumed_run_still_has_the_initial_answers(sampled: Setting, tmp_path: Path) -> None:
    path = tmp_path / "val_samples.jsonl"
    before = sampled.validate()
    SampleLog(path).write(0, before)
    after = ValidationResult({}, 0.0, [{**sample, "generation": "new"} for sample in before.samples])
    SampleLog(path).write(3, after)  # of another process
    with path.open("a") as file:
        file.write('{"step": 6, "cut sho')  # which was killed
    rows = [json.loads(line) for line in path.read_text().splitlines()[:40]]
    assert [row["generation"] for row in rows[20:]] == ["new"] * 20
    assert [row["initial_generation"] for row in rows[20:]] == [sample["generation"] for sample in before.samples]
    other = [{**sample, "prompt": "another"} for sample in before.samples]
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:40]))
    SampleLog(path).write(6, ValidationResult({}, 0.0, other))
    assert all(json.loads(line)["initial_generation"] is None for line in path.read_text().splitlines()[40:])


def test_without_a_validation_before_training_there_is_no_initial_answer(sampled: Setting, tmp_path: Path) -> None:
    path = tmp_path / "val_samples.jsonl"
    for step in (2, 4):
        SampleLog(path).write(step, sampled.validate())
    assert all(json.loads(line)["initial_generation"] is None for line in path.read_text().splitlines())


def test_a_reward_that_always_fails_names_the_row_of_the_file(sampled: Setting) -> None:
    def fails(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any) -> float:
        raise TimeoutError("the judge did not answer")

    sampled.scorer = scorer_of(fails)
    said = r"failed on response 1 of \d+ to row 4 of the data files.*TimeoutError"
    with pytest.raises(rewards.RewardError, match=said):
        sampled.validate(sampled.prompts[4:])
