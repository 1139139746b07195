"""The numbers logged for a step, under the published names (perf/*, critic/*, response_length/*, ...).

Each is computed from the whole step's own rows and tokens. Where there is nothing to compute it from (no token was
sampled, say), it is absent: never a 0 or NaN that a chart would show as a measurement.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from verl_algos import advantages, aggregation, rollout_correction
from verl_algos.value_losses import explained_variance
from verl_data import PackedBatch, Prompt, PromptLoader

from verl_cli.columns import loss_denominators, scored_tokens, tensors
from verl_cli.config import ActorConfig
from verl_cli.phases import Step


def of_old_policy(batch: PackedBatch, actor: ActorConfig) -> dict[str, float]:
    """Entropy of the policy that sampled, and how far the rollout's own probabilities are from the engine's."""
    columns = tensors(batch, "entropy", "rollout_logprobs", "old_logprobs", mask="loss_mask")
    mask, cu_seqlens = columns["mask"], columns["cu_seqlens"]
    if not mask.any():
        return {}
    entropy_loss = aggregation.aggregate(
        columns["entropy"],
        mode=actor.loss_agg_mode,
        denominators=loss_denominators(batch),
        mask=mask,
        cu_seqlens=cu_seqlens,
        scale=actor.loss_scale_factor,
    )
    return {
        "actor/entropy": float(columns["entropy"][mask].double().mean()),
        "actor/entropy_loss": float(entropy_loss),
        **rollout_correction.probability_metrics(
            columns["old_logprobs"], columns["rollout_logprobs"], mask, cu_seqlens
        ),
    }


def of_baseline(rewards: np.ndarray) -> dict[str, float]:
    """The mean reward of the likeliest responses (P,), NaN where one could not be scored."""
    scored = rewards[~np.isnan(rewards)]
    return {"adv/baseline/mean": float(scored.mean(dtype=np.float64))} if scored.size else {}


def of_batch(batch: PackedBatch, prompts: Sequence[Prompt]) -> dict[str, float]:
    """Scores, rewards, advantages, returns and values of what could be scored in a step, and lengths of all of it."""
    names = ("token_rewards", "advantages", "returns", "values", "reward")
    columns = tensors(batch, *names, mask=scored_tokens(batch))
    mask, lengths, scored = columns["mask"], np.diff(batch.cu_seqlens), ~columns["reward"].isnan()
    response = np.array([rows.sum() for rows in batch.per_sequence("sampled_mask")])
    rewards = torch.from_numpy(np.array([rows.sum() for rows in batch.per_sequence("token_rewards")]))
    metrics = {
        **_spread("critic/score", columns["reward"][scored]),
        **_spread("critic/rewards", rewards[scored]),
        **_spread("critic/advantages", columns["advantages"][mask]),
        **_spread("critic/returns", columns["returns"][mask]),
        **_spread("response_length", torch.from_numpy(response)),
        **_ratio("response_length/clip_ratio", [reason == "length" for reason in batch["finish_reason"]]),
        **_spread("prompt_length", torch.from_numpy(lengths - response)),
        **_ratio("prompt_length/clip_ratio", [prompt.truncated for prompt in prompts]),
    }
    if "values" in columns:
        metrics |= _spread("critic/values", columns["values"][mask])
        if int(mask.sum()) > 1:  # a single number has no variance
            metrics["critic/vf_explained_var"] = float(
                explained_variance(columns["values"], columns["returns"], mask, columns["cu_seqlens"])
            )
    return metrics


def of_groups(batch: PackedBatch) -> dict[str, float]:
    """Prompts with only one scored response: they teach nothing where the responses of a prompt are compared."""
    columns = tensors(batch, "token_rewards", "group", mask=scored_tokens(batch))
    scored = advantages.scored_sequences(columns["token_rewards"], columns["mask"], columns["cu_seqlens"])
    return {"adv/singleton_groups": float(advantages.singleton_groups(columns["group"], scored))}


def of_data(prompts: Sequence[Prompt], loader: PromptLoader) -> dict[str, float]:
    """What became of prompts over the length limit: in this step, up to it, and before the first one."""
    return {
        "data/truncated_prompts": float(sum(prompt.truncated for prompt in prompts)),
        "data/truncated_prompts_total": float(loader.truncated),
        "data/filtered_prompts": float(loader.filtered),
    }


def of_time(step: Step, devices: int) -> dict[str, float]:
    """Wall time of the phases and throughput; `step.seconds` must hold "step"."""
    tokens = step.batch.num_tokens
    gen_tokens = int(np.sum(step.batch["sampled_mask"])) if step.gen_tokens is None else step.gen_tokens
    seconds = step.seconds
    per_token = {
        f"timing_per_token_ms/{name}": 1000 * seconds[name] / count
        for name in ("gen", "ref", "values", "adv", "update_critic", "update_actor")
        if name in seconds and (count := gen_tokens if name == "gen" else tokens)
    }
    return {
        "training/global_step": float(step.number),
        "training/epoch": float(step.epoch),
        **{f"timing_s/{name}": value for name, value in seconds.items()},
        **per_token,
        "perf/total_num_tokens": float(tokens),
        "perf/time_per_step": seconds["step"],
        "perf/throughput": tokens / (seconds["step"] * devices),
    }


def average_throughput(rows: Iterable[Mapping[str, float]], devices: int) -> float | None:
    """Tokens a second and device over all the steps whose metrics are given; None without a step.

    All tokens over all seconds of the same steps: not the mean of the steps' own throughputs, in which a short step
    would weigh as much as a long one.
    """
    steps = [row for row in rows if "perf/total_num_tokens" in row and "perf/time_per_step" in row]
    seconds = sum(row["perf/time_per_step"] for row in steps)
    return sum(row["perf/total_num_tokens"] for row in steps) / (seconds * devices) if seconds > 0 else None


def _ratio(name: str, rows: Sequence[bool]) -> dict[str, float]:
    """The share of rows that are true; nothing where there are no rows."""
    return {name: float(np.mean(rows))} if rows else {}


def _spread(name: str, values: torch.Tensor) -> dict[str, float]:
    """Mean, maximum and minimum; nothing where there are no values."""
    if values.numel() == 0:
        return {}
    values = values.double()
    return {f"{name}/{statistic}": float(getattr(values, statistic)()) for statistic in ("mean", "max", "min")}
