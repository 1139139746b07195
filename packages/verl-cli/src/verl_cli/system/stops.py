"""The signal that asks this process to end, for code that must not go on although something swallowed it.

A reward function or model of the user's may run in this process and catch whatever is raised in it, `Stopped` included:
what it returned then is no reward.
"""

_noted: list[int] = []


class Stopped(KeyboardInterrupt):
    """A signal asked the process to end: Ctrl-C, or SIGTERM, which `kill` and Slurm (at its time limit) send."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def note(number: int) -> None:
    """Remember a signal that has come."""
    _noted.append(number)


def forget() -> None:
    """Begin anew: no signal has come."""
    _noted.clear()


def raise_if_noted() -> None:
    """Raise `Stopped` if a signal has come."""
    if _noted:
        raise Stopped(_noted[0])
