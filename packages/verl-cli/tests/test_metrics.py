"""The numbers logged for a step: taken over the right rows, tokens and seconds, and absent where there is nothing."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer
from verl_cli.build import build
from verl_cli.columns import loss_denominators
from verl_cli.config import ActorConfig, CriticConfig, KlCtrlConfig, resolve
from verl_cli.kl_in_reward import kl_controller, penalise_kl
from verl_cli.losses import ActorLoss, CriticLoss
from verl_cli.phases import Step
from verl_cli.ppo import PPO
from verl_cli.step_metrics import average_throughput, of_batch, of_data, of_old_policy, of_time
from verl_data import DataConfig, PackedBatch, Prompt, PromptLoader, write_rows
from verl_engine import merge_metrics, over_steps

ACTOR = ActorConfig(clip_ratio_low=0.2, clip_ratio_high=0.2, clip_ratio_c=3.0, loss_agg_mode="token-mean")
CRITIC: Any = CriticConfig(model=None, loss_agg_mode="token-mean")  # type: ignore[arg-type]  # the loss reads no model


def batch_of(
    responses: Sequence[int], *, rewards: Sequence[float] | None = None, reasons: Sequence[str] | None = None
) -> PackedBatch:
    """Sequences with a prompt of two tokens and responses of the given lengths; every column that metrics read."""
    rng = np.random.default_rng(0)
    sampled = [np.arange(2 + length) >= 2 for length in responses]

    def column() -> list[np.ndarray]:
        return [np.where(mask, -rng.random(len(mask)), 0).astype(np.float32) for mask in sampled]

    names = ("rollout_logprobs", "old_logprobs", "ref_logprobs", "entropy", "values", "returns", "advantages")
    return PackedBatch.from_sequences(
        {
            "input_ids": [np.ones(len(mask), np.int64) for mask in sampled],
            "sampled_mask": sampled,
            "loss_mask": sampled,
            "token_rewards": column(),
            **{name: column() for name in names},
        },
        sequences={
            "group": np.zeros(len(responses), np.int64),
            "reward": np.array(rewards if rewards is not None else [0.0] * len(responses), np.float32),
            "finish_reason": list(reasons if reasons is not None else ["stop"] * len(responses)),
        },
    )


def step_of(batch: PackedBatch, seconds: float) -> Step:
    return Step(number=1, epoch=0, prompts=[], batch=batch, seconds={"gen": seconds / 2, "adv": 0.0, "step": seconds})


def test_throughput_is_tokens_over_the_seconds_of_the_same_steps() -> None:
    """G01: throughput uses cumulative tokens over the last step's time."""
    batch = batch_of([98])
    rows = [of_time(step_of(batch, seconds), devices=1) for seconds in (1.0, 2.0)]
    assert [row["perf/total_num_tokens"] for row in rows] == [100.0, 100.0]
    assert [row["perf/throughput"] for row in rows] == [100.0, 50.0]
    assert average_throughput(rows, devices=1) == pytest.approx(66.67, abs=0.005)
    assert average_throughput(rows, devices=2) == pytest.approx(33.33, abs=0.005)
    assert of_time(step_of(batch, 2.0), devices=4)["perf/throughput"] == 12.5


def test_the_average_leaves_out_rows_that_are_no_training_steps() -> None:
    assert average_throughput([{"val-core/a/acc/mean@1": 0.5}], devices=1) is None
    assert average_throughput([], devices=1) is None
    rows = [{"val-core/a/acc/mean@1": 0.5}, {"perf/total_num_tokens": 10.0, "perf/time_per_step": 4.0}]
    assert average_throughput(rows, devices=1) == 2.5


@pytest.mark.parametrize(
    ("lengths", "reasons", "expected"), [([3, 5], ["stop", "stop"], 0.0), ([10, 5], ["length", "stop"], 0.5)]
)
def test_a_response_is_clipped_where_it_met_the_limit_not_where_it_is_the_longest(
    lengths: list[int], reasons: list[str], expected: float
) -> None:
    """G06: clip ratio measured against the batch maximum."""
    metrics = of_batch(batch_of(lengths, reasons=reasons), [])
    assert metrics["response_length/clip_ratio"] == expected
    assert metrics["response_length/max"] == max(lengths)


def test_the_clip_ratio_of_a_real_step_counts_responses_at_the_configured_limit(
    overrides: Callable[..., list[str]],
) -> None:
    """G06: clip ratio measured against the batch maximum."""
    parts = build(resolve(overrides(data__max_response_length=3)).config)
    algorithm = PPO(parts.config, parts.controller, parts.workers, parts.scorer, parts.tokenizer)
    _, prompts = next(parts.loader.batches(1))
    step = Step(number=1, epoch=0, prompts=prompts)
    for run in (algorithm.generate, algorithm.reward, algorithm.old_logprobs):
        run(step)
    step.batch = step.batch.with_columns(
        tokens={name: np.zeros(step.batch.num_tokens, np.float32) for name in ("advantages", "returns")}
    )
    metrics = of_batch(step.batch, prompts)
    stop = parts.tokenizer.eos_token_id
    responses = [
        ids[mask]
        for ids, mask in zip(step.batch.per_sequence("input_ids"), step.batch.per_sequence("sampled_mask"), strict=True)
    ]
    clipped = [len(response) == 3 and response[-1] != stop for response in responses]
    assert any(clipped)
    assert metrics["response_length/clip_ratio"] == np.mean(clipped)


def test_three_rewards_give_the_mean_of_three() -> None:
    """G09: padding rows counted in metrics."""
    batch = batch_of([2, 3, 4], rewards=[1.0, 0.0, 1.0])
    assert of_batch(batch, [])["critic/score/mean"] == pytest.approx(2 / 3, abs=1e-7)
    shares = [batch.select(rows) for rows in batch.split(2)]
    assert sorted(len(share) for share in shares) == [1, 2], "no row is repeated to make the shares equal"


@pytest.mark.parametrize("lengths", [[], [0], [0, 0]])
def test_metrics_of_nothing_are_absent(lengths: list[int]) -> None:
    """G09: padding rows counted in metrics (where nothing is left, metrics are absent, not NaN)."""
    batch = batch_of([1, 1, 0, 0]).select([2, 3][: len(lengths)])
    found = {
        **of_old_policy(batch, ACTOR),
        **of_batch(batch, []),
        **of_time(step_of(batch, 1.0), devices=1),
    }
    _, of_kl = penalise_kl(batch, "kl", kl_controller(KlCtrlConfig(type="adaptive")))
    found |= of_kl
    assert all(math.isfinite(value) for value in found.values()), found
    per_token = ("critic/advantages", "critic/returns", "critic/values", "critic/vf_explained_var", "actor/entropy")
    absent = (*per_token, "training/rollout_probs_diff", "timing_per_token_ms/gen", "actor/reward_kl_penalty/")
    assert not [name for name in found if name.startswith(absent)]
    assert "actor/reward_kl_penalty" not in found
    assert ("critic/score/mean" in found) == ("response_length/clip_ratio" in found) == bool(lengths)


def test_a_kl_of_nothing_does_not_move_the_controller() -> None:
    controller = kl_controller(KlCtrlConfig(type="adaptive", kl_coef=0.1))
    penalise_kl(batch_of([1, 0]).select([1]), "kl", controller)
    assert controller.coef == 0.1
    penalise_kl(batch_of([1, 0]), "kl", controller)
    assert controller.coef != 0.1 and math.isfinite(controller.coef)


def outputs_of(batch: PackedBatch, rows: Sequence[int]) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What an engine would hand to a loss: a policy and values that moved a little, in float64."""
    part = batch.select(rows).to_torch("cpu")
    columns = {name: value.double() if value.is_floating_point() else value for name, value in part.items()}
    shift = 0.4 * torch.sin(1000 * columns["old_logprobs"])
    return {"logprobs": columns["old_logprobs"] + shift, "values": columns["values"] + shift}, columns


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=6), st.data())
def test_losses_give_the_same_metrics_however_the_mini_batch_is_cut(lengths: list[int], data: st.DataObject) -> None:
    """G02: logged loss scaled twice. G07: rank-local metric reported as global."""
    batch = batch_of(lengths)
    denominators = loss_denominators(batch)
    cuts = data.draw(st.sets(st.integers(1, len(lengths) - 1)), label="where micro-batches or ranks begin")
    parts = [range(start, end) for start, end in pairwise([0, *sorted(cuts), len(lengths)])]
    for loss in (ActorLoss(ACTOR, "vanilla"), CriticLoss(CRITIC)):
        whole = merge_metrics([loss(*outputs_of(batch, range(len(lengths))), denominators)[1]])
        cut = merge_metrics(loss(*outputs_of(batch, part), denominators)[1] for part in parts)
        assert whole.keys() == cut.keys()
        for name, metric in whole.items():
            assert cut[name].number() == pytest.approx(metric.number(), abs=1e-12), name


def test_shares_of_a_loss_add_up_and_mini_batches_are_averaged() -> None:
    """G02: logged loss scaled twice."""
    batch = batch_of([3, 2, 4, 1])
    whole, _ = ActorLoss(ACTOR, "vanilla")(*outputs_of(batch, [0, 1, 2, 3]), loss_denominators(batch))
    _, of_whole = ActorLoss(ACTOR, "vanilla")(*outputs_of(batch, [0, 1, 2, 3]), loss_denominators(batch))
    metrics = merge_metrics([of_whole])
    assert metrics["loss"].number() == pytest.approx(float(whole), abs=1e-12)
    reduced = over_steps([metrics, metrics, metrics])
    assert reduced["loss"] == reduced["pg_loss"] == pytest.approx(float(whole), abs=1e-12)
    assert 0 < reduced["pg_clipfrac"] < 1


def test_prompts_that_were_cut_are_the_clip_ratio_of_prompts() -> None:
    prompts = [
        Prompt(
            row=row,
            group=row,
            prompt_ids=[1, 1],
            messages="",
            data_source="a",
            ground_truth="",
            extra_info={},
            fields={},
            truncated=row == 0,
        )
        for row in range(4)
    ]
    assert of_batch(batch_of([1, 1, 1, 1]), prompts)["prompt_length/clip_ratio"] == 0.25


def test_prompts_that_were_cut_or_left_out_are_counted(assets: Path, tmp_path: Path) -> None:
    rows = [
        {
            "data_source": "a",
            "prompt": [{"role": "user", "content": "1" * length}],
            "reward_model": {"style": "rule", "ground_truth": "1"},
        }
        for length in (2, 9, 2, 2, 9, 9, 2, 2)
    ]
    write_rows(rows, tmp_path / "rows.parquet")
    tokenizer = AutoTokenizer.from_pretrained(assets / "model")

    def load(**given: Any) -> PromptLoader:
        config = DataConfig(train_batch_size=4, max_prompt_length=5, shuffle=False, **given)
        return PromptLoader(tmp_path / "rows.parquet", tokenizer, config, training=True)

    cut, kept = load(truncation="left"), load(filter_overlong_prompts=True)
    assert [list(of_data(prompts, cut).values()) for _, prompts in cut.batches(2)] == [
        [1.0, 1.0, 0.0],
        [2.0, 3.0, 0.0],
        [1.0, 4.0, 0.0],
        [2.0, 6.0, 0.0],
    ]
    assert of_data(next(kept.batches())[1], kept) == {
        "data/truncated_prompts": 0.0,
        "data/truncated_prompts_total": 0.0,
        "data/filtered_prompts": 3.0,
    }
