"""`verl-cli generate`: responses to the prompts of a file, beside its own columns, in Parquet."""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from verl_data import write_rows
from verl_data.files import expand, is_url

from verl_cli.config import RunConfig
from verl_cli.errors import UserError
from verl_cli.evaluation.inference import (
    Inference,
    Option,
    duration,
    notice_truncated,
    open_inference,
    progress,
    resolve_inference,
)
from verl_cli.evaluation.responses import prompts_per_call, respond

#: The columns that are added to a row. Each is a list with one entry per response: its text without special tokens,
#: its tokens (encoding the text again may give others), and `stop`, or `length` where it was cut.
ADDED = ("responses", "response_token_ids", "finish_reasons")


def generate(
    model: str, file: str, out: Path, overrides: Sequence[str], options: Sequence[Option], *, overwrite: bool
) -> None:
    """Write the rows of `file` with responses to the Parquet file `out`, which appears whole or not at all."""
    _check_free(out, overwrite)
    resolved = resolve_inference(model, file, overrides, options, scored=False)
    config = resolved.config
    if out.exists() and any(not is_url(name) and out.samefile(name) for name in expand(file)):
        raise UserError(f"{out} is the file that the prompts come from, and would be replaced. Give OUT another name.")
    parts = open_inference(config, None, reserved=ADDED)
    for notice in (*resolved.notices, *parts.notices):
        typer.echo(notice, err=True)
    n, limit = config.actor_rollout_ref.rollout.val_kwargs.n, config.data.max_response_length
    typer.echo(f"{len(parts.loader)} prompts, {n} responses each, of at most {limit} tokens", err=True)
    start, counts = time.perf_counter(), _Counts()
    partial = out.with_name(f".{out.name}.{os.getpid()}.parquet")
    try:
        rows = write_rows(_answered(config, parts, counts), partial)
    finally:
        parts.controller.shutdown()
    _publish(partial, out, overwrite)
    if counts.truncated:
        typer.echo(notice_truncated(counts.truncated, config), err=True)
    typer.echo(
        f"{out}: {rows} rows with {counts.responses} responses, {counts.tokens / counts.responses:.1f} tokens on "
        f"average, {counts.cut / counts.responses:.1%} cut at the length limit, in "
        f"{duration(time.perf_counter() - start)}"
    )


@dataclass
class _Counts:
    """What is told at the end."""

    responses: int = 0
    tokens: int = 0
    cut: int = 0
    truncated: int = 0
    """Prompts."""


def _answered(config: RunConfig, parts: Inference, counts: _Counts) -> Iterator[dict[str, Any]]:
    """Yield every row with its responses, in the order of the file; a few prompts at a time are in memory."""
    n = config.actor_rollout_ref.rollout.val_kwargs.n
    done, show = 0, progress(len(parts.loader))
    for prompts in parts.loader.in_order(prompts_per_call(config)):
        responses = respond(config, prompts, parts.rollout, parts.tokenizer)
        for index, row in enumerate(parts.loader.rows_of(prompts)):
            of_prompt = responses[index * n : (index + 1) * n]
            columns = (
                [response.text for response in of_prompt],
                [response.token_ids for response in of_prompt],
                [response.finish_reason for response in of_prompt],
            )
            yield {**row, **dict(zip(ADDED, columns, strict=True))}
        counts.responses += len(responses)
        counts.tokens += sum(len(response.token_ids) for response in responses)
        counts.cut += sum(response.finish_reason == "length" for response in responses)
        counts.truncated += sum(prompt.truncated for prompt in prompts)
        done += len(prompts)
        show(done)


def _check_free(out: Path, overwrite: bool) -> None:
    if out.suffix != ".parquet":
        raise UserError(f"{out} is not named like a Parquet file. Give OUT a name that ends with .parquet.")
    if out.is_dir():
        raise UserError(f"{out} is a folder. Name a Parquet file, for example {out / 'responses.parquet'}.")
    if out.exists() and not overwrite:
        raise UserError(f"{out} exists already. Give OUT another name, or replace the file with --overwrite.")
    parent = next(folder for folder in out.absolute().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"{out} cannot be written: {parent} is not a folder that may be written to. Choose another.")


def _publish(partial: Path, out: Path, overwrite: bool) -> None:
    """Give the finished file its name. A file of that name may have appeared since the beginning; it is left alone."""
    if not overwrite:
        try:
            os.link(partial, out)  # unlike a rename, it never replaces a file
        except FileExistsError:
            raise _appeared(partial, out) from None
        except OSError as error:  # a file system without hard links
            if out.exists():
                raise _appeared(partial, out) from error
        else:
            partial.unlink()
            return
    partial.replace(out)


def _appeared(partial: Path, out: Path) -> UserError:
    return UserError(
        f"{out} was made by somebody else in the meantime, and was left alone. The responses are in {partial}."
    )
