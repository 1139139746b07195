"""`verl-cli quickstart`."""

from pathlib import Path
from typing import Annotated

import typer

from verl_cli.commands.guard import guarded


def quickstart(
    run_dir: Annotated[
        Path | None, typer.Option(help="Where everything goes; a new folder under runs/ if not given.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Seeds the data, the model and the sampling.")] = 1,
    constant_reward: Annotated[
        bool, typer.Option("--constant-reward", help="Give every answer the same reward: nothing should be learnt.")
    ] = False,
) -> None:
    """See PPO teach a tiny model two-digit addition, on a CPU, in one to two minutes."""

    def run() -> None:
        from verl_cli.quickstart.run import run_quickstart

        run_quickstart(run_dir, seed=seed, constant_reward=constant_reward)

    guarded(run)
