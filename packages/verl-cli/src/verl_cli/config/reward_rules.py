"""Keys of the reward without effect in a particular run."""

from collections.abc import Iterator

from verl_cli.config.reasons import Reason
from verl_cli.config.rule import Rule

FUNCTION = "reward.custom_reward_function"
MODEL = "reward.reward_model"
OVERLONG = "reward.reward_kwargs"
MANAGER = "reward.reward_manager.name"
ENABLED = f"{OVERLONG}.overlong_buffer_cfg.enable"

_BY_MODEL = "The rewards of this run come from a reward model"


def reward_rules() -> Iterator[Rule]:
    """All of them."""
    yield Rule(
        f"{FUNCTION}.name",
        (f"{FUNCTION}.path",),
        lambda path: path is None,
        Reason("No reward function of your own is named.", f"Set {FUNCTION}.path to the file that holds it."),
    )
    yield Rule(
        f"{FUNCTION}.reward_kwargs",
        (f"{MODEL}.enable",),
        lambda enable: enable,
        Reason(f"{_BY_MODEL}, which is not a function.", f"Set {MODEL}.kwargs, or leave it out."),
    )
    for name in ("path", "model_path", "kwargs"):
        yield Rule(
            f"{MODEL}.{name}",
            (f"{MODEL}.enable",),
            lambda enable: not enable,
            Reason(
                f"No reward model is used ({MODEL}.enable=false).",
                f"Leave {MODEL}.enable out and set {MODEL}.path or {MODEL}.model_path, or leave this out.",
            ),
        )
    for name in ("num_workers", "cpu_seconds", "wall_seconds", "memory_mb"):
        yield Rule(
            f"reward.{name}",
            (f"{MODEL}.enable",),
            lambda enable: enable,
            Reason(f"{_BY_MODEL}, which runs in the trainer's process.", "Leave it out."),
        )
    for name in ("cpu_seconds", "wall_seconds", "memory_mb"):
        yield Rule(
            f"reward.{name}",
            ("reward.num_workers",),
            lambda workers: workers == 0,
            Reason(
                "Rewards are computed in the trainer's process (reward.num_workers=0), which has no such limit.",
                "Set reward.num_workers to 1 or more, or leave this out.",
            ),
        )
    yield Rule(
        OVERLONG,
        (MANAGER,),
        lambda name: name != "dapo",
        Reason(
            f"Only {MANAGER}=dapo adds the penalty for overlong responses.", f"Set {MANAGER}=dapo, or leave it out."
        ),
    )
    yield Rule(
        OVERLONG,
        (ENABLED,),
        lambda enable: not enable,
        Reason(f"Overlong responses are not punished ({ENABLED}=false).", f"Set {ENABLED}=true, or leave it out."),
        but=frozenset({ENABLED}),
    )
