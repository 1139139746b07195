"""Failures that are the user's to mend, told in one paragraph. `verl_cli.failures` tells those of everything else."""


class UserError(Exception):
    """Something outside the program is wrong: the message says what happened, to what, and what to do."""


class InterruptedRunError(UserError):
    """The user, or the system on its way down, stopped the run."""
