"""Live keys that have no effect in a particular run, as pure functions of its resolved configuration."""

from collections.abc import Iterator

from verl_cli.config.algorithm_rules import correction_rules, estimator_rules, policy_loss_rules
from verl_cli.config.keys import live_keys
from verl_cli.config.published import prefixes
from verl_cli.config.reasons import Reason
from verl_cli.config.reward_rules import reward_rules
from verl_cli.config.rule import ACTOR, REF, ROLLOUT, Rule, Values


def _no_reference(in_reward: bool, coefficient: float, in_loss: bool) -> bool:
    return not (in_reward and coefficient) and not in_loss


_KL = ("algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef")
_CRITIC = ("critic.enable",)
_NO_CRITIC = Reason(
    "The advantages of this run need no critic (critic.enable=false, which follows algorithm.adv_estimator).",
    "Leave it out, or set algorithm.adv_estimator=gae.",
)
_NO_KL_IN_REWARD = Reason(
    "The reward of this run has no KL term (algorithm.use_kl_in_reward=false).",
    "Set algorithm.use_kl_in_reward=true, or leave it out.",
)


def _batching(section: str, sequences: str, dynamic: str, tokens: str) -> list[Rule]:
    by_tokens, by_sequences = f"{section}.{dynamic}", f"{section}.{sequences}"
    return [
        Rule(
            by_sequences,
            (by_tokens,),
            lambda dynamic: bool(dynamic),
            Reason(
                f"Micro-batches are cut by tokens ({by_tokens}=true).", f"Set {section}.{tokens}, or {by_tokens}=false."
            ),
        ),
        Rule(
            f"{section}.{tokens}",
            (by_tokens, by_sequences),
            lambda dynamic, size: not dynamic and size is not None,
            Reason(f"Micro-batches are cut by sequences ({by_sequences}).", f"Leave {by_sequences} out, or this."),
        ),
    ]


def _schedule(section: str) -> list[Rule]:
    return [
        Rule(
            f"{section}.lr_warmup_steps_ratio",
            (f"{section}.lr_warmup_steps",),
            lambda steps: steps >= 0,
            Reason(f"{section}.lr_warmup_steps decides the warm-up.", "Set one of the two."),
        ),
        Rule(
            f"{section}.min_lr_ratio",
            (f"{section}.lr_scheduler_type",),
            lambda kind: kind == "constant",
            Reason("A constant learning rate has no end.", f"Set {section}.lr_scheduler_type=cosine or linear."),
        ),
        Rule(
            f"{section}.num_cycles",
            (f"{section}.lr_scheduler_type",),
            lambda kind: kind != "cosine",
            Reason("Only a cosine schedule has cycles.", f"Set {section}.lr_scheduler_type=cosine."),
        ),
    ]


def _loss_scale(section: str) -> Rule:
    return Rule(
        f"{section}.loss_scale_factor",
        (f"{section}.loss_agg_mode",),
        lambda mode: mode != "seq-mean-token-sum-norm",
        Reason(
            "Only the aggregation seq-mean-token-sum-norm divides by it.",
            f"Set {section}.loss_agg_mode=seq-mean-token-sum-norm, or leave it out.",
        ),
    )


RULES: tuple[Rule, ...] = (
    Rule("critic", _CRITIC, lambda enable: not enable, _NO_CRITIC, but=frozenset(_CRITIC)),
    Rule("trainer.critic_warmup", _CRITIC, lambda enable: not enable, _NO_CRITIC),
    *estimator_rules(),
    *policy_loss_rules(),
    *correction_rules(),
    Rule("algorithm.kl_ctrl", _KL[:1], lambda in_reward: not in_reward, _NO_KL_IN_REWARD),
    Rule("algorithm.kl_penalty", _KL[:1], lambda in_reward: not in_reward, _NO_KL_IN_REWARD),
    *(
        Rule(
            f"algorithm.{name}",
            _KL[1:],
            lambda coefficient: not coefficient,
            Reason("The KL term has weight 0 (algorithm.kl_ctrl.kl_coef=0).", "Set algorithm.kl_ctrl.kl_coef above 0."),
        )
        for name in ("kl_penalty", "kl_ctrl.type", "kl_ctrl.horizon", "kl_ctrl.target_kl")
    ),
    *(
        Rule(
            f"algorithm.kl_ctrl.{name}",
            ("algorithm.kl_ctrl.type",),
            lambda kind: kind == "fixed",
            Reason("The KL term's weight is fixed.", "Set algorithm.kl_ctrl.type=adaptive, or leave it out."),
        )
        for name in ("horizon", "target_kl")
    ),
    *(
        Rule(
            f"{ACTOR}.{name}",
            (f"{ACTOR}.use_kl_loss",),
            lambda in_loss: not in_loss,
            Reason("The loss of this run has no KL term.", f"Set {ACTOR}.use_kl_loss=true, or leave it out."),
        )
        for name in ("kl_loss_coef", "kl_loss_type")
    ),
    Rule(
        REF,
        (*_KL, f"{ACTOR}.use_kl_loss"),
        _no_reference,
        Reason(
            "No KL term needs the reference model, so it is not loaded.",
            f"Set algorithm.use_kl_in_reward=true with algorithm.kl_ctrl.kl_coef above 0, or {ACTOR}.use_kl_loss=true.",
        ),
    ),
    Rule(
        f"{ACTOR}.clip_ratio",
        (f"{ACTOR}.clip_ratio", f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"),
        lambda both, low, high: both not in (low, high),
        Reason(f"{ACTOR}.clip_ratio_low and {ACTOR}.clip_ratio_high decide the two bounds.", "Leave it out."),
    ),
    _loss_scale(ACTOR),
    _loss_scale("critic"),
    *_batching(ACTOR, "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz", "ppo_max_token_len_per_gpu"),
    *_batching("critic", "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz", "ppo_max_token_len_per_gpu"),
    *_batching(REF, "log_prob_micro_batch_size_per_gpu", "log_prob_use_dynamic_bsz", "log_prob_max_token_len_per_gpu"),
    *_schedule(f"{ACTOR}.optim"),
    *_schedule("critic.optim"),
    *(
        Rule(
            f"{ROLLOUT}.val_kwargs.{name}",
            (f"{ROLLOUT}.val_kwargs.temperature",),
            lambda temperature: temperature == 0,
            Reason(
                "Validation takes the likeliest token (temperature 0), so nothing is sampled.",
                f"Set {ROLLOUT}.val_kwargs.temperature above 0, or leave it out.",
            ),
        )
        for name in ("n", "top_k", "top_p")
    ),
    *(
        Rule(
            f"algorithm.filter_groups.{name}",
            ("algorithm.filter_groups.enable",),
            lambda enable: not enable,
            Reason(
                "This run trains on every prompt (algorithm.filter_groups.enable=false).",
                "Set algorithm.filter_groups.enable=true, or leave it out.",
            ),
        )
        for name in ("metric", "max_num_gen_batches")
    ),
    Rule(
        "data.seed",
        ("data.shuffle",),
        lambda shuffle: not shuffle,
        Reason("Rows keep the order of the file (data.shuffle=false).", "Set data.shuffle=true, or leave it out."),
    ),
    Rule(
        "data.apply_chat_template_kwargs",
        ("data.prompt_format",),
        lambda prompts: prompts == "rendered",
        Reason("The prompts are already rendered (data.prompt_format=rendered).", "Leave it out."),
    ),
    Rule(
        "trainer.total_epochs",
        ("trainer.total_training_steps",),
        lambda steps: steps is not None,
        Reason("trainer.total_training_steps decides the length of the run.", "Set one of the two."),
    ),
    Rule(
        "trainer.resume_from_path",
        ("trainer.resume_mode",),
        lambda mode: mode != "path",
        Reason("This run does not go on from a named checkpoint.", "Set trainer.resume_mode=path."),
    ),
    *reward_rules(),
)


def inapplicable(values: Values, doubtful: frozenset[str] = frozenset()) -> dict[str, Reason]:
    """The live keys without effect under these resolved values, each with the first reason that holds.

    Rules that read a key in `doubtful` are passed over.
    """
    return dict(reversed(list(_inapplicable(values, doubtful))))


def _inapplicable(values: Values, doubtful: frozenset[str]) -> Iterator[tuple[str, Reason]]:
    for rule in RULES:
        if doubtful.isdisjoint(rule.reads) and rule.applies(*(values[key] for key in rule.reads)):
            yield from (
                (name, rule.reason) for name in live_keys() if rule.prefix in prefixes(name) and name not in rule.but
            )
