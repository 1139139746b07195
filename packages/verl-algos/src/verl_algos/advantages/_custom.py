"""An estimator of the user's own, by import path or as a function."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verl_algos._layout import Layout
from verl_algos.advantages._blocks import refuse
from verl_algos.advantages._groups import group_numbers
from verl_algos.estimators import INPUTS, SHARED_OPTIONS, EstimatorSpec

#: What functions written for the original call these arguments.
_PUBLISHED = {
    "token_level_rewards": "token_rewards",
    "response_mask": "mask",
    "index": "group",
    "reward_baselines": "baseline",
    "old_log_probs": "old_logprobs",
    "rollout_is_weights": "rollout_weights",
    "norm_adv_by_std_in_grpo": "norm_by_std",
    "config": "by the name of each option",
}

_ALWAYS_GIVEN = frozenset({"mask", "cu_seqlens", *SHARED_OPTIONS})


@dataclass(frozen=True)
class CustomEstimator:
    """A function that is called with the inputs and options that it names."""

    name: str
    function: Callable[..., Any]
    spec: EstimatorSpec
    takes_any: bool
    """It has ``**kwargs``: every input and option that is given goes to it."""

    @classmethod
    def of(cls, name: str, function: Callable[..., Any]) -> "CustomEstimator":
        """Read what `function` needs off its signature: what it names without a default.

        Raises:
            ValueError: it cannot be called with keywords.
        """
        parameters = tuple(inspect.signature(function).parameters.values())
        for parameter in parameters:
            if parameter.kind is parameter.POSITIONAL_ONLY or parameter.kind is parameter.VAR_POSITIONAL:
                raise ValueError(
                    f"The advantage estimator {name} takes {parameter} by position, but it is called with keywords: "
                    f"name what it needs among {', '.join([*INPUTS, 'mask', 'cu_seqlens'])} and options of its own."
                )
            if parameter.name in _PUBLISHED:
                raise ValueError(
                    f"The advantage estimator {name} takes {parameter.name}, which is called "
                    f"{_PUBLISHED[parameter.name]} here: rename the parameter. Columns are (B, T), or packed (T,) with "
                    "cu_seqlens, and group holds integers."
                )
        named = [parameter for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD]
        needed = [p.name for p in named if p.default is p.empty and p.name not in _ALWAYS_GIVEN]
        own = [p.name for p in named if p.name not in INPUTS and p.name not in ("mask", "cu_seqlens")]
        spec = EstimatorSpec(
            required=tuple(dict.fromkeys(["token_rewards", *needed])),
            optional=tuple(p.name for p in named if p.name in INPUTS and p.name not in needed),
            options=tuple(own),
        )
        return cls(name, function, spec, len(named) < len(parameters))

    def __call__(self, *, token_rewards: Tensor, **inputs: Any) -> tuple[Tensor, Tensor]:
        """Call the function; see `advantages.compute`.

        Tokens that the mask excludes are 0 in every token column that the function sees and in the results. Sequences
        that were not scored (NaN among their rewards) reach the function as they are and are 0 in the results.
        """
        layout = Layout.of(inputs.get("mask"), inputs.get("cu_seqlens"), token_rewards=token_rewards)
        shape = token_rewards.shape

        def seen(value: Any) -> Any:
            return layout.select(value) if isinstance(value, Tensor) and value.shape == shape else value

        given = {name: seen(value) for name, value in {"token_rewards": token_rewards, **inputs}.items()}
        given |= {"mask": layout.mask, "cu_seqlens": layout.cu_seqlens}
        if "group" in given:
            given["group"] = group_numbers(given["group"], layout.counts())
        with torch.no_grad():
            result = self.function(**self._chosen(given))
        if not (isinstance(result, tuple) and len(result) == 2 and all(isinstance(part, Tensor) for part in result)):
            raise ValueError(
                f"The advantage estimator {self.name} returned {type(result).__name__}: it returns the pair of tensors "
                "(advantages, returns)."
            )
        scored = layout.spread(~layout.sums(token_rewards).isnan()).bool()
        advantages, returns = (self._checked(part, layout, scored, shape) for part in result)
        return advantages, returns if returns is not advantages else returns.clone()

    def _chosen(self, given: Mapping[str, Any]) -> dict[str, Any]:
        if self.takes_any:
            return dict(given)
        parameters = inspect.signature(self.function).parameters
        return {name: value for name, value in given.items() if name in parameters}

    def _checked(self, part: Tensor, layout: Layout, scored: Tensor, shape: torch.Size) -> Tensor:
        if part.shape != shape:
            raise ValueError(
                f"The advantage estimator {self.name} returned a tensor of shape {tuple(part.shape)}, but "
                f"token_rewards has {tuple(shape)}: it returns one number per token."
            )
        part = torch.where(scored, part, 0.0)
        valid = layout.compact(part)
        remedy = "repair the function, or the rewards and values that it was given."
        refuse(f"advantages or returns of {self.name}", valid, ~valid.isfinite(), remedy)
        return part
