"""How many processes score responses, and what is to be said of a number that the machine cannot keep busy."""

from verl_cli.config import RewardConfig
from verl_cli.system.resources import cpu_share

#: Workers where nobody says how many: one for each core, and no more than the published default.
_MOST_WORKERS = 8
#: Workers for each core from which on it is worth a word: functions that wait for a server may well want some more.
_MANY_PER_CORE = 4


def reward_workers(config: RewardConfig) -> int:
    """The processes that score; 0 is the trainer's own."""
    return min(cpu_share().cores, _MOST_WORKERS) if config.num_workers is None else config.num_workers


def workers_warning(config: RewardConfig) -> str | None:
    """What to know of more workers than this process has cores for; None where there is nothing to say."""
    workers, cores = config.num_workers, cpu_share().cores
    if config.reward_model.enable or workers is None or workers <= max(_MOST_WORKERS, _MANY_PER_CORE * cores):
        return None
    memory = "without a limit" if config.memory_mb is None else f"up to reward.memory_mb={config.memory_mb} MiB"
    return (
        f"reward.num_workers={workers} processes share {cores} core{'s' * (cores > 1)} that this program may use: "
        f"where rewards compute, they only take turns, and each holds memory ({memory}). Leave it out for one for each "
        "core. For rewards that wait for a server, an async function has 64 calls in flight in a single worker."
    )
