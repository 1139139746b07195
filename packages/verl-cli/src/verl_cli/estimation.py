"""The advantage estimator of a run: what it needs, whether the run can supply it, and the call."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from verl_algos import advantages
from verl_algos.estimators import INPUTS, EstimatorSpec
from verl_algos.import_path import is_import_path
from verl_data import PackedBatch

from verl_cli.columns import scored_tokens, tensors
from verl_cli.config import AlgorithmConfig, RunConfig
from verl_cli.config.algorithm_rules import ESTIMATOR, ESTIMATOR_KWARGS, ESTIMATOR_OPTION_KEYS
from verl_cli.errors import UserError
from verl_cli.failures.own_code import own_failure
from verl_cli.reported import column_name

#: What makes a run supply an input that it does not always have.
_REMEDIES: Mapping[str, str] = {
    "values": "set critic.enable=true",
    "reward_components": "name the numbers that the reward reports in algorithm.gdpo_reward_keys",
    "rollout_weights": "set algorithm.rollout_correction.rollout_is, without bypass_mode",
}


@dataclass(frozen=True)
class Estimation:
    """An advantage estimator that this run can supply."""

    config: AlgorithmConfig
    spec: EstimatorSpec

    @classmethod
    def of(cls, config: RunConfig) -> "Estimation":
        """Look the estimator up, load it if it is the user's own, and compare what it needs with what the run has.

        Raises:
            UserError: it cannot be loaded, needs what this run does not have, or takes no option that is set for it.
        """
        algorithm = config.algorithm
        try:
            spec = advantages.describe(algorithm.adv_estimator)
        except ValueError as error:
            raise UserError(f"{ESTIMATOR}: {error}") from error
        estimation = cls(algorithm, spec)
        if is_import_path(algorithm.adv_estimator):
            estimation._check_inputs(config)
            estimation._check_options()
        return estimation

    def needs(self, name: str) -> bool:
        """Whether the estimator cannot do without an input."""
        return name in self.spec.required

    def compute(self, batch: PackedBatch) -> dict[str, torch.Tensor]:
        """The token columns advantages and returns (T,) of a batch that holds what the estimator needs."""
        algorithm, names = self.config, ("token_rewards", "group", "values", "baseline", "old_logprobs")
        columns = tensors(batch, *names, "sum_pi_squared", "rollout_weights", mask=scored_tokens(batch))
        given: dict[str, Any] = {**columns, **algorithm.adv_estimator_kwargs}
        if keys := algorithm.gdpo_reward_keys:
            given["reward_components"] = {key: torch.tensor(batch[column_name(key)]) for key in keys}
            if weights := algorithm.gdpo_reward_weights:
                given["reward_weights"] = dict(zip(keys, weights, strict=True))
        try:
            computed, returns = advantages.compute(
                algorithm.adv_estimator,
                gamma=algorithm.gamma,
                lam=algorithm.lam,
                norm_by_std=algorithm.norm_adv_by_std_in_grpo,
                **given,
            )
        except Exception as error:
            if is_import_path(algorithm.adv_estimator):  # whose mistakes are the user's to mend
                raise own_failure(f"{ESTIMATOR}={algorithm.adv_estimator}", error) from error
            raise
        return {"advantages": computed, "returns": returns}

    def _check_inputs(self, config: RunConfig) -> None:
        correction = config.algorithm.rollout_correction
        absent = {
            "values": not config.critic.enable,
            "reward_components": not config.algorithm.gdpo_reward_keys,
            "rollout_weights": correction.rollout_is is None or correction.bypass_mode,
        }
        given = {*self.config.adv_estimator_kwargs, *INPUTS}
        if missing := [name for name in self.spec.required if name not in given or absent.get(name)]:
            listed = "; ".join(
                f"{name} ({INPUTS[name]}): {_REMEDIES[name]}"
                if name in INPUTS
                else f"{name}: give it in {ESTIMATOR_KWARGS}"
                for name in missing
            )
            raise UserError(
                f"{ESTIMATOR}={self.config.adv_estimator} needs what this run does not have: {listed}. Or let the "
                "function do without."
            )
        if config.critic.enable and "values" not in (*self.spec.required, *self.spec.optional):
            raise UserError(
                f"critic.enable=true, but {ESTIMATOR}={self.config.adv_estimator} takes no values: the critic would "
                "be trained for nothing. Leave it out, or let the function take values."
            )

    def _check_options(self) -> None:
        """A function of one's own says by its signature what it takes; what is set and not taken would be silent."""
        named = self.spec.options
        for option, key in ESTIMATOR_OPTION_KEYS.items():
            field = key.removeprefix("algorithm.")
            if (value := getattr(self.config, field)) != getattr(AlgorithmConfig(), field) and option not in named:
                raise UserError(
                    f"{key}={value} has no effect: {ESTIMATOR}={self.config.adv_estimator} has no parameter {option}. "
                    "Leave it out, or give the function one."
                )
        own = [name for name in named if name not in ESTIMATOR_OPTION_KEYS]
        if unknown := [name for name in self.config.adv_estimator_kwargs if name not in own]:
            raise UserError(
                f"{ESTIMATOR_KWARGS} has {', '.join(unknown)}, which {ESTIMATOR}={self.config.adv_estimator} has "
                f"no parameter for. It takes {', '.join(own) or 'none'}."
            )
