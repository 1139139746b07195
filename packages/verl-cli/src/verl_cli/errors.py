"""Failures that are the user's to mend, told in one paragraph."""


class UserError(Exception):
    """Something outside the program is wrong: the message says what happened, to what, and what to do."""


class InterruptedRunError(UserError):
    """The user stopped the run."""


def known_failures() -> tuple[type[Exception], ...]:
    """The exceptions whose message alone tells the user what to do; any other keeps its traceback."""
    from verl_algos.rewards import RewardError, RewardLoadError
    from verl_data import DataError
    from verl_engine import EngineError
    from verl_rollout import RolloutError

    return (UserError, DataError, EngineError, RolloutError, RewardError, RewardLoadError, OSError)
