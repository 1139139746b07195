"""Proximal policy optimisation (Schulman et al., 2017) for language models, as the list of phases of one step.

A step samples n responses for each prompt, scores them, computes the log-probs of the policy that sampled them (old),
of the frozen reference and the critic's values, turns rewards into advantages, and then takes one optimiser step of
critic and actor per mini-batch. GRPO (Shao et al., 2024) and the others that compare the responses of a prompt are the
same without the critic: `algorithm.adv_estimator` decides.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from verl_algos import rewards
from verl_algos.loss_options import MINI_BATCH_INPUTS
from verl_data import PackedBatch
from verl_engine import Metrics, Output

from verl_cli import step_metrics
from verl_cli.columns import scored_tokens, tensors
from verl_cli.config import ActorConfig, CriticConfig, RunConfig
from verl_cli.controller import Controller, WorkerGroup
from verl_cli.corrections import as_metrics, corrected
from verl_cli.estimation import Estimation
from verl_cli.filter_groups import fill_batch
from verl_cli.kl_in_reward import kl_controller, penalise_kl
from verl_cli.losses import ActorLoss, CriticLoss, chosen_tokens
from verl_cli.mini_batches import MiniBatch, forward, mini_batches, train
from verl_cli.phases import Phase, Step, check_chain, run_phases
from verl_cli.reported import column_name, reported_columns, wanted_numbers
from verl_cli.sampling import response_texts, response_tokens, rollout_batch, training_requests
from verl_cli.scoring import Scorer, tell_failures


class PPO:
    """The phases of a PPO step over the worker groups of actor, rollout and, where used, critic and reference."""

    def __init__(
        self,
        config: RunConfig,
        controller: Controller,
        workers: Mapping[str, WorkerGroup],
        scorer: Scorer,
        tokenizer: Any,
    ) -> None:
        self.config = config
        self.controller = controller
        self.workers = workers
        self.scorer = scorer
        self.tokenizer = tokenizer
        self.kl_controller = kl_controller(config.algorithm.kl_ctrl)
        self.reported = wanted_numbers(config.algorithm)
        self.estimation = Estimation.of(config)
        check_chain(self.phases())

    def phases(self) -> list[Phase]:
        """One step, in order. The reference and the critic take part only where their numbers are used."""
        correction, estimation = self.config.algorithm.rollout_correction, self.estimation
        with_ref, with_critic = "ref" in self.workers, "critic" in self.workers
        phases = self.sampling()
        if self.config.algorithm.filter_groups.enable:
            metric = column_name(self.config.algorithm.filter_groups.metric)
            phases.append(Phase("filter_groups", self.filter_groups, reads=(metric,)))
        if estimation.needs("baseline"):
            phases.append(Phase("gen_max", self.baseline, reads=("group",), writes=("baseline",)))
        outputs = ("old_logprobs", *(("sum_pi_squared",) * estimation.needs("sum_pi_squared")))
        phases.append(Phase("old_log_prob", self.old_logprobs, reads=("rollout_logprobs",), writes=outputs))
        if correction.acts and not correction.bypass_mode:
            phases.append(Phase("rollout_corr", self.correct, reads=("old_logprobs", "rollout_logprobs")))
        if with_ref:
            phases.append(Phase("ref", self.reference, reads=("input_ids",), writes=("ref_logprobs",)))
        if with_critic:
            phases.append(Phase("values", self.values, reads=("input_ids",), writes=("values",)))
        reads = ("token_rewards", "group", *outputs, *(("ref_logprobs",) * with_ref), *(("values",) * with_critic))
        phases.append(Phase("adv", self.advantages, reads=reads, writes=("advantages", "returns")))
        if with_critic:
            phases.append(Phase("update_critic", self.update_critic, reads=("values", "returns")))
        phases.append(Phase("update_actor", self.update_actor, reads=("old_logprobs", "advantages")))
        phases.append(Phase("update_weights", self.sync))
        return phases

    def sampling(self) -> list[Phase]:
        """How responses come about. Dynamic sampling runs these phases again, for further prompts."""
        scored = ("reward", "token_rewards", *(column_name(name) for name in self.reported))
        return [
            Phase("gen", self.generate, writes=("input_ids", "sampled_mask", "loss_mask", "rollout_logprobs", "group")),
            Phase("reward", self.reward, reads=("input_ids", "sampled_mask"), writes=scored),
        ]

    def rows(self, step: Step, owner: ActorConfig | CriticConfig) -> list[np.ndarray]:
        """The rows of each mini-batch of the actor or the critic."""
        return mini_batches(
            step, owner.ppo_mini_batch_size, shuffle_seed=self.config.trainer.seed if owner.shuffle else None
        )

    def generate(self, step: Step) -> None:
        """Sample n responses of every prompt with the current policy."""
        rollout = self.config.actor_rollout_ref.rollout
        requests = training_requests(step, rollout.n)
        completions = self.workers["rollout"].call(
            "generate", requests, sampling=rollout.training_sampling(self.config.data.max_response_length)
        )
        step.batch = rollout_batch(step.prompts, completions)

    def reward(self, step: Step) -> None:
        """Score each response; the reward stands at its last sampled token. What could not be scored is not trained."""
        prompts = [step.prompts[group] for group in step.batch["group"]]
        scored = self.scorer.score(
            prompts, response_texts(step.batch, self.tokenizer), response_tokens=response_tokens(step.batch)
        )
        tell_failures(scored, f"Step {step.number}")
        reported = reported_columns(scored, prompts, self.reported)
        batch = step.batch.with_columns(sequences={"reward": scored.rewards, **reported})
        placed, empty = rewards.place_rewards(**tensors(batch, "reward", mask="sampled_mask"))
        step.batch = batch.with_columns(
            tokens={"token_rewards": placed.numpy(), "loss_mask": scored_tokens(batch, "loss_mask")}
        )
        step.scored = scored
        step.metrics |= scored.metrics | {"reward/empty_responses": float(empty)}

    def filter_groups(self, step: Step) -> None:
        """Replace prompts whose responses are all alike by further ones, until the batch is full."""
        sample = partial(run_phases, self.sampling())
        fill_batch(step, self.config.algorithm.filter_groups, self.config.data.train_batch_size, sample)

    def baseline(self, step: Step) -> None:
        """Score the likeliest response to each prompt, with which ReMax compares the sampled ones."""
        rollout = self.config.actor_rollout_ref.rollout
        sampling = replace(rollout.training_sampling(self.config.data.max_response_length), temperature=0.0)
        completions = self.workers["rollout"].call("generate", training_requests(step, 1), sampling=sampling)
        greedy = rollout_batch(step.prompts, completions)
        scored = self.scorer.score(
            step.prompts, response_texts(greedy, self.tokenizer), response_tokens=response_tokens(greedy)
        )
        tell_failures(scored, f"Step {step.number}, likeliest responses")
        step.batch = step.batch.with_columns(sequences={"baseline": scored.rewards[step.batch["group"]]})
        failures = {name: step.metrics.get(name, 0.0) + count for name, count in scored.counts.items()}
        step.metrics |= failures | step_metrics.of_baseline(scored.rewards)

    def old_logprobs(self, step: Step) -> None:
        """Log-probs of the policy that sampled, in the update's own micro-batches: the first ratio is exactly 1.

        In bypass mode those of the rollout stand for them, and the pass is only made if something else needs it.
        """
        actor, bypass = self.config.actor_rollout_ref.actor, self.config.algorithm.rollout_correction.bypass_mode
        outputs: list[Output] = [] if bypass else ["logprobs", "entropy"]
        if self.estimation.needs("sum_pi_squared"):
            outputs.append("sum_pi_squared")
        columns = forward(self.workers["actor"], step.batch, self.rows(step, actor), outputs) if outputs else {}
        columns["old_logprobs"] = step.batch["rollout_logprobs"] if bypass else columns.pop("logprobs")
        step.batch = step.batch.with_columns(tokens=columns)
        if not bypass:
            step.metrics |= step_metrics.of_old_policy(step.batch, actor)

    def correct(self, step: Step) -> None:
        """Weight or leave out what the rollout sampled with other probabilities than the actor's."""
        correction = self.config.algorithm.rollout_correction
        step.batch, metrics = corrected(step.batch, correction, step.batch["old_logprobs"])
        step.metrics |= metrics

    def reference(self, step: Step) -> None:
        """Log-probs under the frozen initial policy."""
        columns = self.workers["ref"].call("forward", step.batch, outputs=("logprobs",))
        step.batch = step.batch.with_columns(tokens={"ref_logprobs": columns["logprobs"]})

    def values(self, step: Step) -> None:
        """The critic's estimate of the return at every sampled token."""
        columns = forward(self.workers["critic"], step.batch, self.rows(step, self.config.critic), ("values",))
        step.batch = step.batch.with_columns(tokens=columns)

    def advantages(self, step: Step) -> None:
        """Rewards (less the KL penalty) become advantages and returns."""
        algorithm, batch = self.config.algorithm, step.batch
        if algorithm.use_kl_in_reward and "ref_logprobs" in batch:
            batch, metrics = penalise_kl(batch, algorithm.kl_penalty, self.kl_controller)
            step.metrics |= metrics
        columns = {name: column.numpy() for name, column in self.estimation.compute(batch).items()}
        step.batch = batch.with_columns(tokens=columns)
        step.metrics |= step_metrics.of_batch(step.batch, step.prompts)
        if self.estimation.needs("group"):
            step.metrics |= step_metrics.of_groups(step.batch)

    def update_critic(self, step: Step) -> None:
        """Fit the values to the returns."""
        critic = self.config.critic
        rows, loss = self.rows(step, critic), CriticLoss(critic)
        step.metrics |= train(self.workers["critic"], step.batch, rows, loss, critic.ppo_epochs)

    def update_actor(self, step: Step) -> None:
        """Improve the policy, once the critic has had `trainer.critic_warmup` steps to learn."""
        actor = self.config.actor_rollout_ref.actor
        if step.number > self.config.trainer.critic_warmup:
            rows, loss = self.rows(step, actor), ActorLoss.of(self.config)
            prepare = partial(self.prepare, step, loss)
            step.metrics |= train(self.workers["actor"], step.batch, rows, loss, actor.ppo_epochs, prepare)

    def prepare(self, step: Step, loss: ActorLoss, mini_batch: MiniBatch) -> tuple[PackedBatch, Metrics]:
        """What an actor's mini-batch needs at its turn, before it is split: corrections, chosen tokens."""
        correction, batch, metrics = self.config.algorithm.rollout_correction, mini_batch.batch, Metrics()
        if correction.bypass_mode and correction.acts:
            current = self.workers["actor"].call("forward", batch, outputs=("logprobs",))
            batch, numbers = corrected(batch, correction, current["logprobs"])
            metrics = as_metrics(numbers)
        if "covariance_selected" in MINI_BATCH_INPUTS.get(loss.name, ()):
            seed = (self.config.trainer.seed, step.number, mini_batch.number)
            batch = batch.with_columns(tokens=chosen_tokens(batch, loss, mini_batch.rows, seed))
        return batch, metrics

    def sync(self, step: Step) -> None:
        """Give the rollout the new weights."""
        report = self.controller.sync_weights(self.workers["actor"], self.workers["rollout"], step.number)
        step.metrics |= {"sync/bytes": float(report.bytes_received), "sync/seconds": report.seconds}
