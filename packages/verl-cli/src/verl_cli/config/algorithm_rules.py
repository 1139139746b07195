"""When keys of the advantage estimator, the policy loss and the rollout correction have no effect."""

from collections.abc import Callable, Iterator, Mapping

from verl_algos.estimators import ESTIMATORS, canonical
from verl_algos.import_path import is_import_path
from verl_algos.loss_options import POLICY_LOSS_OPTIONS

from verl_cli.config.reasons import Reason
from verl_cli.config.rule import ACTOR, Rule
from verl_cli.config.schema import effective_policy_loss

ESTIMATOR = "algorithm.adv_estimator"
ESTIMATOR_KWARGS = "algorithm.adv_estimator_kwargs"
LOSS = f"{ACTOR}.policy_loss"
CORRECTION = "algorithm.rollout_correction"

#: The keys that decide which policy loss a run has.
POLICY_LOSS = (f"{LOSS}.loss_mode", f"{CORRECTION}.bypass_mode", f"{CORRECTION}.loss_type")

#: The key of each option of a policy loss.
LOSS_OPTION_KEYS: Mapping[str, str] = {
    **{name: f"{ACTOR}.{name}" for name in ("clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "tau_pos", "tau_neg")},
    **{
        name: f"{LOSS}.{name}"
        for name in ("clip_cov_ratio", "clip_cov_lb", "clip_cov_ub", "kl_cov_ratio", "ppo_kl_coef", "dro_beta")
    },
}

#: The key of each option that estimators take from the configuration; others come from adv_estimator_kwargs.
ESTIMATOR_OPTION_KEYS: Mapping[str, str] = {
    "gamma": "algorithm.gamma",
    "lam": "algorithm.lam",
    "norm_by_std": "algorithm.norm_adv_by_std_in_grpo",
}


def estimator_takes(name: str, what: str) -> bool:
    """Whether an estimator takes an input or an option; one of the user's own, or an unknown one, may."""
    if is_import_path(name):
        return True
    try:
        spec = ESTIMATORS[canonical(name)]
    except ValueError:
        return True
    return what in (*spec.required, *spec.optional, *spec.options)


def loss_takes(name: str, option: str) -> bool:
    """Whether a policy loss takes an option from the configuration's own keys; an unknown loss may."""
    if is_import_path(name):
        return False
    return name not in POLICY_LOSS_OPTIONS or option in POLICY_LOSS_OPTIONS[name]


def _users(what: str) -> str:
    return ", ".join(name for name in ESTIMATORS if estimator_takes(name, what))


def _untaken(what: str) -> Callable[[str], bool]:
    return lambda estimator: not estimator_takes(estimator, what)


def _losses_without(*options: str) -> Callable[..., bool]:
    def without(*reads: str | bool) -> bool:
        loss = effective_policy_loss(str(reads[0]), bool(reads[1]), str(reads[2]))
        return not any(loss_takes(loss, option) for option in options)

    return without


def _own_alone(*reads: str | bool) -> bool:
    return not is_import_path(effective_policy_loss(str(reads[0]), bool(reads[1]), str(reads[2])))


def _losses_with(option: str) -> str:
    return ", ".join(name for name, options in POLICY_LOSS_OPTIONS.items() if option in options)


def estimator_rules() -> Iterator[Rule]:
    """Keys that belong to some advantage estimators."""
    for option, what in {
        "gamma": "does not discount",
        "lam": "has no returns of different lengths to mix",
        "norm_by_std": "divides by no standard deviation of a group",
    }.items():
        yield Rule(
            ESTIMATOR_OPTION_KEYS[option],
            (ESTIMATOR,),
            _untaken(option),
            Reason(f"The run's advantage estimator {what}.", f"Leave it out, or set {ESTIMATOR} to {_users(option)}."),
        )
    for name in ("gdpo_reward_keys", "gdpo_reward_weights"):
        yield Rule(
            f"algorithm.{name}",
            (ESTIMATOR,),
            _untaken("reward_components"),
            Reason("The run's advantage estimator compares one reward.", f"Leave it out, or set {ESTIMATOR}=gdpo."),
        )


def policy_loss_rules() -> Iterator[Rule]:
    """Keys that belong to some policy losses."""
    for option, key in LOSS_OPTION_KEYS.items():
        yield Rule(
            key,
            POLICY_LOSS,
            _losses_without(option),
            Reason(
                "The run's policy loss does not take it.",
                f"Leave it out; it belongs to {_losses_with(option)} ({LOSS}.loss_mode), and a loss of your own has "
                f"its options in {LOSS}.loss_kwargs.",
            ),
        )
    yield Rule(
        f"{ACTOR}.clip_ratio",
        POLICY_LOSS,
        _losses_without("clip_ratio_low", "clip_ratio_high"),
        Reason(
            "The run's policy loss does not clip.",
            f"Leave it out; it belongs to {_losses_with('clip_ratio_low')} ({LOSS}.loss_mode).",
        ),
    )
    yield Rule(
        f"{LOSS}.loss_kwargs",
        POLICY_LOSS,
        _own_alone,
        Reason(
            "A published policy loss has its options under their own keys.",
            f"Set those, or name a loss of your own: {LOSS}.loss_mode=file.py:function.",
        ),
    )


def correction_rules() -> Iterator[Rule]:
    """Keys of the rollout correction."""

    def rule(name: str, reads: tuple[str, ...], applies: Callable[..., bool], why: str, remedy: str) -> Rule:
        return Rule(f"{CORRECTION}.{name}", tuple(f"{CORRECTION}.{key}" for key in reads), applies, Reason(why, remedy))

    yield rule(
        "rollout_is",
        ("bypass_mode", "loss_type"),
        lambda bypass, loss_type: bypass and loss_type == "ppo_clip",
        "With bypass_mode and ppo_clip the loss's own ratio is the importance weight.",
        f"Leave it out, or set {CORRECTION}.loss_type=reinforce.",
    )
    for name in ("rollout_is_threshold", "rollout_is_batch_normalize"):
        yield rule(
            name,
            ("rollout_is", "bypass_mode", "loss_type"),
            lambda level, bypass, loss_type: level is None or (bypass and loss_type == "ppo_clip"),
            "There are no importance weights (rollout_is).",
            f"Set {CORRECTION}.rollout_is=token, or leave it out.",
        )
    yield rule(
        "rollout_rs_threshold",
        ("rollout_rs",),
        lambda criteria: criteria is None,
        "Nothing is rejected (rollout_rs).",
        f"Set {CORRECTION}.rollout_rs=seq_mean_k1, or leave it out.",
    )
    yield rule(
        "loss_type",
        ("bypass_mode",),
        lambda bypass: not bypass,
        "Without bypass_mode the policy loss is actor.policy_loss.loss_mode.",
        f"Set {CORRECTION}.bypass_mode=true, or leave it out.",
    )
    yield Rule(
        f"{LOSS}.loss_mode",
        POLICY_LOSS[1:],
        lambda bypass, loss_type: bypass and loss_type == "reinforce",
        Reason("The rollout correction asks for the plain policy gradient.", f"Set {CORRECTION}.loss_type=ppo_clip."),
    )
