"""`verl-cli generate`."""

from pathlib import Path
from typing import Annotated

import typer

from verl_cli.commands.guard import guarded
from verl_cli.commands.options import InferenceOverrides, MaxTokens, Model, Repeats, Temperature


def generate(
    model: Model,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Parquet or JSONL rows with a prompt; a quoted glob for more.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT.parquet", help="Where the rows with their responses go.")],
    overrides: InferenceOverrides = None,
    n: Repeats = None,
    temperature: Temperature = None,
    max_tokens: MaxTokens = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it exists.")] = False,
) -> None:
    """Write a model's responses to the prompts of a file, beside all of its columns.

    A row needs a prompt and nothing else. It gets three columns: responses (list of text), response_token_ids (list
    of lists) and finish_reasons (list: stop, or length where a response was cut). OUT appears when it is complete.
    Without options, one response per prompt is taken at temperature 0. The options stand for the keys
    actor_rollout_ref.rollout.val_kwargs.n and .temperature, and data.max_response_length.
    """

    def run() -> None:
        from verl_cli.evaluation.generation import generate
        from verl_cli.evaluation.inference import sampling_options

        options = sampling_options(n, temperature, max_tokens)
        generate(model, file, out, overrides or [], options, overwrite=overwrite)

    guarded(run)
