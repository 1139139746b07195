"""What a rule of applicability is."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from verl_cli.config.reasons import Reason

Values = Mapping[str, Any]

ACTOR = "actor_rollout_ref.actor"
REF = "actor_rollout_ref.ref"
ROLLOUT = "actor_rollout_ref.rollout"


class Rule(NamedTuple):
    """When a key, or a whole section, has no effect."""

    prefix: str
    reads: tuple[str, ...]
    """The keys that decide it."""
    applies: Callable[..., bool]
    """Called with the values of `reads`: whether the key has no effect."""
    reason: Reason
    but: frozenset[str] = frozenset()
    """Keys below the prefix that the rule does not speak about."""
