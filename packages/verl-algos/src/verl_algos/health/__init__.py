"""Is a run healthy? Numbers of one step, and monitors that say when a training goes wrong, why, and what to try first.

The numbers are pure functions over numpy arrays; where there is nothing to compute one from they return None, never a 0
or NaN that would look like a measurement. `HealthMonitor` takes a step's data, returns its metrics under `health/` and
the warnings that became due. Nothing here imports torch until a monitor is made.
"""

from verl_algos.health.monitor import HealthMonitor, HealthWarning
from verl_algos.health.responses import (
    duplicate_responses,
    equal_groups,
    most_common_response,
    most_common_reward,
    reward_length_correlation,
    share_at,
    zero_variance_groups,
)
from verl_algos.health.series import amplitude, sign_changes, spike
from verl_algos.health.thresholds import Thresholds

__all__ = [
    "HealthMonitor",
    "HealthWarning",
    "Thresholds",
    "amplitude",
    "duplicate_responses",
    "equal_groups",
    "most_common_response",
    "most_common_reward",
    "reward_length_correlation",
    "share_at",
    "sign_changes",
    "spike",
    "zero_variance_groups",
]
