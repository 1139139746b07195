"""Options of the rollout correction as the configuration writes them; nothing here imports torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args

from verl_algos._numbers import in_range

__all__ = [
    "LEVELS",
    "PRESETS",
    "REJECTIONS",
    "Level",
    "Preset",
    "Rejection",
    "WeightBounds",
    "parse_rejections",
    "parse_weight_bounds",
]

#: How token ratios become weights: each by itself, the product over a sequence, or its geometric mean.
Level = Literal["token", "sequence", "geometric"]
LEVELS: tuple[Level, ...] = get_args(Level)

#: What `rollout_rs` may name; see `verl_algos.rollout_correction.correct`.
REJECTIONS: tuple[str, ...] = (
    "token_k1",
    "token_k2",
    "token_k3",
    "seq_sum_k1",
    "seq_sum_k2",
    "seq_sum_k3",
    "seq_mean_k1",
    "seq_mean_k2",
    "seq_mean_k3",
    "seq_max_k2",
    "seq_max_k3",
)


@dataclass(frozen=True)
class WeightBounds:
    """What happens to weights that are too large, or too small."""

    lower: float
    """Truncation: 1 / upper, for metrics only. IcePop: weights below become 0."""
    upper: float
    """Truncation: weights above become it. IcePop: weights above become 0."""
    zero_outside: bool
    """IcePop (arXiv:2510.18855) instead of truncation."""


@dataclass(frozen=True)
class Rejection:
    """One criterion: what it measures must lie within [lower, upper]."""

    name: str
    """One of `REJECTIONS`."""
    lower: float
    """Of k1, in log space; k2 and k3 are never negative and have none (-inf)."""
    upper: float
    """Of k1, in log space."""

    @property
    def over(self) -> str:
        """``token``, ``seq_sum``, ``seq_mean`` or ``seq_max``."""
        return self.name.rpartition("_")[0]

    @property
    def estimator(self) -> str:
        """``k1``, ``k2`` or ``k3``."""
        return self.name.rpartition("_")[2]


def parse_weight_bounds(threshold: str | float) -> WeightBounds:
    """Read `rollout_is_threshold`: a number (or its text) truncates at it, "lo_hi" is IcePop.

    Raises:
        ValueError: not a number above 0, or lo above hi.
    """
    numbers = _numbers("rollout_is_threshold", threshold)
    if len(numbers) == 1:
        return WeightBounds(1.0 / numbers[0], numbers[0], zero_outside=False)
    lower, upper = numbers
    return WeightBounds(lower, upper, zero_outside=True)


def parse_rejections(names: str | None, thresholds: str | float | None) -> tuple[Rejection, ...]:
    """Read `rollout_rs` and `rollout_rs_threshold`: comma lists of the same length, or one threshold for all.

    k1 takes "lo_hi", or x for [1/x, x]: bounds of ``rollout probability / policy probability``, which is the inverse of
    the importance ratio (the published direction). k2 and k3 take one upper bound.

    Raises:
        ValueError: an unknown or repeated name, or thresholds that do not fit the names.
    """
    if names is None:
        if thresholds is not None:
            raise ValueError(f"rollout_rs_threshold={thresholds} has no effect without rollout_rs: set that, too.")
        return ()
    given: dict[str, object] = {"rollout_rs": names, "rollout_rs_threshold": thresholds}
    for key, value in given.items():
        if isinstance(value, list | tuple):
            text = ",".join(map(str, value))
            raise ValueError(f"{key}={value!r} is a {type(value).__name__}: write {text!r}, one text.")
    options = [name.strip() for name in names.split(",")]
    unknown = [name for name in options if name not in REJECTIONS]
    if unknown or len(set(options)) != len(options):
        raise ValueError(
            f"rollout_rs={names!r} names {', '.join(map(repr, unknown)) or 'a criterion twice'}. "
            f"It is a comma list of different ones of: {', '.join(REJECTIONS)}."
        )
    if thresholds is None:
        raise ValueError(
            f"rollout_rs={names!r} needs rollout_rs_threshold: one bound for each criterion, or one for all."
        )
    bounds = [bound.strip() for bound in str(thresholds).split(",")]
    if len(bounds) == 1:
        bounds *= len(options)
    if len(bounds) != len(options):
        raise ValueError(
            f"rollout_rs={names!r} has {len(options)} criteria but rollout_rs_threshold={thresholds!r} has "
            f"{len(bounds)} bounds: give one for each, or one for all."
        )
    return tuple(map(_rejection, options, bounds))


def _rejection(name: str, bound: str) -> Rejection:
    numbers = _numbers(f"rollout_rs_threshold of {name}", bound)
    if not name.endswith("k1"):
        if len(numbers) != 1:
            raise ValueError(
                f"rollout_rs_threshold={bound!r} of {name} has two bounds: k2 and k3 are never negative and take one "
                "upper bound."
            )
        return Rejection(name, -math.inf, numbers[0])
    lower, upper = numbers if len(numbers) == 2 else (1.0 / numbers[0], numbers[0])
    if lower > upper:
        raise ValueError(
            f"rollout_rs_threshold={bound!r} of {name} would reject everything: a single x means [1/x, x], so x is at "
            "least 1."
        )
    return Rejection(name, math.log(lower), math.log(upper))


def _numbers(key: str, threshold: object) -> list[float]:
    try:
        numbers = [float(part) for part in str(threshold).split("_")]
    except ValueError:
        numbers = []
    usable = not isinstance(threshold, bool) and all(in_range(number, 0.0, above_minimum=True) for number in numbers)
    if not 1 <= len(numbers) <= 2 or not usable:
        raise ValueError(
            f"{key}={str(threshold)!r} is neither a number above 0 (from 1e-30 to 1e30) nor a pair of them, lo_hi."
        )
    if numbers[0] > numbers[-1]:
        raise ValueError(f"{key}={str(threshold)!r} has its lower bound above its upper bound.")
    return numbers


#: Keys below `algorithm.rollout_correction`; a key that a preset leaves out keeps its default.
Preset = Mapping[str, str | float | bool]

_GEO: Preset = {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.999_1.001"}
_K3: Preset = {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": 0.01}
_TOKEN: Preset = {"rollout_is": "token", "rollout_is_threshold": 2.0}
_SEQUENCE: Preset = {"rollout_is": "sequence", "rollout_is_threshold": 2.0}
_ICEPOP: Preset = {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"}
_PPO_CLIP: Preset = {"bypass_mode": True, "loss_type": "ppo_clip"}
_REINFORCE: Preset = {"bypass_mode": True, "loss_type": "reinforce"}

#: The published presets as the keys of `algorithm.rollout_correction` that they set.
PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "disabled": {},
        "decoupled_token_is": _TOKEN,
        "decoupled_seq_is": _SEQUENCE,
        "decoupled_token_icepop": _ICEPOP,
        "decoupled_seq_is_rs": {**_SEQUENCE, "rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.5_2.0"},
        "decoupled_geo_rs": _GEO,
        "decoupled_geo_rs_seq_tis": {**_SEQUENCE, **_GEO},
        "decoupled_geo_rs_token_tis": {**_TOKEN, **_GEO},
        "decoupled_k3_rs": _K3,
        "decoupled_k3_rs_seq_tis": {**_SEQUENCE, **_K3},
        "decoupled_k3_rs_token_tis": {**_TOKEN, **_K3},
        "bypass_ppo_clip": _PPO_CLIP,
        "bypass_ppo_clip_geo_rs": {**_PPO_CLIP, **_GEO},
        "bypass_ppo_clip_k3_rs": {**_PPO_CLIP, **_K3},
        "bypass_pg_is": {**_REINFORCE, **_SEQUENCE},
        "bypass_pg_token_icepop": {**_REINFORCE, **_ICEPOP},
        "bypass_pg_geo_rs": {**_REINFORCE, **_GEO},
        "bypass_pg_geo_rs_seq_tis": {**_REINFORCE, **_SEQUENCE, **_GEO},
        "bypass_pg_geo_rs_token_tis": {**_REINFORCE, **_TOKEN, **_GEO},
    }
)
