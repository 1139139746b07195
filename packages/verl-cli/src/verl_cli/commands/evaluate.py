"""`verl-cli eval`."""

from pathlib import Path
from typing import Annotated

import typer

from verl_cli.commands.guard import guarded
from verl_cli.commands.options import InferenceOverrides, MaxTokens, Model, Repeats, Temperature


def evaluate(
    model: Model,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Parquet or JSONL rows to score; a quoted glob for more.")
    ],
    overrides: InferenceOverrides = None,
    n: Repeats = None,
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    reward: Annotated[
        str | None, typer.Option("--reward", metavar="FILE.py", help="A Python file with compute_score.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="A new folder for eval.json and val_samples.jsonl."),
    ] = None,
) -> None:
    """Score a model's responses: exactly what validation in training computes.

    Without options, one response per prompt is taken at temperature 0. The options stand for the keys
    actor_rollout_ref.rollout.val_kwargs.n and .temperature, data.max_response_length and
    reward.custom_reward_function.path. Without a reward function, rows are scored by the rule of their data_source.
    """

    def run() -> None:
        from verl_cli.evaluation.evaluate import evaluate
        from verl_cli.evaluation.inference import Option, sampling_options

        own_reward = Option("--reward", "reward.custom_reward_function.path", reward)
        evaluate(model, file, overrides or [], [*sampling_options(n, temperature, max_tokens), own_reward], out)

    guarded(run)
