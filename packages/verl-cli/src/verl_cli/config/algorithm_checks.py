"""What must hold between the keys of the advantage estimator, the policy loss and the rollout correction."""

from collections.abc import Iterator, Mapping
from contextlib import suppress

from verl_algos.estimators import ESTIMATORS, canonical
from verl_algos.import_path import hint, is_import_path
from verl_algos.loss_options import POLICY_LOSS_OPTIONS, canonical_loss, check_aggregation_mode
from verl_algos.rollout_correction_options import PRESETS, parse_rejections, parse_weight_bounds

from verl_cli.config.algorithm_rules import (
    CORRECTION,
    ESTIMATOR,
    ESTIMATOR_KWARGS,
    ESTIMATOR_OPTION_KEYS,
    LOSS,
    LOSS_OPTION_KEYS,
    POLICY_LOSS,
)
from verl_cli.config.derive import policy_loss
from verl_cli.config.problem import Problem
from verl_cli.config.ranges import Names
from verl_cli.config.rule import ACTOR, ROLLOUT, Values
from verl_cli.config.values import show

_PRESET = f"{CORRECTION}.preset"
_NAMES: Mapping[str, Names] = {
    ESTIMATOR: Names("advantage estimator", tuple(ESTIMATORS)),
    POLICY_LOSS[0]: Names("policy loss", tuple(POLICY_LOSS_OPTIONS)),
    _PRESET: Names("preset", tuple(PRESETS)),
}
_KEYS, _WEIGHTS = "algorithm.gdpo_reward_keys", "algorithm.gdpo_reward_weights"


def wrong_name(key: str, name: str | None) -> str | None:
    """Say that `key` has no such value; None where it has, and for keys that hold no name of an algorithm."""
    if key not in _NAMES or name is None or name in _NAMES[key].known:
        return None
    own = "" if key == _PRESET else "; or a function of your own as package.module:function or file.py:function"
    if own and is_import_path(name):
        return None
    known, elsewhere = _NAMES[key].known, _elsewhere(key, name)
    if key == ESTIMATOR:
        try:
            canonical(name)
        except ValueError as error:
            own_key = ESTIMATOR_OPTION_KEYS["norm_by_std"]
            told = str(error).replace("norm_by_std=False", f"{own_key}=false")
            return f"{key}: {told.partition(' Did you mean')[0] + elsewhere if elsewhere else told}"
        return None
    meant = elsewhere or hint(name.lower(), known)
    return f"{key}: there is no {_NAMES[key].what} {name!r}; the names are {', '.join(known)}{own}.{meant}"


def _elsewhere(key: str, name: str) -> str:
    """Where an algorithm is chosen that has another key; empty if there is none of this name."""
    loss_mode, lower = POLICY_LOSS[0], name.lower()
    if key not in (ESTIMATOR, loss_mode):
        return ""
    if lower == "dapo":
        return (
            f" DAPO is {ESTIMATOR}=grpo with algorithm.filter_groups.enable=true, {ACTOR}.clip_ratio_high=0.28 and, "
            "against overlong responses, reward.reward_manager.name=dapo."
        )
    if lower == "ppo":
        return f" PPO is {ESTIMATOR}=gae with {loss_mode}=vanilla."
    loss = canonical_loss(name)
    if key == ESTIMATOR and loss in POLICY_LOSS_OPTIONS:
        return f" {name} is a policy loss: set {loss_mode}={loss}, with an estimator such as grpo."
    with suppress(ValueError):
        if key == loss_mode:
            return f" {name} is an advantage estimator: set {ESTIMATOR}={canonical(name)}; vanilla suits it."
    return ""


def allowed(key: str) -> str | None:
    """In words, which values a key of an algorithm takes; None for other keys."""
    if key in _NAMES:
        own = "" if key == _PRESET else ", file.py:function, package.module:function"
        return ", ".join(_NAMES[key].known) + own
    words: dict[str, list[str]] = {}
    for option, name in LOSS_OPTION_KEYS.items():
        for loss, options in POLICY_LOSS_OPTIONS.items():
            if name == key and option in options:
                words.setdefault(options[option].range, []).append(loss)
    return "; ".join(f"{one} with {', '.join(losses)}" for one, losses in words.items()) or None


def estimator_problems(values: Values) -> Iterator[Problem]:
    """An estimator that does not exist, or whose inputs this run cannot supply."""
    name = values[ESTIMATOR]
    if len(weights := values[_WEIGHTS]) not in (0, len(values[_KEYS])):
        yield Problem(
            (_KEYS, _WEIGHTS),
            f"{_WEIGHTS} has {len(weights)} weights for the {len(values[_KEYS])} rewards of {_KEYS}. Give one for "
            "each, or none.",
        )
    if weights and not any(weights):
        yield Problem((_WEIGHTS,), f"{_WEIGHTS}={show(weights)} weighs every reward 0, which teaches nothing.")
    if len(set(values[_KEYS])) != len(values[_KEYS]):
        yield Problem((_KEYS,), f"{_KEYS}={show(values[_KEYS])} names a reward twice. Name each once.")
    if wrong := wrong_name(ESTIMATOR, name):
        yield Problem((ESTIMATOR,), wrong)
        return
    if is_import_path(name):
        return
    spec = ESTIMATORS[canonical(name)]
    n = f"{ROLLOUT}.n"
    if 1 <= values[n] < spec.least_group_size:
        yield Problem(
            (n, ESTIMATOR),
            f"{n}={values[n]} with {ESTIMATOR}={name}: an advantage compares the responses of one prompt, and a single "
            f"response has nothing to be compared with. Set {n} to 2 or more (5 is usual), or {ESTIMATOR}=gae.",
        )
    if ("values" in spec.required) != values["critic.enable"]:
        yield Problem(
            ("critic.enable", ESTIMATOR),
            f"critic.enable=false, but {ESTIMATOR}={name} needs the values of a critic. Leave it out, or choose an "
            "estimator without critic, such as grpo."
            if "values" in spec.required
            else f"critic.enable=true, but {ESTIMATOR}={name} takes no values: the critic would be trained for "
            f"nothing. Leave it out, or set {ESTIMATOR}=gae.",
        )
    if "reward_components" in spec.required:
        yield from _components(values, name)
    yield from _no_switches(values)
    with_keys = (*ESTIMATOR_OPTION_KEYS, "reward_weights")
    takes = [option for option in spec.options if option not in with_keys]
    if unknown := [option for option in values[ESTIMATOR_KWARGS] if option not in takes]:
        yield Problem(
            (ESTIMATOR_KWARGS, ESTIMATOR),
            f"{ESTIMATOR_KWARGS} has {', '.join(unknown)}, which {ESTIMATOR}={name} does not take there. It takes "
            f"{', '.join(takes) or 'none'}.{_keys_of(unknown)}",
        )


def _no_switches(values: Values) -> Iterator[Problem]:
    for option in ("compat", "whiten"):
        if not isinstance(value := values[ESTIMATOR_KWARGS].get(option, True), bool):
            yield Problem((ESTIMATOR_KWARGS,), f"{ESTIMATOR_KWARGS}.{option}={show(value)} must be true or false.")


def _keys_of(options: list[str]) -> str:
    """Where options are set that have keys of their own."""
    keys = {option: ESTIMATOR_OPTION_KEYS[option] for option in options if option in ESTIMATOR_OPTION_KEYS}
    return "".join(f" Set {key} for {option}." for option, key in keys.items())


def _components(values: Values, name: str) -> Iterator[Problem]:
    if not values[_KEYS]:
        yield Problem(
            (_KEYS, ESTIMATOR),
            f"{ESTIMATOR}={name} needs reward_components, the rewards that are compared each by itself: name the "
            f"numbers that your reward function reports, such as {_KEYS}=[acc,format].",
        )
    in_reward = "algorithm.use_kl_in_reward"
    if values[in_reward]:
        yield Problem(
            (in_reward, ESTIMATOR),
            f"{in_reward}=true with {ESTIMATOR}={name}: the advantages come from the rewards that {_KEYS} names, so a "
            f"KL term in the reward would be lost. Set {ACTOR}.use_kl_loss=true instead.",
        )


def policy_loss_problems(values: Values, faultless: frozenset[str]) -> Iterator[Problem]:
    """A policy loss that does not exist, an option out of its range, or an aggregation that changes what it is."""
    name = policy_loss(values)
    if wrong := wrong_name(POLICY_LOSS[0], name):
        yield Problem(POLICY_LOSS[:1], wrong)
        return
    if is_import_path(name):
        return
    for option, declared in POLICY_LOSS_OPTIONS[name].items():
        key = LOSS_OPTION_KEYS[option]
        value = values[key]
        reads = (key, f"{ACTOR}.clip_ratio", *POLICY_LOSS)
        if value is None:
            yield Problem(
                reads,
                f"{POLICY_LOSS[0]}={name} needs {key}, a number {declared.range}: {declared.meaning}. No value suits "
                "every run, so it has no default.",
            )
        elif key not in faultless and not declared.holds(value):
            unbounded = option == "clip_ratio_low" and declared.maximum == 1 and value > 1
            yield Problem(
                reads,
                f"{key}={show(value)} must be {declared.range} with the policy loss {name}: {declared.meaning}."
                + (f" Set {key}=1 for no bound below, which is what it would mean." if unbounded else ""),
            )
    lower, upper = f"{LOSS}.clip_cov_lb", f"{LOSS}.clip_cov_ub"
    if name == "clip_cov" and not values[lower] < values[upper]:
        yield Problem(
            (lower, upper),
            f"{lower}={values[lower]} is not below {upper}={values[upper]}: no token has a covariance between them, "
            "and clip_cov would never act.",
        )
    mode = f"{ACTOR}.loss_agg_mode"
    if mode not in faultless:
        try:
            check_aggregation_mode(name, values[mode])
        except ValueError as error:
            yield Problem((mode, *POLICY_LOSS), f"{mode}={values[mode]}: {error}")


def correction_problems(values: Values) -> Iterator[Problem]:
    """Thresholds and criteria that cannot be read."""
    if wrong := wrong_name(_PRESET, values[_PRESET]):
        yield Problem((_PRESET,), wrong)
    weights = (f"{CORRECTION}.rollout_is", f"{CORRECTION}.rollout_is_threshold")
    if values[weights[0]] is not None:
        try:
            parse_weight_bounds(values[weights[1]])
        except ValueError as error:
            yield Problem(weights, f"{CORRECTION}: {error}")
    rejection = (f"{CORRECTION}.rollout_rs", f"{CORRECTION}.rollout_rs_threshold")
    if values[rejection[0]] is not None:
        try:
            parse_rejections(values[rejection[0]], values[rejection[1]])
        except ValueError as error:
            yield Problem(rejection, f"{CORRECTION}: {error}")


def algorithm_advice(values: Values) -> Iterator[str]:
    """What is allowed but seldom meant, one line each."""
    low = LOSS_OPTION_KEYS["clip_ratio_low"]
    if policy_loss(values) == "gspo" and values[low] >= 0.05:
        yield (
            f"{low}={values[low]} clips gspo's ratio of whole sequences, which moves far less than that of tokens: it "
            f"will hardly act. The paper's bounds are {low}=3e-4 and {LOSS_OPTION_KEYS['clip_ratio_high']}=4e-4."
        )
    kind = f"{ACTOR}.kl_loss_type"
    if values[f"{ACTOR}.use_kl_loss"] and values[kind] in ("k1", "kl"):
        yield (
            f"{kind}={values[kind]} has, on average, no gradient as a loss: it holds nothing. Use k2, k3+, low_var_kl, "
            f"or {values[kind]}+ for this value with the gradient of k2."
        )
