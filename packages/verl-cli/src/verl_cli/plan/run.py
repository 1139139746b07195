"""`verl-cli plan`, from its arguments to its exit code."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from verl_cli.plan.tokenizing import TransformersProcess

if TYPE_CHECKING:
    from verl_cli.plan.plan import Plan


def run_plan(
    overrides: Sequence[str],
    *,
    preset: str = "ppo",
    config_file: Path | None = None,
    allow_unused: bool = False,
    as_json: bool = False,
) -> int:
    """Print the plan of a run; 0 if nothing is wrong with it, else 1."""
    with TransformersProcess() as transformers:  # first of all: it imports while this process does
        plan = _plan(overrides, preset, config_file, allow_unused, transformers)
    if as_json:
        print(json.dumps(plan.as_dict(), indent=2, ensure_ascii=False, default=str))
    else:
        from rich.console import Console

        from verl_cli.plan.screen import render

        Console(highlight=False).print(render(plan), markup=False)
    return 0 if plan.ok else 1


def _plan(
    overrides: Sequence[str],
    preset: str,
    config_file: Path | None,
    allow_unused: bool,
    transformers: TransformersProcess,
) -> "Plan":
    from verl_cli.config import ConfigError, resolve
    from verl_cli.plan.make import plan_of
    from verl_cli.plan.partial import understood

    try:
        resolved = resolve(overrides, preset=preset, config_file=config_file, allow_unused=allow_unused)
    except ConfigError as error:
        config = understood(overrides, preset=preset, config_file=config_file)
        advice = [error.advice] if error.advice else []
        return plan_of(config, transformers, problems=error.problems, notices=advice)
    return plan_of(resolved.config, transformers, notices=resolved.notices)
