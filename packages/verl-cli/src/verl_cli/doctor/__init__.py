"""What `verl-cli doctor` does: look at this machine (facts), then judge what was seen (checks)."""

from verl_cli.doctor.checks import judge
from verl_cli.doctor.facts import Facts, gather_facts
from verl_cli.doctor.finding import Finding, State

__all__ = ["Facts", "Finding", "State", "gather_facts", "judge"]
