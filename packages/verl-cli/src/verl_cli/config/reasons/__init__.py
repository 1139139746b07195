"""Why a published key has no effect here and what to do instead, by key or by the prefix of a whole section."""

from collections.abc import Mapping

from verl_cli.config.reasons.reason import DROP, Reason
from verl_cli.config.reasons.rollout import ROLLOUT
from verl_cli.config.reasons.run import RUN
from verl_cli.config.reasons.training import MEGATRON_OPTIM, OPTIM_SECTIONS, TRAINING

__all__ = ["FIXED_CLASSES", "MEGATRON_OPTIM", "OPTIM_SECTIONS", "REASONS", "Reason"]

#: For the `_target_` of every section.
FIXED_CLASSES = Reason("Every section is read by one fixed class of this program.", DROP)

REASONS: Mapping[str, Reason] = {**RUN, **TRAINING, **ROLLOUT}
