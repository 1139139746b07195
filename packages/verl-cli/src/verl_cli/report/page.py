"""The report page, put together from a run directory."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from verl_cli import __version__
from verl_cli.report.charts import MAX_SERIES, Series, line_chart, number, stacked_chart
from verl_cli.report.read import Run, Sample, read_run
from verl_cli.run_dir import write_atomically
from verl_cli.tracking import validation_results

REPORT_FILE = "report.html"
_SAMPLES_SHOWN = 24

# Title of each chart after validation, with its lines: what the legend says, and the metric.
_CHARTS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("Reward", (("score", "critic/score/mean"), ("score after KL penalty", "critic/rewards/mean"))),
    ("KL to the reference, nats per token", (("in the reward", "actor/reward_kl_penalty"), ("loss", "actor/kl_loss"))),
    ("KL of the update (ppo_kl), nats per token", (("ppo_kl", "actor/ppo_kl"),)),
    ("Entropy, nats per token", (("entropy", "actor/entropy"),)),
    ("Value loss", (("vf_loss", "critic/vf_loss"),)),
    ("Explained variance of the values", (("explained variance", "critic/vf_explained_var"),)),
    ("Response length, tokens", (("mean", "response_length/mean"), ("longest", "response_length/max"))),
    ("Throughput, tokens per second and device", (("throughput", "perf/throughput"),)),
)


def write_report(run_dir: Path) -> Path:
    """Write `report.html` of a run from what its directory holds, finished or not, and return its path.

    The page is one file without scripts that asks the network for nothing. A chart whose metrics the run did not log is
    left out. The file is there whole or not at all.

    Raises:
        UserError: there is no such folder, or one of its files is not what a run writes.
        OSError: the page cannot be written.
    """
    path = run_dir / REPORT_FILE
    write_atomically(path, render(read_run(run_dir)))
    return path


def render(run: Run) -> str:
    """The page of a run as HTML."""
    style = files("verl_cli.report").joinpath("style.css").read_text("utf-8")
    charts = "".join(_charts(run))
    parts = [
        f"<h1>{escape(run.name)}</h1>",
        _headline(run),
        f'<section class="charts" aria-label="Curves">{charts}</section>' if charts else "",
        _samples(run.samples),
        f"<details><summary>Configuration</summary><pre>{escape(run.config)}</pre></details>" if run.config else "",
        f"<footer>verl-cli {escape(__version__)}</footer>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(run.name)} - verl report</title><style>{style}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _headline(run: Run) -> str:
    """The numbers that a reader looks for first."""
    tiles = []
    before, after = run.summary.get("val_accuracy_before"), run.summary.get("val_accuracy_after")
    if before is not None and after is not None:
        tiles.append(("Validation accuracy", _change(before, after), f"{after - before:+.3f}"))
    else:
        for result in validation_results(run.names()):
            values = list(run.series(result.name).values())
            tiles.append((f"Validation, {result.source}", _change(values[0], values[-1]), f"mean@{result.n}"))
    if scores := list(run.series("critic/score/mean").values()):
        tiles.append(("Mean score in training", _change(scores[0], scores[-1]), "first and last step"))
    if run.metrics:
        tokens = sum(run.series("perf/total_num_tokens").values())
        tiles.append(("Steps", str(max(run.metrics)), f"{number(tokens)} tokens" if tokens else ""))
    if "seconds" in run.summary:
        tiles.append(("Duration", _duration(run.summary["seconds"]), ""))
    if "seed" in run.summary:
        tiles.append(("Seed", str(run.summary["seed"]), ""))
    cells = "".join(
        f'<div><dt>{escape(name)}</dt><dd>{value}</dd><dd class="note">{escape(note)}</dd></div>'
        for name, value, note in tiles
    )
    unfinished = "" if run.summary else "<p>The run has not finished: this is what it has written so far.</p>"
    return f"{unfinished}<dl>{cells}</dl>" if cells else unfinished


def _change(before: float, after: float) -> str:
    return f"<small>{before:.3f} &rarr;</small> {after:.3f}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _charts(run: Run) -> list[str]:
    """Every chart of whose metrics the run logged at least one."""
    charts = []
    if validation := validation_results(run.names())[:MAX_SERIES]:
        series = [Series(f"{result.source} (mean@{result.n})", run.series(result.name)) for result in validation]
        accuracy = all(result.variable == "acc" for result in validation) and all(
            0.0 <= value <= 1.0 for one in series for value in one.values.values()
        )
        title = "Validation accuracy" if accuracy else "Validation reward"
        charts.append(line_chart(title, series, bounds=(0.0, 1.0) if accuracy else None))
    for title, lines in _CHARTS:
        series = [Series(label, values) for label, name in lines if (values := run.series(name))]
        if series:
            charts.append(line_chart(title, series))
    if phases := _phases(run):
        charts.append(stacked_chart("Seconds per phase", phases))
    return charts


def _phases(run: Run) -> list[Series]:
    """Time of each phase, the longest first; what has no colour of its own is taken together."""
    names = [name for name in run.names() if name.startswith("timing_s/") and name != "timing_s/step"]
    series = [Series(name.removeprefix("timing_s/"), run.series(name)) for name in names]
    series.sort(key=lambda one: -sum(one.values.values()))
    if len(series) <= MAX_SERIES:
        return series
    shown, rest = series[: MAX_SERIES - 1], series[MAX_SERIES - 1 :]
    steps = sorted({step for one in rest for step in one.values})
    others = {step: sum(one.values.get(step, 0.0) for one in rest) for step in steps}
    return [*shown, Series(f"{len(rest)} others", others)]


def _samples(samples: Sequence[Sample]) -> str:
    """A table of generations, before and after training beside what was right."""
    if not samples:
        return ""
    count = min(len(samples), _SAMPLES_SHOWN)
    shown = [samples[index * len(samples) // count] for index in range(count)]
    notes = [f"{count} of {len(samples)} validation responses of step {samples[0].step}"]
    if count < len(samples):
        notes[0] += ", evenly spaced"
    compared = [(sample.initial_score, sample.score) for sample in samples if sample.initial_score is not None]
    if compared:
        better = sum(score > before for before, score in compared)
        worse = sum(score < before for before, score in compared)
        notes.append(f"of all, {better} score higher than the initial model's and {worse} lower")
    sources = len({sample.data_source for sample in samples}) > 1
    heads = [
        "Prompt",
        "Initial model",
        "After training",
        "Ground truth",
        "Score",
        *(["Data source"] if sources else []),
    ]
    rows = []
    for sample in shown:
        cells = [sample.prompt, sample.initial_generation, sample.generation, sample.ground_truth]
        texts = ["<i>not recorded</i>" if text is None else _text(text) for text in cells]
        texts.append(_scores(sample))
        if sources:
            texts.append(escape(sample.data_source))
        row = "".join(f'<td data-head="{head}">{text}</td>' for head, text in zip(heads, texts, strict=True))
        rows.append(f"<tr>{row}</tr>")
    head = "".join(f"<th>{name}</th>" for name in heads)
    return (
        f"<section><h2>Generations</h2><p>{'; '.join(notes)}.</p><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></section>"
    )


def _text(text: str) -> str:
    return f'<div class="text">{escape(text)}</div>' if text.strip() else "<i>empty</i>"


def _scores(sample: Sample) -> str:
    before = "" if sample.initial_score is None else f"<small>{number(sample.initial_score)} &rarr;</small> "
    return f"<div>{before}{number(sample.score)}</div>"
