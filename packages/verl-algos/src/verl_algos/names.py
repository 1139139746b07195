"""The published names that functions of this package are called by.

Nothing here imports torch, so a configuration can be checked, and a wrong name refused, before torch is loaded.
"""

from typing import Literal, get_args

__all__ = ["ESTIMATORS", "MODES", "PENALTIES", "POLICY_LOSSES", "Estimator", "Mode", "Penalty", "PolicyLoss"]

#: Advantage estimators, see `verl_algos.advantages.compute`.
Estimator = Literal["gae", "grpo"]
ESTIMATORS: tuple[Estimator, ...] = get_args(Estimator)

#: Policy losses, see `verl_algos.policy_losses.compute`.
PolicyLoss = Literal["vanilla"]
POLICY_LOSSES: tuple[PolicyLoss, ...] = get_args(PolicyLoss)

#: Loss aggregation modes, see `verl_algos.aggregation.aggregate`.
Mode = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
MODES: tuple[Mode, ...] = get_args(Mode)

#: KL estimators, see `verl_algos.kl.penalty`.
Penalty = Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"]
PENALTIES: tuple[Penalty, ...] = get_args(Penalty)
