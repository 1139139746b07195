"""Results that must not depend on layout: whole short runs, compared with each other."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from verl_algos import logprobs as logprob_functions
from verl_cli.build import Parts, build
from verl_cli.columns import loss_denominators
from verl_cli.config import resolve
from verl_cli.controller import LocalController, LocalWorkerGroup
from verl_cli.phases import Step, run_phases
from verl_cli.ppo import PPO
from verl_cli.trainer import fit
from verl_engine import Denominators, FsdpEngine, Metrics

Overrides = Callable[..., list[str]]
FLOAT64 = {
    "actor_rollout_ref__actor__fsdp_config__model_dtype": "fp64",
    "actor_rollout_ref__actor__fsdp_config__dtype": "float64",
    "critic__fsdp__model_dtype": "fp64",
    "critic__fsdp__dtype": "float64",
    "actor_rollout_ref__rollout__dtype": "float64",
}


def trained(
    overrides: list[str], *, through_pickle: bool = False
) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Metrics of every step and the final actor's weights."""
    config = resolve(overrides).config
    run_dir = Path(config.trainer.default_local_dir)
    shutil.rmtree(run_dir, ignore_errors=True)
    fit(build(config, LocalController(through_pickle=through_pickle)))
    rows = [json.loads(line)["data"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    steps = json.loads((run_dir / "summary.json").read_text())["steps"]
    return rows, load_file(run_dir / f"global_step_{steps}" / "actor" / "huggingface" / "model.safetensors")


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name].double() - b[name].double()).abs().max()) for name in a)


VARIANTS: dict[str, dict[str, Any]] = {
    "one sequence at a time": {
        "actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": 1,
        "critic__ppo_micro_batch_size_per_gpu": 1,
        "actor_rollout_ref__ref__log_prob_micro_batch_size_per_gpu": 1,
    },
    "micro-batches of three": {
        "actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": 3,
        "critic__ppo_micro_batch_size_per_gpu": 3,
    },
    "packed by tokens": {
        "actor_rollout_ref__actor__ppo_max_token_len_per_gpu": 24,
        "critic__ppo_max_token_len_per_gpu": 24,
        "actor_rollout_ref__ref__log_prob_max_token_len_per_gpu": 24,
    },
}


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_in_float64_micro_batches_do_not_change_the_run(overrides: Overrides, aggregation: str) -> None:
    common = {**FLOAT64, "actor_rollout_ref__actor__loss_agg_mode": aggregation}
    rows, weights = trained(overrides(**common))
    for name, variant in VARIANTS.items():
        other_rows, other_weights = trained(overrides(**common, **variant))
        assert largest_difference(weights, other_weights) < 1e-10, name
        for row, other in zip(rows, other_rows, strict=True):
            for metric in ("actor/pg_loss", "actor/grad_norm", "critic/vf_loss", "critic/grad_norm"):
                if metric in row:
                    assert row[metric] == pytest.approx(other[metric], abs=1e-10, rel=1e-10), (name, metric)


def test_in_float32_the_first_step_does_not_depend_on_micro_batches(overrides: Overrides) -> None:
    rows, _ = trained(overrides(trainer__total_training_steps=1))
    for name, variant in VARIANTS.items():
        other, _ = trained(overrides(trainer__total_training_steps=1, **variant))
        for metric in ("actor/pg_loss", "actor/grad_norm", "critic/vf_loss", "critic/grad_norm"):
            assert rows[1][metric] == pytest.approx(other[1][metric], abs=1e-6, rel=1e-6), (name, metric)


def test_calls_through_pickle_give_the_same_run_bit_for_bit(overrides: Overrides) -> None:
    rows, weights = trained(overrides())
    piped_rows, piped_weights = trained(overrides(), through_pickle=True)
    assert largest_difference(weights, piped_weights) == 0.0
    assert [without_times(row) for row in rows] == [without_times(row) for row in piped_rows]


def test_the_same_seed_gives_the_same_run_and_another_seed_another(overrides: Overrides) -> None:
    first, _ = trained(overrides())
    again, _ = trained(overrides())
    other, _ = trained(overrides(actor_rollout_ref__rollout__seed=9))
    assert [without_times(row) for row in first] == [without_times(row) for row in again]
    assert [without_times(row) for row in first] != [without_times(row) for row in other]


def without_times(row: dict[str, float]) -> dict[str, float]:
    timed = ("timing", "perf/t", "sync/seconds")
    return {name: value for name, value in row.items() if not name.startswith(timed)}


def before_update(parts: Parts) -> tuple[PPO, Step]:
    """Run a step up to where the actor would be updated."""
    algorithm = PPO(parts.config, parts.controller, parts.workers, parts.scorer, parts.tokenizer)
    _, prompts = next(parts.loader.batches(1))
    step = Step(number=1, epoch=0, prompts=prompts)
    names = [phase.name for phase in algorithm.phases()]
    run_phases(algorithm.phases()[: names.index("update_critic")], step)
    return algorithm, step


class RatioDeviation:
    """Reports the largest |ratio - 1| of a micro-batch in place of a loss."""

    outputs = ("logprobs",)

    def __init__(self) -> None:
        self.largest: list[float] = []

    def __call__(
        self, outputs: dict[str, torch.Tensor], columns: dict[str, torch.Tensor], denominators: Denominators
    ) -> tuple[torch.Tensor, Metrics]:
        ratio = (outputs["logprobs"] - columns["old_logprobs"]).exp()
        self.largest.append(float((ratio - 1).detach().abs()[columns["loss_mask"]].max()))
        return outputs["logprobs"].sum() * 0.0, {}


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("variant", [{}, *VARIANTS.values()], ids=["default", *VARIANTS])
def test_the_first_ratio_is_exactly_one(overrides: Overrides, variant: dict[str, Any], temperature: float) -> None:
    parts = build(resolve(overrides(actor_rollout_ref__rollout__temperature=temperature, **variant)).config)
    algorithm, step = before_update(parts)
    deviation = RatioDeviation()
    share = step.batch.select(algorithm.rows(step, parts.config.actor_rollout_ref.actor)[0])
    parts.workers["actor"].call("train_batch", share, loss=deviation, denominators=loss_denominators(share))
    assert deviation.largest and max(deviation.largest) == 0.0


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_rollout_and_engine_agree_on_log_probs(overrides: Overrides, temperature: float) -> None:
    parts = build(resolve(overrides(actor_rollout_ref__rollout__temperature=temperature)).config)
    _, step = before_update(parts)
    mask = np.asarray(step.batch["sampled_mask"])
    difference = np.abs(step.batch["rollout_logprobs"] - step.batch["old_logprobs"])[mask]
    assert len(difference) > 0
    assert difference.max() < 1e-5


def test_old_log_probs_are_those_of_the_plain_model(overrides: Overrides, assets: Path) -> None:
    parts = build(resolve(overrides()).config)
    _, step = before_update(parts)
    actor = parts.workers["actor"]
    assert isinstance(actor, LocalWorkerGroup) and isinstance(actor.worker, FsdpEngine)
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(assets / "model")
    ids, old = step.batch.per_sequence("input_ids"), step.batch.per_sequence("old_logprobs")
    for tokens, columns, sampled in zip(ids, old, step.batch.per_sequence("sampled_mask"), strict=True):
        sequence = torch.tensor(tokens)
        with torch.no_grad():
            logits = model(sequence[None]).logits[0, :-1]
        expected = logprob_functions.logprobs_from_logits(logits, sequence[1:]).numpy()
        np.testing.assert_allclose(columns[1:][sampled[1:]], expected[sampled[1:]], atol=1e-5)
