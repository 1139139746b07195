"""Which options each policy and preference loss takes, with defaults and ranges; nothing here imports torch.

A configuration checks its keys against these tables before torch is loaded; the losses check the same tables again.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from verl_algos._numbers import checked, in_range, in_words
from verl_algos.import_path import hint
from verl_algos.names import MODES, Mode

__all__ = [
    "AGGREGATION_MODES",
    "LOSS_ALIASES",
    "MINI_BATCH_INPUTS",
    "POLICY_LOSS_OPTIONS",
    "PREFERENCE_LOSS_INPUTS",
    "PREFERENCE_LOSS_OPTIONS",
    "LossOptionError",
    "Option",
    "canonical_loss",
    "check_aggregation_mode",
    "checked_options",
]


class LossOptionError(ValueError, TypeError):
    """A loss does not take this option: a wrong key of a configuration and a wrong keyword of a call in one."""


@dataclass(frozen=True)
class Option:
    """One number that a loss takes."""

    default: float | None
    """None: it has no default that suits every run and must be given."""
    minimum: float
    meaning: str
    """What the number does, for error messages and documentation."""
    maximum: float = math.inf
    above_minimum: bool = False
    """The minimum itself is excluded."""

    @property
    def range(self) -> str:
        """The range in words: ``within [0, 1]``, ``above 1``, ``at least 0``."""
        return in_words(self.minimum, self.maximum, self.above_minimum)

    def holds(self, value: object) -> bool:
        """Whether `value` is a number in range. Flags, text, NaN, infinity and numbers that float32 cannot compute with
        (other than 0, of a size below 1e-30 or above 1e30) never are."""
        return in_range(value, self.minimum, self.maximum, self.above_minimum)


_CLIP = {
    "clip_ratio_low": Option(0.2, 0.0, "the ratio is clipped below at 1 minus it", maximum=1.0),
    "clip_ratio_high": Option(0.2, 0.0, "the ratio is clipped above at 1 plus it"),
}

#: Options of each policy loss of `verl_algos.policy_losses`, by published name.
POLICY_LOSS_OPTIONS: Mapping[str, Mapping[str, Option]] = MappingProxyType(
    {
        "vanilla": {
            **_CLIP,
            "clip_ratio_c": Option(
                3.0,
                1.0,
                "it bounds the ratio of tokens with a negative advantage, and 1 is where every ratio starts",
                above_minimum=True,
            ),
        },
        "gspo": dict(_CLIP),
        "sapo": {
            "tau_pos": Option(1.0, 0.0, "steepness of the gate where the advantage is positive", above_minimum=True),
            "tau_neg": Option(1.05, 0.0, "steepness of the gate elsewhere", above_minimum=True),
        },
        "cispo": {
            "clip_ratio_low": Option(
                0.2, 0.0, "weights are clipped below at 1 minus it; from 1 on, the published 10, not"
            ),
            "clip_ratio_high": Option(0.2, 0.0, "weights are clipped above at 1 plus it"),
        },
        "gpg": {},
        "clip_cov": {
            **_CLIP,
            "clip_cov_ratio": Option(0.0002, 0.0, "share of the tokens whose gradient is dropped", maximum=1.0),
            "clip_cov_lb": Option(1.0, -math.inf, "covariances at or below it are left alone"),
            "clip_cov_ub": Option(5.0, -math.inf, "covariances at or above it are left alone"),
        },
        "kl_cov": {
            "kl_cov_ratio": Option(0.0002, 0.0, "share of the tokens that pay a KL penalty", maximum=1.0),
            "ppo_kl_coef": Option(0.1, 0.0, "coefficient of that penalty"),
        },
        "geo_mean": {
            "clip_ratio_low": Option(0.2, 0.0, "log-ratios are clipped below at minus it"),
            "clip_ratio_high": Option(0.2, 0.0, "log-ratios are clipped above at it"),
        },
        "dro": {
            "dro_beta": Option(None, 0.0, "weight of the squared log-ratio that holds the policy", above_minimum=True),
        },
        "dppo_tv": {
            "clip_ratio_low": Option(0.2, 0.0, "how far a token's probability may fall", maximum=1.0),
            "clip_ratio_high": Option(0.2, 0.0, "how far a token's probability may rise", maximum=1.0),
            "clip_ratio_c": Option(20.0, 1.0, "the importance ratio is truncated at it"),
        },
        "dppo_kl": {
            "clip_ratio_low": Option(0.2, 0.0, "KL of (token, other token) up to which a token may fall"),
            "clip_ratio_high": Option(0.2, 0.0, "KL of (token, other token) up to which a token may rise"),
            "clip_ratio_c": Option(20.0, 1.0, "the importance ratio is truncated at it"),
        },
    }
)

_SEQUENCE_MEAN: Mode = "seq-mean-token-mean"

#: Aggregation modes that give each policy loss its meaning; the first is the published one, for a run that names none.
#: A loss of whole sequences gives the published number with one mode only: any other weights sequences by length.
AGGREGATION_MODES: Mapping[str, tuple[Mode, ...]] = MappingProxyType(
    {
        **dict.fromkeys(POLICY_LOSS_OPTIONS, MODES),
        "gspo": (_SEQUENCE_MEAN,),
        "geo_mean": (_SEQUENCE_MEAN,),
        "sapo": (_SEQUENCE_MEAN, *(mode for mode in MODES if mode != _SEQUENCE_MEAN)),
    }
)

#: Inputs that speak about the whole mini-batch: a caller that splits it into micro-batches or ranks must compute them
#: before the split (`policy_losses.select_by_covariance`), or the result depends on the split.
MINI_BATCH_INPUTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"clip_cov": ("covariance_selected",), "kl_cov": ("covariance_selected",), "kto": ("chosen_kl", "rejected_kl")}
)

_BETA = Option(0.1, 0.0, "how strongly the policy is held to the reference", above_minimum=True)
_SMOOTHING = Option(0.0, 0.0, "share of the labels that are taken to be swapped", maximum=0.5)

#: Options of each preference loss of `verl_algos.preference_losses`, by published name.
PREFERENCE_LOSS_OPTIONS: Mapping[str, Mapping[str, Option]] = MappingProxyType(
    {
        "dpo": {"beta": _BETA, "label_smoothing": _SMOOTHING},
        "ipo": {"beta": _BETA},
        "simpo": {
            "beta": Option(2.0, 0.0, "scale of the mean log-probs", above_minimum=True),
            "gamma": Option(0.5, 0.0, "margin by which the chosen response must lead"),
        },
        "kto": {
            "beta": _BETA,
            "desirable_weight": Option(1.0, 0.0, "weight of the chosen responses"),
            "undesirable_weight": Option(1.0, 0.0, "weight of the rejected responses"),
        },
        "orpo": {"beta": Option(0.1, 0.0, "weight of the odds ratio beside the likelihood")},
    }
)

_REFERENCE = ("ref_chosen_logprobs", "ref_rejected_logprobs")
_LENGTHS = ("chosen_lengths", "rejected_lengths")

#: What each preference loss needs beside the policy's log-probs of both responses.
PREFERENCE_LOSS_INPUTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"dpo": _REFERENCE, "ipo": _REFERENCE, "simpo": _LENGTHS, "kto": _REFERENCE, "orpo": _LENGTHS}
)


#: Other spellings of losses, in lower case with underscores: those of the papers and of TRL.
LOSS_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "gmpo": "geo_mean",
        "dppo_binary_tv": "dppo_tv",
        "dppo_binary_kl": "dppo_kl",
        "kto_pair": "kto",
    }
)


def canonical_loss(name: str) -> str:
    """The published name of the loss called `name`, which may be an alias, in any case ("GSPO", "Clip-Cov", "GMPO").

    A name that is none comes back as it is.
    """
    spelt = str(name).lower().replace("-", "_").replace(" ", "_")
    spelt = LOSS_ALIASES.get(spelt, spelt)
    return spelt if spelt in POLICY_LOSS_OPTIONS or spelt in PREFERENCE_LOSS_OPTIONS else name


def checked_options(
    kind: str, name: str, table: Mapping[str, Mapping[str, Option]], given: Mapping[str, object]
) -> dict[str, float]:
    """The options of loss `name`: `given` ones over the defaults of `table`.

    Args:
        kind: "policy loss" or "preference loss", for messages.
        name: a key of `table`, or another spelling of one.
        table: `POLICY_LOSS_OPTIONS` or `PREFERENCE_LOSS_OPTIONS`.
        given: what the caller set.

    Raises:
        ValueError: the name is not in the table, a number is out of range, or one without default is missing.
        LossOptionError: the loss does not take one of the options.
    """
    name = canonical_loss(name)
    if name not in table:
        raise ValueError(f"Unknown {kind} {name!r}. Known: {', '.join(sorted(table))}.{hint(str(name).lower(), table)}")
    options = table[name]
    for option in given:
        if option not in options:
            others = sorted(other for other, taken in table.items() if option in taken)
            raise LossOptionError(
                f"The {kind} {name!r} takes no option {option!r}. It takes: {', '.join(options) or 'none'}."
                + (f" {option} belongs to: {', '.join(others)}." if others else "")
            )
    values = {option: given.get(option, declared.default) for option, declared in options.items()}
    settings: dict[str, float] = {}
    for option, value in values.items():
        declared = options[option]
        if value is None:
            raise ValueError(
                f"The {kind} {name!r} needs {option}, a number {declared.range}: {declared.meaning}. "
                "No value suits every run, so it has no default."
            )
        settings[option] = checked(
            option, value, declared.meaning, declared.minimum, declared.maximum, declared.above_minimum
        )
    return settings


def check_aggregation_mode(name: str, mode: Mode) -> None:
    """Raise ValueError if policy loss `name` has no meaning under aggregation `mode`; custom losses have any."""
    allowed = AGGREGATION_MODES.get(canonical_loss(name), MODES)
    if mode not in allowed:
        raise ValueError(
            f"The policy loss {name!r} is a loss of whole sequences: with aggregation {mode} a sequence would count "
            f"by its length. Use {' or '.join(allowed)}."
        )
