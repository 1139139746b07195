"""The batch arithmetic and the schedule of a configuration."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

from verl_engine.schedule import warmup_steps

from verl_cli.config import ActorConfig, CriticConfig, RunConfig
from verl_cli.plan.algorithm import greedy_responses
from verl_cli.plan.arithmetic import (
    Cut,
    DynamicSampling,
    MicroBatches,
    Schedule,
    Updates,
    micro_batches,
    mini_batches,
    per_rank,
    rank_problem,
    steps_with,
)
from verl_cli.plan.data import RowsInUse
from verl_cli.plan.placement import cuts
from verl_cli.plan.plan import BatchPlan, PromptLengths


def schedule(config: RunConfig, used: RowsInUse) -> Schedule | None:
    """The length of the run in steps; None where the rows do not fill one batch."""
    trainer, batch = config.trainer, config.data.train_batch_size
    of_epoch, rest = divmod(used.rows, batch)
    if not of_epoch:
        return None
    steps = trainer.total_training_steps or of_epoch * trainer.total_epochs
    before = trainer.val_before_train or trainer.val_only
    trained = 0 if trainer.val_only else steps
    return Schedule(
        rows=used.rows,
        rows_are_exact=used.exact,
        rows_left_out=0 if config.data.train_weights else rest,  # a mix goes on in the next epoch
        steps_per_epoch=of_epoch,
        steps=trained,
        epochs=trained / of_epoch,
        validations=steps_with(trainer.test_freq, trained, first=before),
        checkpoints=steps_with(trainer.save_freq, trained),
    )


def batch(config: RunConfig, lengths: Sequence[int], looked_at: int, rows: int, steps: int | None) -> BatchPlan:
    """How a step's prompts become optimiser steps.

    `lengths` are the tokens of the usable prompts among the `looked_at` of all `rows`; `steps` the training steps of
    the run, None where they are not known.
    """
    arr, data = config.actor_rollout_ref, config.data
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    sequences = data.train_batch_size * arr.rollout.n
    of_role = cuts(config)
    owners: dict[str, ActorConfig | CriticConfig] = {"actor": arr.actor}
    if config.needs_critic:
        owners["critic"] = config.critic
    return BatchPlan(
        prompts=data.train_batch_size,
        n=arr.rollout.n,
        sequences=sequences,
        greedy=greedy_responses(config),
        longest_sequence=data.max_prompt_length + data.max_response_length,
        ranks=ranks,
        sequences_per_rank=per_rank(sequences, ranks),
        lengths=(
            PromptLengths(rows, looked_at, len(lengths), min(lengths), round(statistics.median(lengths)), max(lengths))
            if lengths
            else None
        ),
        updates=[_updates(config, role, owner, of_role[role], lengths, steps) for role, owner in owners.items()],
        reference=(
            _micro_batches(config, of_role["ref"], lengths, data.train_batch_size) if config.needs_reference else None
        ),
    )


def dynamic_sampling(config: RunConfig, timing: Schedule | None) -> DynamicSampling | None:
    """What a step may generate to fill its batch; None where it trains on every prompt."""
    filtering, data = config.algorithm.filter_groups, config.data
    if not filtering.enable:
        return None
    batches = filtering.max_num_gen_batches or (timing.steps_per_epoch if timing else None)
    if batches is None:
        return DynamicSampling(filtering.metric, None, None, None)
    prompts = batches * data.train_batch_size
    return DynamicSampling(filtering.metric, batches, prompts, prompts * config.actor_rollout_ref.rollout.n)


def batch_problems(config: RunConfig, steps: int | None) -> list[str]:
    """Why the batches cannot be worked on, beyond what the configuration's own checks say."""
    arr, trainer = config.actor_rollout_ref, config.trainer
    ranks = trainer.nnodes * trainer.n_gpus_per_node
    owners = {"actor_rollout_ref.actor": arr.actor.ppo_mini_batch_size}
    if config.needs_critic:
        owners["critic"] = config.critic.ppo_mini_batch_size
    problems = [
        problem
        for section, prompts in owners.items()
        if (problem := rank_problem(prompts, arr.rollout.n, ranks, f"{section}.ppo_mini_batch_size"))
    ]
    if config.needs_critic and steps is not None and trainer.critic_warmup >= steps > 0:
        problems.append(
            f"trainer.critic_warmup={trainer.critic_warmup} leaves the actor none of {steps} steps. Lower it, or train "
            f"longer (trainer.total_training_steps, trainer.total_epochs)."
        )
    return problems


def _updates(
    config: RunConfig,
    role: str,
    owner: ActorConfig | CriticConfig,
    cut: Cut,
    lengths: Sequence[int],
    steps: int | None,
) -> Updates:
    prompts, n = config.data.train_batch_size, config.actor_rollout_ref.rollout.n
    number = -(-prompts // owner.ppo_mini_batch_size)
    each = number * owner.ppo_epochs
    before = config.trainer.critic_warmup if role == "actor" else 0
    trained = None if steps is None else max(0, steps - before)
    optim = None if not trained else replace(owner.optim, total_training_steps=trained * each)
    return Updates(
        role=role,
        prompts_per_mini_batch=owner.ppo_mini_batch_size,
        sequences_per_mini_batch=owner.ppo_mini_batch_size * n,
        mini_batches=number,
        passes=owner.ppo_epochs,
        first_training_step=before + 1,
        steps_per_training_step=each,
        steps_in_run=None if trained is None else trained * each,
        learning_rate=owner.optim.lr,
        lr_schedule=owner.optim.lr_scheduler_type,
        warmup_steps=None if optim is None else warmup_steps(optim),
        micro_batches=_micro_batches(config, cut, lengths, owner.ppo_mini_batch_size),
    )


def _micro_batches(config: RunConfig, cut: Cut, lengths: Sequence[int], prompts: int) -> MicroBatches:
    """The micro-batches of `prompts` prompts."""
    data, n = config.data, config.actor_rollout_ref.rollout.n
    longest = data.max_prompt_length + data.max_response_length
    typical = None
    if lengths:
        parts = mini_batches(lengths, data.train_batch_size, prompts, n)
        typical = max(len(micro_batches(part, data.max_response_length, cut)) for part in parts)
    return MicroBatches(
        cut_by="tokens" if cut.tokens is not None else "sequences",
        limit=cut.tokens or cut.sequences or 0,
        most_tokens=cut.most_tokens(longest),
        worst=cut.worst(prompts * n, longest),
        typical=typical or None,
    )
