"""The typed tree of every key that this version implements, under the published names.

Sections that configure a lower package are that package's own dataclasses. The line under a field says why one would
touch it. A field made by `derived` takes another key's value when it is null; its type is what a resolved
configuration holds.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from verl_algos.names import Mode, Penalty, StraightThrough
from verl_algos.rollout_correction_options import Level
from verl_data.config import DataConfig
from verl_engine.config import FsdpConfig, ModelConfig, OptimConfig
from verl_rollout.config import RolloutConfig


def derived(expression: str) -> Any:
    """Declare a field that, when null, is `expression`: text in which ``${key}`` stands for another key's value.

    Text without ``${`` only tells the rule, which then stands in `derive.py`.
    """
    return field(default=None, metadata={"derived": expression})


def effective_policy_loss(loss_mode: str, bypass_mode: bool, loss_type: str) -> str:
    """The policy loss of a run: `loss_mode`, unless the rollout correction asks for the plain policy gradient."""
    return "gpg" if bypass_mode and loss_type == "reinforce" else loss_mode


@dataclass(frozen=True)
class PolicyLossConfig:
    """Which policy loss the actor is trained with."""

    loss_mode: str = "vanilla"
    """Name of the policy loss (vanilla is PPO's clipped ratio with dual clip), or your own as file.py:function."""
    clip_cov_ratio: float = 0.0002
    """clip_cov: share of the tokens whose gradient is dropped; raise it when the entropy falls too fast."""
    clip_cov_lb: float = 1.0
    """clip_cov: covariances at or below it are left alone."""
    clip_cov_ub: float = 5.0
    """clip_cov: covariances at or above it are left alone."""
    kl_cov_ratio: float = 0.0002
    """kl_cov: share of the tokens that pay a KL penalty; raise it when the entropy falls too fast."""
    ppo_kl_coef: float = 0.1
    """kl_cov: weight of that penalty."""
    dro_beta: float | None = None
    """dro: weight of the squared log-ratio that holds the policy; the loss dro needs one."""
    loss_kwargs: dict[str, Any] = field(default_factory=dict)
    """Options of a policy loss of your own, its only ones."""


@dataclass(frozen=True)
class ActorConfig:
    """The policy's update."""

    ppo_mini_batch_size: int = 256
    """Prompts per optimiser step; a smaller value takes more, noisier steps on the same rollouts."""
    ppo_micro_batch_size_per_gpu: int | None = None
    """Sequences per forward and backward pass; lower it for memory. Null cuts by ppo_max_token_len_per_gpu."""
    use_dynamic_bsz: bool = False
    """Cut micro-batches by tokens even where a number of sequences is given; uneven lengths then cost no memory."""
    ppo_max_token_len_per_gpu: int = 16384
    """Most tokens of a micro-batch, a hard cap; lower it when memory runs out. Not used with a number of sequences."""
    clip_ratio: float = 0.2
    """How far the probability ratio may move from 1 before its gradient stops, in both directions."""
    clip_ratio_low: float = derived("${actor_rollout_ref.actor.clip_ratio}")
    """The same bound for ratios below 1 alone."""
    clip_ratio_high: float = derived("${actor_rollout_ref.actor.clip_ratio}")
    """The same bound for ratios above 1 alone; raise it to let unlikely tokens grow (DAPO's clip-higher)."""
    clip_ratio_c: float | None = derived("3 with vanilla, 20 with dppo_tv and dppo_kl")
    """Bound of the loss for tokens with negative advantage (dual clip), or where dppo truncates the ratio; above 1."""
    tau_pos: float = 1.0
    """sapo: steepness of the gate for positive advantages; larger forgets tokens that moved away sooner."""
    tau_neg: float = 1.05
    """sapo: the same for negative advantages."""
    policy_loss: PolicyLossConfig = field(default_factory=PolicyLossConfig)
    loss_agg_mode: Mode = derived("token-mean, or seq-mean-token-mean with gspo, sapo and geo_mean")  # noqa: RUF009 (makes a field)
    """How token losses become one number: decides whether long responses weigh more than short ones."""
    loss_scale_factor: float | None = derived("data.max_response_length under seq-mean-token-sum-norm")
    """Tokens by which seq-mean-token-sum-norm divides each sequence's sum: Dr. GRPO's constant."""
    entropy_coeff: float = 0.0
    """Weight of the entropy bonus; raise it a little when responses become all alike."""
    use_kl_loss: bool = False
    """Add the divergence from the reference model to the loss, as GRPO does, instead of to the reward."""
    kl_loss_coef: float = 0.001
    """Weight of that divergence; raise it when the policy drifts away from the reference."""
    kl_loss_type: Penalty | StraightThrough = "low_var_kl"
    """Estimator of that divergence; low_var_kl is never negative and varies least; a + behind it has k2's gradient."""
    ppo_epochs: int = 1
    """Passes over each step's rollouts; more reuse them at the price of stale data."""
    shuffle: bool = False
    """Draw a step's mini-batches in a seeded random order instead of the order of the prompts; all passes use it."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    fsdp_config: FsdpConfig = field(default_factory=FsdpConfig)


@dataclass(frozen=True)
class RefConfig:
    """The frozen reference model's forward pass; loaded only when a KL term needs it."""

    log_prob_micro_batch_size_per_gpu: int | None = None
    """Sequences per forward pass of the reference. Null cuts by log_prob_max_token_len_per_gpu."""
    log_prob_use_dynamic_bsz: bool = derived("${actor_rollout_ref.actor.use_dynamic_bsz}")
    """Pack the reference's micro-batches by tokens instead of by sequences."""
    log_prob_max_token_len_per_gpu: int = derived("${actor_rollout_ref.actor.ppo_max_token_len_per_gpu}")
    """Most tokens of the reference's micro-batch; it stores no activations, so more fit than in the actor's."""
    fsdp_config: FsdpConfig = field(default_factory=FsdpConfig)


@dataclass(frozen=True)
class ActorRolloutRefConfig:
    """The policy in its three roles."""

    model: ModelConfig
    actor: ActorConfig = field(default_factory=ActorConfig)
    ref: RefConfig = field(default_factory=RefConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)


@dataclass(frozen=True)
class CriticConfig:
    """The value model's update; used where the advantages need values."""

    model: ModelConfig
    enable: bool = derived("true with gae")
    """Train a critic; set it for an advantage estimator of your own that takes values."""
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(lr=1e-5))
    fsdp: FsdpConfig = field(default_factory=FsdpConfig)
    ppo_mini_batch_size: int = derived("${actor_rollout_ref.actor.ppo_mini_batch_size}")
    """Prompts per optimiser step of the critic."""
    ppo_micro_batch_size_per_gpu: int | None = None
    """Sequences per forward and backward pass of the critic. Null cuts by ppo_max_token_len_per_gpu."""
    use_dynamic_bsz: bool = derived("${actor_rollout_ref.actor.use_dynamic_bsz}")
    """Pack the critic's micro-batches by tokens instead of by sequences."""
    ppo_max_token_len_per_gpu: int = 32768
    """Most tokens of the critic's micro-batch. Not used with a number of sequences."""
    ppo_epochs: int = derived("${actor_rollout_ref.actor.ppo_epochs}")
    """Passes of the critic over each step's rollouts."""
    cliprange_value: float | None = 0.5
    """How far a value may move from the old one before its gradient stops; null for the plain squared error."""
    loss_agg_mode: Mode = derived("${actor_rollout_ref.actor.loss_agg_mode}")  # noqa: RUF009 (makes a field)
    """How the critic's token losses become one number."""
    loss_scale_factor: float | None = derived("the actor's, under seq-mean-token-sum-norm")
    """Tokens by which seq-mean-token-sum-norm divides each sequence's sum of value losses."""
    shuffle: bool = derived("${actor_rollout_ref.actor.shuffle}")
    """Draw the critic's mini-batches in a seeded random order."""


@dataclass(frozen=True)
class KlCtrlConfig:
    """The weight of the KL term in the reward."""

    type: Literal["fixed", "adaptive"] = "fixed"
    """adaptive moves the weight so that the divergence stays near target_kl."""
    kl_coef: float = 0.001
    """Weight of the divergence in the reward (the first weight when adaptive); 0 loads no reference model."""
    horizon: int = 10000
    """Sequences over which the adaptive weight reacts; smaller reacts faster."""
    target_kl: float = 0.1
    """Divergence per token that the adaptive weight aims at."""


@dataclass(frozen=True)
class FilterGroupsConfig:
    """Dynamic sampling (DAPO): train on prompts whose responses differ, and draw more prompts for the others."""

    enable: bool = False
    """Turn on when many prompts are solved always or never: no update is wasted on them, at the price of generation."""
    metric: str = derived("acc")
    """By which number responses are compared: acc, score, or any other that the reward reports beside the score."""
    max_num_gen_batches: int = 10
    """Most batches of train_batch_size prompts that are drawn for one step, after which the run stops with the reason;
    0: one pass over the training prompts."""


@dataclass(frozen=True)
class RolloutCorrectionConfig:
    """What makes up for a rollout engine that samples with other probabilities than the trained policy's."""

    preset: str | None = None
    """One of the published combinations of the keys below, such as decoupled_token_is; those that you set win."""
    rollout_is: Level | None = None
    """Importance weights by token, by sequence, or by a sequence's geometric mean; token is the usual first choice."""
    rollout_is_threshold: float | str = 2.0
    """Weights above it are truncated to it; a pair "lo_hi" sets weights outside to 0 (IcePop)."""
    rollout_is_batch_normalize: bool = False
    """Divide the weights by their mean, so that they change no step's size."""
    rollout_rs: str | None = None
    """Criteria, with commas between, by which tokens or sequences are left out of the loss, such as seq_mean_k1."""
    rollout_rs_threshold: float | str | None = None
    """Bounds of the criteria, with commas between, or one for all; a k1 takes "lo_hi"."""
    bypass_mode: bool = False
    """Let the rollout's log-probs stand for the old ones: one forward pass less, and no correction but the ratio's."""
    loss_type: Literal["ppo_clip", "reinforce"] = "ppo_clip"
    """With bypass_mode: the policy loss as it is, or the plain policy gradient with the importance weights."""

    @property
    def acts(self) -> bool:
        """Whether anything is weighted or rejected."""
        return self.rollout_is is not None or self.rollout_rs is not None


@dataclass(frozen=True)
class AlgorithmConfig:
    """How rewards become advantages."""

    adv_estimator: str = "gae"
    """gae trains a critic; grpo and others compare the n responses of a prompt; or your own as file.py:function."""
    adv_estimator_kwargs: dict[str, Any] = field(default_factory=dict)
    """Further options of the estimator, such as {compat: true} or {whiten: false}, or those of your own function."""
    gamma: float = 1.0
    """Discount per sampled token; below 1 rewards early tokens less for a reward at the end."""
    lam: float = 1.0
    """GAE's trade of variance (1) against the critic's bias (0)."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide a group's advantages by their standard deviation; false is Dr. GRPO."""
    gdpo_reward_keys: list[str] = field(default_factory=list)
    """gdpo: the numbers reported by the reward that are compared each by itself, such as [acc,format]."""
    gdpo_reward_weights: list[float] = field(default_factory=list)
    """gdpo: the weight of each of them; 1 for all where the list is empty."""
    use_kl_in_reward: bool = derived("true with gae, unless the KL is in the loss")
    """Subtract the divergence from the reference model from the token rewards."""
    kl_penalty: Penalty | StraightThrough = "kl"
    """Estimator of the divergence in the reward; kl is unbiased."""
    kl_ctrl: KlCtrlConfig = field(default_factory=KlCtrlConfig)
    rollout_correction: RolloutCorrectionConfig = field(default_factory=RolloutCorrectionConfig)
    filter_groups: FilterGroupsConfig = field(default_factory=FilterGroupsConfig)


@dataclass(frozen=True)
class CustomRewardConfig:
    """The user's own reward function."""

    path: str | None = None
    """A Python file with the reward function; null scores by the rows' data_source."""
    name: str = "compute_score"
    """The function's name in that file."""
    reward_kwargs: dict[str, Any] = field(default_factory=dict)
    """Further arguments of every call, to the rules too: {method: flexible} reads a GSM8K answer without ####."""


@dataclass(frozen=True)
class RewardModelConfig:
    """A reward model instead of a function."""

    enable: bool = derived("true where reward.reward_model.path or reward.reward_model.model_path is given")
    """Score by the model that path or model_path names; false leaves it alone."""
    path: str | None = None
    """A class of your own, FILE.py:Class or package.module:Class: a subclass of verl.RewardModel that implements score.
    verl_algos.rewards:JudgeRewardModel asks a language model behind a URL."""
    model_path: str | None = None
    """A Hugging Face sequence-classification folder, whose logit for the conversation is the reward."""
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments of the class when it is made: {url: ..., model: ...} for the judge, {device: cpu} for a folder."""


@dataclass(frozen=True)
class RewardManagerConfig:
    """What is done with the rewards of a batch of responses."""

    name: Literal["naive", "dapo"] = "naive"
    """naive takes them as they are; dapo adds the penalty for overlong responses (reward.reward_kwargs)."""


@dataclass(frozen=True)
class OverlongBufferConfig:
    """DAPO's soft penalty for overlong responses."""

    enable: bool = False
    """Punish responses whose last tokens lie in the buffer before max_resp_len."""
    len: int = 0
    """Tokens of that buffer, over which the penalty grows from 0 to penalty_factor."""
    penalty_factor: float = 1.0
    """What a response of max_resp_len tokens loses."""
    log: bool = False
    """Report the penalty (overlong_reward) and the share of punished responses (overlong)."""


@dataclass(frozen=True)
class RewardKwargsConfig:
    """Options of reward.reward_manager.name=dapo."""

    max_resp_len: int = derived("${data.max_response_length}")
    """Tokens of the longest response, at which the overlong penalty is largest."""
    overlong_buffer_cfg: OverlongBufferConfig = field(default_factory=OverlongBufferConfig)


@dataclass(frozen=True)
class RewardConfig:
    """Where rewards come from."""

    custom_reward_function: CustomRewardConfig = field(default_factory=CustomRewardConfig)
    reward_model: RewardModelConfig = field(default_factory=RewardModelConfig)
    reward_manager: RewardManagerConfig = field(default_factory=RewardManagerConfig)
    reward_kwargs: RewardKwargsConfig = field(default_factory=RewardKwargsConfig)
    num_workers: int | None = None
    """Processes that call the reward function; 0 calls it in the trainer's own, for breakpoints, without limits. Null:
    one for each core, at most 8."""
    cpu_seconds: float = 10.0
    """Computing time of each response, after which its worker is replaced and the response is not scored; raise it for
    rewards that compute long."""
    wall_seconds: float = 60.0
    """The same in time on the clock, for rewards that wait: raise it for slow servers, and for code with many tests."""
    memory_mb: int | None = 4096
    """Memory of each worker in MiB, beyond which a response raises MemoryError; null for no limit."""


@dataclass(frozen=True)
class TrainerConfig:
    """How long a run takes, where it runs and what it writes."""

    total_epochs: int = 30
    """Passes over the training rows."""
    total_training_steps: int | None = None
    """Steps of the run, whatever number of epochs that is; null: as many as total_epochs take."""
    project_name: str = "verl_examples"
    """Groups runs in loggers and in the default run directory."""
    experiment_name: str = "gsm8k"
    """Names this run in loggers and in the default run directory."""
    logger: list[str] = field(default_factory=lambda: ["console"])
    """Where metrics are shown; metrics.jsonl in the run directory is always written."""
    log_val_generations: int = 0
    """Validation responses to print at each validation."""
    nnodes: int = 1
    """Machines."""
    n_gpus_per_node: int = 1
    """Ranks per machine: GPUs, or processes on a CPU."""
    save_freq: int = -1
    """Steps between checkpoints; -1 saves at the end only."""
    test_freq: int = -1
    """Steps between validations; -1 validates before and at the end only."""
    val_before_train: bool = True
    """Validate the initial model, so that there is something to compare with."""
    val_only: bool = False
    """Validate the initial model and stop."""
    health_warnings: bool = True
    """Say what looks wrong with the training, with the key to try first; false only logs the numbers (health/...)."""
    critic_warmup: int = 0
    """First steps in which only the critic is trained."""
    max_actor_ckpt_to_keep: int | None = None
    """Checkpoints to keep, the newest ones; null keeps all. A checkpoint holds actor and critic."""
    default_local_dir: str = derived("checkpoints/${trainer.project_name}/${trainer.experiment_name}")
    """The run directory: resolved config, metrics, validation samples, checkpoints, report."""
    default_hdfs_dir: str | None = None
    """Where the run directory's checkpoints and records are copied to: any URL that fsspec opens (hdfs, s3, gs, file).
    A run whose local directory is gone goes on from there."""
    resume_mode: Literal["auto", "disable", "path"] = "auto"
    """auto goes on from the newest checkpoint of the run directory (or of default_hdfs_dir), if there is one; disable
    starts anew and refuses a directory that holds a run; path goes on from resume_from_path."""
    resume_from_path: str | None = None
    """The checkpoint folder global_step_N, or its URL, that resume_mode=path goes on from; null for the other modes."""
    device: Literal["cpu", "cuda"] | None = None
    """Null takes a GPU where there is one; cpu leaves it alone."""
    seed: int = 1
    """Seed of everything random in the run that has no seed of its own."""


@dataclass(frozen=True)
class RunConfig:
    """A whole run."""

    data: DataConfig
    actor_rollout_ref: ActorRolloutRefConfig
    critic: CriticConfig
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)

    @property
    def needs_critic(self) -> bool:
        """Whether a critic is trained."""
        return self.critic.enable

    @property
    def policy_loss(self) -> str:
        """The policy loss by name or import path."""
        correction = self.algorithm.rollout_correction
        mode = self.actor_rollout_ref.actor.policy_loss.loss_mode
        return effective_policy_loss(mode, correction.bypass_mode, correction.loss_type)

    @property
    def needs_reference(self) -> bool:
        """The reference is loaded where its log-probs are used; a KL coefficient of 0 uses none."""
        in_reward = self.algorithm.use_kl_in_reward and self.algorithm.kl_ctrl.kl_coef != 0
        return bool(in_reward or self.actor_rollout_ref.actor.use_kl_loss)
