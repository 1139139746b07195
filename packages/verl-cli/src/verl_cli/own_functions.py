"""The advantage estimator and the policy loss that a user brings: whether they can be called at all."""

from verl_algos.import_path import is_import_path, load_function
from verl_algos.policy_losses import custom

from verl_cli.config import RunConfig
from verl_cli.errors import UserError
from verl_cli.estimation import Estimation
from verl_cli.losses import ActorLoss


def check_own_functions(config: RunConfig) -> None:
    """Load them and compare what they take with what this run has and is told.

    Raises:
        UserError: one cannot be loaded, or cannot be called so.
    """
    Estimation.of(config)
    if is_import_path(config.policy_loss):
        try:
            custom.check(load_function(config.policy_loss, "policy loss"), ActorLoss.of(config).options)
        except ValueError as error:
            raise UserError(f"actor_rollout_ref.actor.policy_loss: {error}") from error
