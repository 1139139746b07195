"""Proximal policy optimisation (Schulman et al., 2017) for language models, as the list of phases of one step.

A step samples n responses for each prompt, scores them, computes the log-probs of the policy that sampled them (old),
of the frozen reference and the critic's values, turns rewards into advantages, and then takes one optimiser step of
critic and actor per mini-batch. GRPO (Shao et al., 2024) is the same without the critic: `algorithm.adv_estimator`
decides.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from verl_algos import advantages, rewards

from verl_cli import step_metrics
from verl_cli.columns import tensors
from verl_cli.config import ActorConfig, CriticConfig, RunConfig
from verl_cli.controller import Controller, WorkerGroup
from verl_cli.kl_in_reward import kl_controller, penalise_kl
from verl_cli.losses import ActorLoss, CriticLoss
from verl_cli.mini_batches import forward, mini_batches, train
from verl_cli.phases import Phase, Step, check_chain
from verl_cli.sampling import response_texts, rollout_batch, training_requests
from verl_cli.scoring import Scorer


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
        check_chain(self.phases())

    def phases(self) -> list[Phase]:
        """One step, in order. The reference and the critic take part only where their numbers are used."""
        with_ref, with_critic = "ref" in self.workers, "critic" in self.workers
        reads = ("old_logprobs", "token_rewards", *(("ref_logprobs",) * with_ref), *(("values",) * with_critic))
        phases = [
            Phase("gen", self.generate, writes=("input_ids", "sampled_mask", "loss_mask", "rollout_logprobs", "group")),
            Phase("reward", self.reward, reads=("input_ids", "sampled_mask"), writes=("reward", "token_rewards")),
            Phase(
                "old_log_prob", self.old_logprobs, reads=("input_ids", "loss_mask"), writes=("old_logprobs", "entropy")
            ),
        ]
        if with_ref:
            phases.append(Phase("ref", self.reference, reads=("input_ids",), writes=("ref_logprobs",)))
        if with_critic:
            phases.append(Phase("values", self.values, reads=("input_ids",), writes=("values",)))
        phases.append(Phase("adv", self.advantages, reads=reads, writes=("advantages", "returns")))
        if with_critic:
            phases.append(Phase("update_critic", self.update_critic, reads=("values", "returns")))
        phases.append(Phase("update_actor", self.update_actor, reads=("old_logprobs", "advantages")))
        phases.append(Phase("update_weights", self.sync))
        return phases

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
        """Score each response; the reward stands at its last sampled token."""
        prompts = [step.prompts[group] for group in step.batch["group"]]
        scored = self.scorer.score(prompts, response_texts(step.batch, self.tokenizer))
        batch = step.batch.with_columns(sequences={"reward": scored.rewards})
        placed, empty = rewards.place_rewards(**tensors(batch, "reward", mask="sampled_mask"))
        step.batch = batch.with_columns(tokens={"token_rewards": placed.numpy()})
        step.metrics |= scored.metrics | {"reward/empty_responses": float(empty)}

    def old_logprobs(self, step: Step) -> None:
        """Log-probs of the policy that sampled, in the update's own micro-batches: the first ratio is exactly 1."""
        actor = self.config.actor_rollout_ref.actor
        columns = forward(self.workers["actor"], step.batch, self.rows(step, actor), ("logprobs", "entropy"))
        columns["old_logprobs"] = columns.pop("logprobs")
        step.batch = step.batch.with_columns(tokens=columns)
        step.metrics |= step_metrics.of_old_policy(step.batch, actor)

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
        columns = tensors(batch, "token_rewards", "values", "group", mask="sampled_mask")
        computed, returns = advantages.compute(
            algorithm.adv_estimator,
            token_rewards=columns["token_rewards"],
            values=columns.get("values"),
            group=columns["group"],
            mask=columns["mask"],
            cu_seqlens=columns["cu_seqlens"],
            gamma=algorithm.gamma,
            lam=algorithm.lam,
            norm_by_std=algorithm.norm_adv_by_std_in_grpo,
        )
        step.batch = batch.with_columns(tokens={"advantages": computed.numpy(), "returns": returns.numpy()})
        step.metrics |= step_metrics.of_batch(step.batch, step.prompts)

    def update_critic(self, step: Step) -> None:
        """Fit the values to the returns."""
        critic = self.config.critic
        rows, loss = self.rows(step, critic), CriticLoss(critic)
        step.metrics |= train(self.workers["critic"], step.batch, rows, loss, critic.ppo_epochs)

    def update_actor(self, step: Step) -> None:
        """Improve the policy, once the critic has had `trainer.critic_warmup` steps to learn."""
        actor = self.config.actor_rollout_ref.actor
        if step.number > self.config.trainer.critic_warmup:
            rows, loss = self.rows(step, actor), ActorLoss(actor)
            step.metrics |= train(self.workers["actor"], step.batch, rows, loss, actor.ppo_epochs)

    def sync(self, step: Step) -> None:
        """Give the rollout the new weights."""
        report = self.controller.sync_weights(self.workers["actor"], self.workers["rollout"], step.number)
        step.metrics |= {"sync/bytes": float(report.bytes_received), "sync/seconds": report.seconds}
