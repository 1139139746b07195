"""Failures that are the user's to mend, told in one paragraph."""


class UserError(Exception):
    """Something outside the program is wrong: the message says what happened, to what, and what to do."""


class Interrupted(UserError):
    """The user stopped the run."""
