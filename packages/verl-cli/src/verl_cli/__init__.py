"""Reinforcement-learning post-training of LLMs from the command line."""

from importlib.metadata import version

__version__ = version("verl-cli")
