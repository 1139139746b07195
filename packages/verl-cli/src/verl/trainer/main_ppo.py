"""`python -m verl.trainer.main_ppo key=value ...`: PPO and GRPO with the command lines of published tutorials.

Keys that mean nothing in this run are reported, one line each, instead of refused as `verl-cli train` does.
"""

import sys

from verl_cli.commands.train import run_training


def main() -> None:
    """Train with the overrides of the command line."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(__doc__.strip(), "\n\n`verl-cli train --help` says more.")
        return
    run_training(sys.argv[1:], allow_unused=True)


if __name__ == "__main__":
    main()
