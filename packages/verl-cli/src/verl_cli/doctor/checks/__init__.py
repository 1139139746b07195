"""Judging: pure functions of the facts, one module a subject, in the order in which they are shown."""

from collections.abc import Iterator

from verl_cli.doctor.checks.gpus import judge_gpus
from verl_cli.doctor.checks.host import judge_host
from verl_cli.doctor.checks.network import judge_network
from verl_cli.doctor.checks.packages import judge_packages
from verl_cli.doctor.checks.ray_sessions import judge_ray
from verl_cli.doctor.checks.services import judge_services
from verl_cli.doctor.checks.storage import judge_storage
from verl_cli.doctor.facts import Facts
from verl_cli.doctor.finding import Finding

__all__ = ["judge"]


def judge(facts: Facts) -> list[Finding]:
    """Every finding; each name occurs once."""
    return list(_judge(facts))


def _judge(facts: Facts) -> Iterator[Finding]:
    installed = facts.packages.distributions
    yield from judge_packages(facts.packages)
    yield from judge_gpus(facts.gpus, facts.packages.torch, facts.environ, facts.deep)
    yield from judge_host(facts.host, facts.environ)
    yield from judge_network(facts.network, facts.host.locked_memory, facts.environ)
    yield from judge_ray(facts.ray, installed="ray" in installed)
    yield from judge_storage(facts.storage)
    yield from judge_services(facts.environ, wandb_installed="wandb" in installed, wandb_login=facts.wandb_login)
