"""The configuration of a run: its keys, how a command line becomes one, and every reason why it cannot."""

from verl_cli.config.dump import dump, dump_commented
from verl_cli.config.errors import ConfigError
from verl_cli.config.explain import Explanation, explain, key_table
from verl_cli.config.keys import LiveKey, flat_keys
from verl_cli.config.resolve import PRESETS, Resolved, resolve
from verl_cli.config.schema import (
    ActorConfig,
    ActorRolloutRefConfig,
    AlgorithmConfig,
    CriticConfig,
    CustomRewardConfig,
    FilterGroupsConfig,
    KlCtrlConfig,
    PolicyLossConfig,
    RefConfig,
    RewardConfig,
    RewardModelConfig,
    RolloutCorrectionConfig,
    RunConfig,
    TrainerConfig,
)
from verl_cli.config.sources import text_override

__all__ = [
    "PRESETS",
    "ActorConfig",
    "ActorRolloutRefConfig",
    "AlgorithmConfig",
    "ConfigError",
    "CriticConfig",
    "CustomRewardConfig",
    "Explanation",
    "FilterGroupsConfig",
    "KlCtrlConfig",
    "LiveKey",
    "PolicyLossConfig",
    "RefConfig",
    "Resolved",
    "RewardConfig",
    "RewardModelConfig",
    "RolloutCorrectionConfig",
    "RunConfig",
    "TrainerConfig",
    "dump",
    "dump_commented",
    "explain",
    "flat_keys",
    "key_table",
    "resolve",
    "text_override",
]
