"""Rewards in real runs: functions that hang, raise or end their worker, models, a judge and the overlong penalty."""

import json
import re
import signal
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from endings import signalled
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForSequenceClassification
from verl_algos import rewards
from verl_cli import reward_workers
from verl_cli.build import build
from verl_cli.config import ConfigError, CustomRewardConfig, RewardConfig, RewardModelConfig, resolve
from verl_cli.failures import explain
from verl_cli.phases import Step
from verl_cli.ppo import PPO
from verl_cli.run.same_run import content
from verl_cli.scoring import Scorer, load_scorer, tell_failures
from verl_cli.system.resources import CpuShare
from verl_cli.trainer import fit
from verl_data import DataError, Prompt

Overrides = Callable[..., list[str]]

#: Of every eight responses one raises, one ends its worker, one computes for ever and one sleeps.
BAD = """
import os, time

def compute_score(data_source, solution_str, ground_truth, extra_info=None, hangs=True):
    place = sum(map(ord, solution_str)) % 8
    if place == 1:
        raise ValueError("no reward for " + repr(solution_str))
    if place == 2:
        os._exit(3)
    if place == 3 and hangs:
        while True:
            pass
    if place == 4 and hangs:
        time.sleep(1000)
    return {"score": place / 7, "acc": place == 7, "length": len(solution_str)}
"""
#: In runs, where every row that hangs first in a worker costs the seconds that a worker may take to start.
WITHOUT_HANGING = {"reward__custom_reward_function__reward_kwargs": "{hangs: false}"}


def prompts(count: int, **changes: Any) -> list[Prompt]:
    fields: dict[str, Any] = {
        "group": 0,
        "prompt_ids": [1, 2],
        "messages": [{"role": "user", "content": "1+1="}],
        "data_source": "openai/gsm8k",
        "ground_truth": "2",
        "extra_info": {"index": 5},
        "fields": {},
        "truncated": False,
    }
    return [Prompt(row=10 + number, **{**fields, **changes}) for number in range(count)]


def own(tmp_path: Path, text: str, **options: Any) -> Scorer:
    (tmp_path / "own.py").write_text(text)
    custom = CustomRewardConfig(path=str(tmp_path / "own.py"), reward_kwargs=options.pop("reward_kwargs", {}))
    return load_scorer(RewardConfig(custom, **{"num_workers": 0, **options}), device="cpu")


# Failures


@pytest.mark.parametrize("workers", [1, 2])
def test_what_fails_is_counted_and_told_and_the_others_are_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    texts = [chr(place) for place in (96, 97, 98, 99, 100, 101, 103, 104)]  # 0 to 5, 7, 0
    with own(tmp_path, BAD, num_workers=workers, cpu_seconds=1, wall_seconds=3) as scorer:
        scored = scorer.score(prompts(8), texts, response_tokens=[1] * 8)
    nan = np.nan
    np.testing.assert_array_equal(scored.rewards, np.array([0, nan, nan, nan, nan, 5 / 7, 1, 0], np.float32))
    np.testing.assert_array_equal(scored.extra["score"], scored.rewards)
    np.testing.assert_array_equal(scored.extra["acc"], np.array([0, nan, nan, nan, nan, 0, 1, 0], np.float32))
    assert scored.metrics["reward/acc"] == 0.25 and scored.metrics["reward/length"] == 1.0
    assert (scored.counts["reward/timeout"], scored.counts["reward/exception"]) == (2, 2)
    assert scored.counts["reward/workers_replaced"] == 3
    tell_failures(scored, "Step 7")
    first, second, _, last = capsys.readouterr().err.strip().splitlines()
    assert first.startswith("Step 7: a response could not be scored (exception): The reward function compute_score (")
    assert "failed on the response to row 11 of the data files (data_source 'openai/gsm8k')" in first
    assert first.count("row ") == 1, "one number names the response"
    assert f"no reward for 'a', at {tmp_path}/own.py:7" in first
    assert "row 12" in second and "exited with code 3" in second
    assert last == "Step 7: 1 more responses could not be scored."


def test_any_number_of_workers_gives_the_same(tmp_path: Path) -> None:
    text = (
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return len(solution_str) / 3"
    )
    texts = ["x" * (place % 7) for place in range(200)]
    found = []
    for workers in (0, 1, 2):
        with own(tmp_path, text, num_workers=workers) as scorer:
            found.append(scorer.score(prompts(200), texts, response_tokens=[1] * 200))
    assert found[0].scores == found[1].scores == found[2].scores
    assert found[0].metrics == found[1].metrics == found[2].metrics


def test_a_failure_names_the_response_once(tmp_path: Path) -> None:
    """The number of the row in the files, and of the response among those to it: not its place in the batch."""
    of_rows = [prompt for prompt in prompts(2) for _ in range(3)]
    text = "def compute_score(solution_str, **row):\n    return {'score': 1 / int(solution_str)}"
    with own(tmp_path, text) as scorer:
        failures = scorer.score(of_rows, ["1", "1", "1", "1", "0", "x"], response_tokens=[1] * 6).failures
        with pytest.raises(rewards.RewardError) as caught:
            scorer.score(of_rows, ["x"] * 6, response_tokens=[1] * 6)
    assert {index: re.findall(r"response \d of \d to row \d+", one.message) for index, one in failures.items()} == {
        4: ["response 2 of 3 to row 11"],
        5: ["response 3 of 3 to row 11"],
    }
    assert not any("on row" in failure.message for failure in failures.values())
    assert "failed on response 1 of 3 to row 10 of the data files" in str(caught.value)
    assert "on row" not in str(caught.value)


def test_a_reward_that_always_hangs_ends_the_step_early(tmp_path: Path) -> None:
    text = "import asyncio\n\nasync def compute_score(**row):\n    await asyncio.sleep(1000)"
    with own(tmp_path, text, wall_seconds=0.2) as scorer, pytest.raises(rewards.RewardError) as caught:
        scorer.score([prompts(1)[0]] * 500, ["1"] * 500, response_tokens=[1] * 500)
    told = explain(caught.value)
    assert told is not None and "all reached a limit of time" in told and "wall_seconds" in told
    assert re.search(r"\(response \d+ of 500 to row 10 of the data files\)\.$", told)


def test_responses_that_could_all_not_be_scored_are_an_error(tmp_path: Path) -> None:
    with own(tmp_path, BAD, num_workers=1, cpu_seconds=0.5) as scorer:
        with pytest.raises(rewards.RewardError, match=r"All 2 rows failed.*row 10 of the data files"):
            scorer.score(prompts(2), ["a", "a"], response_tokens=[1, 1])
        with pytest.raises(rewards.RewardError, match=r"None of 2 responses.*row 10.*reward\.cpu_seconds"):
            scorer.score(prompts(2), ["c", "a"], response_tokens=[1, 1])
        assert np.isnan(scorer.score(prompts(1), ["a"], response_tokens=[1]).rewards).all()


def run(overrides: list[str]) -> tuple[list[dict[str, float]], list[dict[str, Any]]]:
    """Train; the metrics of each step, and the validation samples."""
    config = resolve(overrides).config
    fit(build(config))
    folder = Path(config.trainer.default_local_dir)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    samples = [json.loads(line) for line in (folder / "val_samples.jsonl").read_text().splitlines()]
    return [row["data"] for row in rows], samples


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_training_goes_on_without_what_could_not_be_scored(
    overrides: Overrides, tmp_path: Path, estimator: str
) -> None:
    (tmp_path / "bad.py").write_text(BAD)
    keys: dict[str, Any] = {"reward__custom_reward_function__path": tmp_path / "bad.py", **WITHOUT_HANGING}
    keys |= {"algorithm__adv_estimator": estimator, "actor_rollout_ref__rollout__val_kwargs__temperature": 1}
    keys |= {"reward__num_workers": 2}
    given = overrides(**keys, actor_rollout_ref__rollout__n=4)
    metrics, samples = run([key for key in given if estimator == "gae" or not key.startswith("critic.")])
    for step in (step for step in metrics if "critic/score/mean" in step):
        assert step["reward/exception"] >= step["reward/workers_replaced"] > 0
        assert np.isfinite(list(step.values())).all()
        assert 0 <= step["critic/score/min"] <= step["critic/score/max"] <= 1
    failed = [sample for sample in samples if "failure" in sample]
    assert {(sample["score"], sample["acc"]) for sample in failed} <= {(0.0, 0.0)}
    last = metrics[-1]
    counts = [last[f"val-aux/reward/{name}"] for name in ("timeout", "exception")]
    assert sum(counts) == sum(sample["step"] == 2 for sample in failed)
    assert "val-core/verl/arithmetic/acc/mean@1" in last


def test_a_response_without_a_reward_moves_nothing(overrides: Overrides, tmp_path: Path) -> None:
    """Advantage 0, no trained token, and the baseline of its group is that of the others."""
    (tmp_path / "bad.py").write_text(BAD)
    keys = {
        "reward__custom_reward_function__path": tmp_path / "bad.py",
        **WITHOUT_HANGING,
        "algorithm__adv_estimator": "grpo",
    }
    keys |= {"actor_rollout_ref__rollout__n": 6, "algorithm__norm_adv_by_std_in_grpo": "false"}
    keys |= {"reward__num_workers": 2}
    parts = build(resolve([key for key in overrides(**keys) if not key.startswith("critic.")]).config)
    algorithm = PPO(parts.config, parts.controller, parts.workers, parts.scorer, parts.tokenizer)
    step = Step(number=1, epoch=0, prompts=next(iter(parts.loader.batches()))[1])
    try:
        algorithm.generate(step)
        before = {name: np.array(step.batch[name]) for name in ("sampled_mask", "loss_mask")}
        algorithm.reward(step)
        algorithm.old_logprobs(step)
        algorithm.advantages(step)
    finally:
        parts.scorer.close()
        parts.controller.shutdown()
    batch, reward = step.batch, np.array(step.batch["reward"])
    np.testing.assert_array_equal(batch["sampled_mask"], before["sampled_mask"])
    assert 0 < np.isnan(reward).sum() < len(reward)
    starts = np.array(batch.cu_seqlens)
    for row, (start, end) in enumerate(pairwise(starts)):
        mask, advantage = batch["loss_mask"][start:end], batch["advantages"][start:end]
        if np.isnan(reward[row]):
            assert not mask.any() and not advantage.any()
            continue
        np.testing.assert_array_equal(mask, before["loss_mask"][start:end])
        others = reward[(batch["group"] == batch["group"][row]) & ~np.isnan(reward)]
        expected = reward[row] - others.mean() if len(others) > 1 else 0.0
        np.testing.assert_allclose(advantage[mask], expected, atol=1e-6)
    assert step.metrics["critic/score/mean"] == pytest.approx(np.nanmean(reward.astype(float)))


# What is reported, and options


def test_numbers_beside_the_reward_are_columns(tmp_path: Path) -> None:
    text = """
async def compute_score(data_source, solution_str, ground_truth, extra_info=None, bonus=0):
    numbers = {"a": {"acc": True, "half": 0.5}, "b": {"half": float("inf"), "big": 10**400}, "c": {"word": "no"}}
    return {"score": bonus, **numbers[solution_str]}
"""
    scorer = own(tmp_path, text, reward_kwargs={"bonus": 2})
    scored = scorer.score(prompts(3), ["a", "b", "c"], response_tokens=[1, 1, 1])
    columns = {name: list(values) for name, values in scored.extra.items()}
    assert {name: repr([float(value) for value in values]) for name, values in columns.items()} == {
        "score": "[2.0, 2.0, 2.0]",
        "acc": "[1.0, nan, nan]",
        "half": "[0.5, nan, nan]",
        "big": "[nan, nan, nan]",
    }
    assert all(values.dtype == np.float32 for values in scored.extra.values())
    assert scored.means == {"reward/acc": 1.0, "reward/half": 0.5}


def test_a_rule_by_name_takes_every_data_source() -> None:
    rows = {"mine": "row 0"}
    with pytest.raises(DataError, match=r"reward_kwargs=\{rule: NAME\}"):
        load_scorer(RewardConfig(num_workers=0), device="cpu").check(rows)
    scorer = load_scorer(RewardConfig(CustomRewardConfig(reward_kwargs={"rule": "boxed"}), num_workers=0), device="cpu")
    scorer.check(rows)
    scored = scorer.score(prompts(2, data_source="mine"), [r"\boxed{2}", "2"], response_tokens=[1, 1])
    assert list(scored.rewards) == [1.0, 0.0]
    assert scored.counts["reward/unparsable"] == 1
    with pytest.raises(rewards.RewardLoadError, match=r"no reward rule 'box'.*boxed"):
        load_scorer(RewardConfig(CustomRewardConfig(reward_kwargs={"rule": "box"})), device="cpu")


def test_a_function_of_an_installed_module() -> None:
    custom = CustomRewardConfig(path="pkg://verl_cli.quickstart.rewards", name="constant_reward")
    with load_scorer(RewardConfig(custom, num_workers=1), device="cpu") as scorer:
        scored = scorer.score(prompts(2), ["2", "3"], response_tokens=[1, 1])
    assert list(scored.rewards) == [1.0, 1.0] and list(scored.extra["acc"]) == [1.0, 0.0]


@pytest.mark.parametrize(("given", "started"), [(0, 0), (3, 3)])
def test_the_number_of_workers_is_the_users(given: int, started: int) -> None:
    assert load_scorer(RewardConfig(num_workers=given), device="cpu").runner.num_workers == started
    assert 1 <= load_scorer(RewardConfig(), device="cpu").runner.num_workers <= 8


# The overlong penalty


def penalised(overrides: Overrides, **changes: Any) -> RewardConfig:
    keys = {"reward__reward_manager__name": "dapo", "reward__reward_kwargs__overlong_buffer_cfg__enable": True}
    keys |= {"reward__reward_kwargs__overlong_buffer_cfg__len": 2, "reward__num_workers": 0, **changes}
    return resolve(overrides(**keys)).config.reward


@pytest.mark.parametrize(
    ("workers", "prompts_per_step", "said"),
    [
        (1025, 1024, "must be from 0 to 1024 processes"),
        (65, 8, "65 processes would score the 16 responses of a step (data.train_batch_size x"),
        (64, 8, None),
        (1000, 128, None),
        (0, 8, None),
    ],
)
def test_more_workers_than_responses_are_refused(
    overrides: Overrides, workers: int, prompts_per_step: int, said: str | None
) -> None:
    keys = overrides(reward__num_workers=workers, data__train_batch_size=prompts_per_step)
    if said is None:
        resolve(keys)
        return
    with pytest.raises(ConfigError) as caught:
        resolve(keys)
    assert said in str(caught.value)


def test_a_run_says_that_it_has_more_workers_than_cores(overrides: Overrides, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_workers, "cpu_share", lambda: CpuShare(host=64, affinity=4, quota=1.5))
    notices = build(resolve(overrides(reward__num_workers=9)).config).notices
    assert [notice for notice in notices if "reward.num_workers=9 processes share 1 core " in notice]


def test_overlong_responses_lose(overrides: Overrides) -> None:
    """DAPO, equation 13: nothing up to max - len tokens, then linear to -factor at max; acc stays."""
    factor = {"reward__reward_kwargs__overlong_buffer_cfg__penalty_factor": 0.5}
    log = {"reward__reward_kwargs__overlong_buffer_cfg__log": True}
    scorer = load_scorer(penalised(overrides, **factor, **log), device="cpu")
    texts = ["a", "b", "c", "a"]
    plain = load_scorer(resolve(overrides(reward__num_workers=0)).config.reward, device="cpu")
    before = plain.score(prompts(4), texts, response_tokens=[1, 2, 3, 4])
    after = scorer.score(prompts(4), texts, response_tokens=[1, 2, 3, 4])
    np.testing.assert_allclose(after.rewards - before.rewards, [0, 0, -0.25, -0.5], atol=1e-6)
    np.testing.assert_array_equal(after.extra["score"], before.rewards)  # as published: before the penalty
    np.testing.assert_array_equal(after.extra["acc"], before.extra["acc"])
    assert after.means["reward/overlong"] == 0.5 and after.means["reward/overlong_reward"] == -0.1875


def test_dapo_without_a_buffer_changes_nothing(overrides: Overrides) -> None:
    """Bug bank B31 in a run: the manager's own defaults."""
    reward = resolve(overrides(reward__reward_manager__name="dapo", reward__num_workers=0)).config.reward
    scored = load_scorer(reward, device="cpu").score(prompts(1), ["a"], response_tokens=[4])
    assert list(scored.rewards) == [np.float32(97 % 7 / 7)]


def test_validation_has_the_penalty_too(overrides: Overrides) -> None:
    keys: dict[str, Any] = {"reward__reward_manager__name": "dapo"}
    keys |= {"reward__reward_kwargs__overlong_buffer_cfg__enable": "true"}
    keys |= {"reward__reward_kwargs__overlong_buffer_cfg__len": 4, "actor_rollout_ref__rollout__ignore_eos": "true"}
    keys |= {"reward__reward_kwargs__overlong_buffer_cfg__penalty_factor": 10, "trainer__val_only": "true"}
    _, samples = run(overrides(**keys, reward__num_workers=0))
    assert {sample["response_length"] for sample in samples} == {4}
    assert all(-10 <= sample["score"] <= -9 for sample in samples)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reward__reward_kwargs__overlong_buffer_cfg__len": 0}, "needs a buffer"),
        ({"reward__reward_kwargs__overlong_buffer_cfg__len": 5}, "every response would be punished"),
        ({"reward__reward_kwargs__overlong_buffer_cfg__len": 4, "reward__reward_kwargs__max_resp_len": 3}, "Lower it"),
    ],
)
def test_a_buffer_that_cannot_be(overrides: Overrides, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        penalised(overrides, **changes)


# Models

MODEL = """
from verl import RewardModel

class Mine(RewardModel):
    def __init__(self, scale=1.0):
        self.scale = scale

    def score(self, rows):
        assert all(row.extra_info["prompt"][0]["role"] == "user" for row in rows)
        return [
            {"score": self.scale * len(row.solution_str), "questions": len(row.extra_info["prompt"])}
            if row.solution_str != "bad" else ValueError("not this one")
            for row in rows
        ]
"""


def by_model(**options: Any) -> Scorer:
    return load_scorer(RewardConfig(reward_model=RewardModelConfig(enable=True, **options)), device="cpu")


def test_a_class_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    scorer = by_model(path=f"{tmp_path / 'mine.py'}:Mine", kwargs={"scale": 2.0})
    scorer.check({"anything": "row 0"})
    scored = scorer.score(prompts(3), ["a", "bad", "aaa"], response_tokens=[1, 3, 3])
    np.testing.assert_array_equal(scored.rewards, np.array([2, np.nan, 6], np.float32))
    assert scored.counts["reward/exception"] == 1 and scored.means["reward/questions"] == 1
    with pytest.raises(rewards.RewardLoadError, match="raised TypeError when it was made"):
        by_model(path=f"{tmp_path / 'mine.py'}:Mine", kwargs={"scales": 2.0})
    with pytest.raises(rewards.RewardLoadError, match="'Yours' is not defined"):
        by_model(path=f"{tmp_path / 'mine.py'}:Yours")


@pytest.mark.alone
def test_a_run_with_a_class_of_ones_own(overrides: Overrides, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    keys = [key for key in overrides() if not key.startswith("reward.")]
    metrics, _ = run([*keys, f"reward.reward_model.path={tmp_path / 'mine.py'}:Mine", "trainer.total_training_steps=1"])
    assert metrics[-1]["critic/score/mean"] == pytest.approx(metrics[-1]["critic/score/mean"])
    assert metrics[-1]["reward/questions"] == 1 and metrics[-1]["reward/exception"] == 0


def test_a_hugging_face_folder(assets: Path, tmp_path: Path) -> None:
    folder = tmp_path / "scorer"
    config = Qwen2Config.from_pretrained(assets / "model", num_labels=1, initializer_range=0.5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        classifier: Any = Qwen2ForSequenceClassification
        model = classifier(config).eval()
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(assets / "model")
    tokenizer.save_pretrained(folder)
    scorer = by_model(model_path=str(folder), kwargs={"batch_tokens": 8})
    scored = scorer.score(prompts(3), ["2", "345", ""], response_tokens=[1, 3, 0])
    expected = []
    for text in ("1+1=2", "1+1=345", "1+1="):
        ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
        with torch.inference_mode():
            expected.append(model(ids).logits.item())
    np.testing.assert_allclose(scored.rewards, expected, atol=1e-4)
    assert len(set(scored.rewards)) == 3
    with pytest.raises(rewards.RewardLoadError, match=r"no config\.json"):
        by_model(model_path=str(tmp_path))


class Judge(BaseHTTPRequestHandler):
    """Gives 0.5, and keeps what it was asked."""

    asked: list[dict[str, Any]]

    def do_POST(self) -> None:
        self.asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        answer = json.dumps({"choices": [{"message": {"content": "Half right.\nScore: 0.5"}}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture
def judge() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server, and what it was asked."""
    asked: list[dict[str, Any]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OfThisTest", (Judge,), {"asked": asked}))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1", asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_judge_behind_a_url(judge: tuple[str, list[dict[str, Any]]]) -> None:
    pytest.importorskip("httpx")
    url, asked = judge
    scorer = by_model(path="verl_algos.rewards:JudgeRewardModel", kwargs={"url": url, "model": "m", "max_tries": 1})
    scored = scorer.score(prompts(2), ["2", "3"], response_tokens=[1, 1])
    assert list(scored.rewards) == [0.5, 0.5]
    assert {request["model"] for request in asked} == {"m"}
    assert all("[Question]\n1+1=\n" in request["messages"][0]["content"] for request in asked)


def test_two_sources_of_rewards_are_refused(overrides: Overrides) -> None:
    with pytest.raises(
        ConfigError, match=r"custom_reward_function\.path=.*reward\.py and reward\.reward_model\.path=m\.py:M"
    ):
        resolve(overrides(reward__reward_model__path="m.py:M"))
    bare = [key for key in overrides() if not key.startswith("reward.")]
    with pytest.raises(ConfigError, match="Two reward models are named"):
        resolve([*bare, "reward.reward_model.path=m.py:M", "reward.reward_model.model_path=m"])
    with pytest.raises(ConfigError, match="no model is named"):
        resolve([*bare, "reward.reward_model.enable=true"])
    with pytest.raises(ConfigError, match=r"reward_model\.path=m\.py:M has no effect"):
        resolve([*bare, "reward.reward_model.enable=false", "reward.reward_model.path=m.py:M"])
    with pytest.raises(ConfigError, match=r"num_workers=2 has no effect.*reward model"):
        resolve([*bare, "reward.reward_model.model_path=m", "reward.num_workers=2"])
    with pytest.raises(ConfigError, match=r"memory_mb=2 has no effect.*reward\.num_workers=0"):
        resolve([*bare, "reward.num_workers=0", "reward.memory_mb=2"])


def test_a_run_remembers_what_its_reward_model_was(overrides: Overrides, assets: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    bare = [key for key in overrides() if not key.startswith("reward.")]

    def of(*keys: str) -> dict[str, str]:
        return content(resolve([*bare, *keys]).config)

    by_class, by_folder = (f"reward.reward_model.path={tmp_path / 'mine.py'}:Mine"), "reward.reward_model.model_path"
    before = of(by_class)
    (tmp_path / "mine.py").write_text(MODEL + "\n")
    changed = {key for key, value in of(by_class).items() if value != before[key]}
    assert changed == {"reward.reward_model.path"}
    assert by_folder in of(f"{by_folder}={assets / 'model'}")


def test_a_signal_that_a_reward_swallows_still_ends_the_run(overrides: Overrides, tmp_path: Path) -> None:
    """A bare except around a reward that runs in the trainer's process catches what SIGTERM raises there."""
    reward = tmp_path / "swallows.py"
    reward.write_text(
        "import pathlib, time\n"
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        f"    pathlib.Path({str(tmp_path / 'scoring')!r}).touch()\n"
        "    try:\n"
        "        time.sleep(0.3)\n"
        "        return 0.0\n"
        "    except:\n"
        "        return 7.0\n"
    )
    keys = {"reward__custom_reward_function__path": reward, "reward__num_workers": 0}
    command = overrides(**keys, trainer__val_before_train="false", trainer__total_training_steps=5)
    program = "import sys; from verl_cli.main import main; sys.argv[0] = 'verl-cli'; main()"
    code, errors = signalled(["-c", program, "train", *command], (tmp_path / "scoring").exists, signal.SIGTERM)
    assert code == 143, errors
    assert "Traceback" not in errors
    assert not list((tmp_path / "run").glob("global_step_*"))
