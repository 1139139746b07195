"""`verl-cli eval`: what validation in training does, for any model and file."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from verl_cli.build import device_of
from verl_cli.errors import UserError
from verl_cli.evaluation.inference import (
    Option,
    duration,
    notice_truncated,
    open_inference,
    progress,
    resolve_inference,
    settings,
)
from verl_cli.evaluation.validation import SampleLog, ValidationResult, validate
from verl_cli.run.run_dir import write_atomically
from verl_cli.scoring import load_scorer
from verl_cli.tracking import validation_results


@dataclass(frozen=True)
class SourceResult:
    """How a model did on one data source."""

    data_source: str
    variable: str
    """What was averaged: acc, or reward where the reward function reports no acc."""
    prompts: int
    n: int
    """Responses per prompt."""
    mean: float
    best: float | None
    """best@n; None, like maj@n, for a single response."""
    maj: float | None
    """maj@n; None also where the reward function reports no prediction (pred)."""
    response_length: float
    """Mean length in tokens."""
    clip_ratio: float
    """Share of the responses that were cut at the length limit."""


def evaluate(model: str, file: str, overrides: Sequence[str], options: Sequence[Option], out: Path | None) -> None:
    """Evaluate a model on a file, print a table, and write eval.json and val_samples.jsonl into `out`."""
    if out is not None:
        _check_free(out)
    resolved = resolve_inference(model, file, overrides, options, scored=True)
    config = resolved.config
    scorer = load_scorer(config.reward, device=device_of(config))
    parts = open_inference(config, scorer)
    prompts, n = parts.loader.all_prompts(), config.actor_rollout_ref.rollout.val_kwargs.n
    truncated = sum(prompt.truncated for prompt in prompts)
    for notice in (*resolved.notices, *parts.notices, *([notice_truncated(truncated, config)] if truncated else ())):
        typer.echo(notice, err=True)
    typer.echo(
        f"{len(prompts)} prompts, {n} responses each, of at most {config.data.max_response_length} tokens", err=True
    )
    start = time.perf_counter()
    try:
        with scorer:
            result = validate(config, prompts, parts.rollout, scorer, parts.tokenizer, progress(len(prompts)))
    finally:
        parts.controller.shutdown()
    seconds = time.perf_counter() - start
    results = source_results(result)
    typer.echo(table(results))
    typer.echo(f"{len(result.samples)} responses in {duration(seconds)}")
    if out is not None:
        report = {
            "model": model,
            "file": file,
            "accuracy": result.accuracy,
            "data_sources": [asdict(of_source) for of_source in results],
            "metrics": result.metrics,
            "seconds": round(seconds, 3),
            "config": settings(config, scored=True),
        }
        _write(out, report, result)
        typer.echo(f"Everything is in {out}")


def source_results(result: ValidationResult) -> list[SourceResult]:
    """The headline numbers of each data source, sorted by its name."""
    found = []
    for headline in validation_results(result.metrics):
        samples = [sample for sample in result.samples if sample["data_source"] == headline.source]
        found.append(
            SourceResult(
                data_source=headline.source,
                variable=headline.variable,
                prompts=len({sample["row"] for sample in samples}),
                n=headline.n,
                mean=result.metrics[headline.name],
                best=result.metrics.get(headline.name.replace("/mean@", "/best@")),
                maj=result.metrics.get(headline.name.replace("/mean@", "/maj@")),
                response_length=sum(sample["response_length"] for sample in samples) / len(samples),
                clip_ratio=sum(sample["finish_reason"] == "length" for sample in samples) / len(samples),
            )
        )
    return found


def table(results: Sequence[SourceResult]) -> str:
    """The results as lines of text, one per data source."""
    n = results[0].n
    headings = ["data source", "score", "prompts", f"mean@{n}", f"best@{n}", f"maj@{n}", "mean tokens", "cut"]
    rows = [
        [
            of_source.data_source,
            of_source.variable,
            str(of_source.prompts),
            *("-" if value is None else f"{value:.4f}" for value in (of_source.mean, of_source.best, of_source.maj)),
            f"{of_source.response_length:.1f}",
            f"{of_source.clip_ratio:.1%}",
        ]
        for of_source in results
    ]
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) if place < 2 else cell.rjust(width) for place, (cell, width) in enumerate(cells))
        for cells in (list(zip(row, widths, strict=True)) for row in (headings, *rows))
    )


def _check_free(out: Path) -> None:
    """Raise UserError unless the folder can be made, or is there and empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is not an empty folder, and nothing is overwritten: name another with --out DIR.")
    parent = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(
            f"The folder {out} cannot be made: {parent} is not a folder that may be written to. Name another with "
            f"--out DIR."
        )


def _write(out: Path, report: Mapping[str, object], result: ValidationResult) -> None:
    """Write the samples, and then eval.json: where it is, everything is."""
    _check_free(out)  # again: hours may have passed
    out.mkdir(parents=True, exist_ok=True)
    SampleLog(out / "val_samples.jsonl").write(0, result)
    write_atomically(out / "eval.json", json.dumps(report, indent=2, ensure_ascii=False) + "\n")
