"""What each advantage estimator needs and takes, by name; nothing here imports torch.

A trainer asks this table before a run starts, and refuses a combination that cannot supply an estimator's inputs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from verl_algos.import_path import hint

__all__ = ["ALIASES", "ESTIMATORS", "INPUTS", "OPTIONS", "SHARED_OPTIONS", "EstimatorSpec", "canonical"]


@dataclass(frozen=True)
class EstimatorSpec:
    """The inputs and options of one advantage estimator."""

    required: tuple[str, ...]
    """Inputs (see `INPUTS`) that it cannot do without."""
    optional: tuple[str, ...] = ()
    """Inputs that it uses where they are given; mask and cu_seqlens are always taken."""
    options: tuple[str, ...] = ()
    """See `OPTIONS`."""
    least_group_size: int = 1
    """2 where it compares the sequences of one prompt: with one sequence per prompt it learns nothing."""


#: What an estimator can be given, with its shape: (B, T) or packed (T,) per token, (N,) per sequence.
INPUTS: Mapping[str, str] = MappingProxyType(
    {
        "token_rewards": "per token, the reward (less the KL penalty, if that is in the reward)",
        "group": "integer (N,), or N whole numbers or strings: the prompt that each sequence belongs to",
        "values": "per token, the critic's value of the state in which the token was chosen",
        "baseline": "(N,), the reward of the greedy response to each sequence's prompt",
        "reward_components": "a mapping of names to rewards (N,)",
        "old_logprobs": "per token, the log-prob under the policy that sampled it",
        "sum_pi_squared": "per token, the sum of squared probabilities over the vocabulary under that policy",
        "rollout_weights": "per token, the importance weight between training and rollout policy",
    }
)

#: What can be set, and what it does.
OPTIONS: Mapping[str, str] = MappingProxyType(
    {
        "gamma": "discount per sampled token",
        "lam": "weight of longer returns",
        "whiten": "bring the advantages to mean 0 and variance 1 over the valid tokens of the call",
        "norm_by_std": "divide by the standard deviation of the group",
        "compat": "treat the only scored sequence of a group as the original does, instead of giving it 0",
        "reward_weights": "a mapping of component names to weights, 1 where not given",
    }
)

#: A trainer may pass these to every estimator, as it has them from its configuration; each reads those it declares.
SHARED_OPTIONS = ("gamma", "lam", "whiten", "norm_by_std")


def _of_group(*options: str) -> EstimatorSpec:
    return EstimatorSpec(required=("token_rewards", "group"), options=(*options, "compat"), least_group_size=2)


_TOKEN_BASELINE = EstimatorSpec(
    required=("token_rewards", "group", "old_logprobs", "sum_pi_squared"),
    optional=("rollout_weights",),
    options=("compat",),
    least_group_size=2,
)

#: By published name.
ESTIMATORS: Mapping[str, EstimatorSpec] = MappingProxyType(
    {
        "gae": EstimatorSpec(required=("token_rewards", "values"), options=("gamma", "lam", "whiten")),
        "grpo": _of_group("norm_by_std"),
        "grpo_passk": _of_group("norm_by_std"),
        "rloo": _of_group(),
        "reinforce_plus_plus": EstimatorSpec(required=("token_rewards",), options=("gamma", "whiten")),
        "reinforce_plus_plus_baseline": _of_group("whiten"),
        "remax": EstimatorSpec(required=("token_rewards", "baseline")),
        "opo": _of_group(),
        "gpg": _of_group(),
        "gdpo": EstimatorSpec(
            required=("token_rewards", "group", "reward_components"),
            options=("reward_weights", "norm_by_std", "whiten", "compat"),
            least_group_size=2,
        ),
        "optimal_token_baseline": _TOKEN_BASELINE,
        "tir_optimal_token_baseline": _TOKEN_BASELINE,
    }
)

#: Other spellings, in lower case: the published twins, which were second implementations of one formula, and papers'.
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "grpo_vectorized": "grpo",
        "rloo_vectorized": "rloo",
        "reinforce++": "reinforce_plus_plus",
        "reinforce++_baseline": "reinforce_plus_plus_baseline",
        "pass@k": "grpo_passk",
        "grpo_pass@k": "grpo_passk",
        "pass_at_k": "grpo_passk",
        "otb": "optimal_token_baseline",
        "tir_otb": "tir_optimal_token_baseline",
    }
)

_DR_GRPO = frozenset({"dr_grpo", "dr.grpo", "dr. grpo", "dr-grpo", "drgrpo"})


def canonical(name: str) -> str:
    """The published name of the estimator called `name`, which may be an alias, in any case ("GRPO", "REINFORCE++").

    Raises:
        ValueError: there is none; the nearest is named.
    """
    lower = name.lower()
    spelt = lower.replace("-", "_").replace(" ", "_")
    found = ALIASES.get(spelt, spelt)
    if found in ESTIMATORS:
        return found
    told = " Dr. GRPO is grpo with norm_by_std=False." if lower in _DR_GRPO else hint(lower, [*ESTIMATORS, *ALIASES])
    raise ValueError(
        f"Unknown advantage estimator {name!r}. Known: {', '.join(sorted(ESTIMATORS))}; or a function of your own as "
        f"package.module:function or file.py:function.{told}"
    )
