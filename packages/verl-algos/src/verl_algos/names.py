"""The published names that functions of this package are called by.

Nothing here imports torch, so a configuration can be checked, and a wrong name refused, before torch is loaded. Those
of advantage estimators and policy losses stand with what each takes: `verl_algos.estimators.ESTIMATORS` and
`verl_algos.loss_options.POLICY_LOSS_OPTIONS`.
"""

from typing import Literal, get_args

__all__ = ["MODES", "PENALTIES", "STRAIGHT_THROUGH", "Mode", "Penalty", "StraightThrough"]

#: Loss aggregation modes, see `verl_algos.aggregation.aggregate`.
Mode = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
MODES: tuple[Mode, ...] = get_args(Mode)

#: KL estimators, see `verl_algos.kl.penalty`.
Penalty = Literal["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"]
PENALTIES: tuple[Penalty, ...] = get_args(Penalty)

#: The same with the gradient of k2.
StraightThrough = Literal["kl+", "k1+", "abs+", "mse+", "k2+", "low_var_kl+", "k3+"]
STRAIGHT_THROUGH: tuple[StraightThrough, ...] = get_args(StraightThrough)
