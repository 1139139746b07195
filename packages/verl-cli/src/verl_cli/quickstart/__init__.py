"""PPO on a CPU in two minutes: data, model, warm-up, training and a report, all made from nothing."""

from verl_cli.quickstart.run import run_quickstart

__all__ = ["run_quickstart"]
