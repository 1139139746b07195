"""Sampled generations: of one run beside the initial model's, and of several runs beside each other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from html import escape

from verl_cli.report.document import table, text
from verl_cli.report.read import Run
from verl_cli.report.samples import Sample, sampling, spread
from verl_cli.report.scale import number

_SHOWN = 24
_SHOWN_COMPARED = 10

_FINISH = {"length": "cut at the length limit", "stop": "ended by itself"}


def of_run(run: Run) -> str:
    """A table of generations, before and after training beside what was right; empty without samples."""
    samples = run.samples
    if not samples:
        return ""
    shown = spread(samples, _SHOWN)
    step = samples[0].step
    notes = f"{len(shown)} of {len(samples)} validation responses of step {step}"
    notes += ", evenly spaced. " if len(shown) < len(samples) else ". "
    notes += sampling(run.settings)
    if compared := [(sample.initial_score, sample.score) for sample in samples if sample.initial_score is not None]:
        better = sum(score > before for before, score in compared)
        worse = sum(score < before for before, score in compared)
        notes += f" Of all, {better} score higher than the initial model's and {worse} lower."
    trained = step > 0
    sources = len({sample.data_source for sample in samples}) > 1
    heads = ["Prompt", *(["Data source"] if sources else [])]
    heads += ["Initial model", f"After step {step}"] if trained else ["Initial model"]
    heads += ["Ground truth", "Score"]
    rows = []
    for sample in shown:
        row = [text(sample.prompt), *([escape(sample.data_source)] if sources else [])]
        if trained:
            before = sample.initial_generation
            row.append("<i>not recorded</i>" if before is None else text(before))
        row += [text(sample.generation) + _finish(sample), text(sample.ground_truth), _scores(sample)]
        rows.append(row)
    css = "generations sources" if sources else "generations"
    return f"<section><h2>Generations</h2><p>{escape(notes)}</p>{table(heads, rows, css=css)}</section>"


def of_runs(runs: Sequence[Run], names: Sequence[str]) -> str:
    """For prompts that several runs validated on, what each answered; empty without such prompts.

    `names` is the HTML that stands for each run.
    """
    answers: list[dict[tuple[str, str], Sample]] = []
    for run in runs:
        first: dict[tuple[str, str], Sample] = {}
        for sample in run.samples:
            first.setdefault((sample.data_source, sample.prompt), sample)
        answers.append(first)
    counts = Counter(prompt for first in answers for prompt in first)
    most = max(counts.values(), default=0)
    if most < 2:
        return ""
    # Prompts of the largest number of runs, in the order of the first run that has them.
    shared = [prompt for prompt, count in counts.items() if count == most]
    shown = spread(shared, _SHOWN_COMPARED)
    blocks = [_block(prompt, answers, names) for prompt in shown]
    whose = "all runs" if most == len(runs) else f"{most} of the runs"
    note = (
        f"{len(shown)} of {len(shared)} prompts that {whose} validated on, with the last validation's first response."
    )
    how = "".join(f"<li>{name}: {escape(how)}</li>" for name, how in _how(runs, names))
    return f'<section><h2>Generations</h2><p>{note}</p><ul class="plain">{how}</ul>{"".join(blocks)}</section>'


def _how(runs: Sequence[Run], names: Sequence[str]) -> list[tuple[str, str]]:
    """How responses were drawn, runs that did it alike taken together."""
    ways: dict[str, list[str]] = defaultdict(list)
    for run, name in zip(runs, names, strict=True):
        if run.samples:
            ways[sampling(run.settings)].append(name)
    if len(ways) == 1 and len(runs) > 1:
        return [("All", next(iter(ways)))]
    return [(", ".join(who), how) for how, who in ways.items()]


def _block(prompt: tuple[str, str], answers: Sequence[dict[tuple[str, str], Sample]], names: Sequence[str]) -> str:
    """A prompt with the answers of each run that has it."""
    found = [(name, first[prompt]) for name, first in zip(names, answers, strict=True) if prompt in first]
    before = {sample.initial_generation for _, sample in found}
    cards = []
    same = len(before) == 1 and None not in before
    if same:
        sample = found[0][1]
        score = "" if sample.initial_score is None else f" <small>score</small> <b>{number(sample.initial_score)}</b>"
        cards.append(f"<li><h4>Initial model{score}</h4>{text(sample.initial_generation or '')}</li>")
    for name, sample in found:
        initial = sample.initial_generation
        own = (
            f"<details><summary>its initial model</summary>{text(initial)}</details>"
            if not same and initial is not None
            else ""
        )
        cards.append(
            f"<li><h4>{name} <small>step {sample.step}, score</small> <b>{number(sample.score)}</b></h4>"
            f"{text(sample.generation)}{_finish(sample)}{own}</li>"
        )
    source, question = prompt
    truth = found[0][1].ground_truth
    return (
        f'<article class="prompt"><h3>{escape(source)}</h3>{text(question)}'
        f'<div class="truth"><small>Ground truth</small> {text(truth)}</div>'
        f'<ul class="answers">{"".join(cards)}</ul></article>'
    )


def _finish(sample: Sample) -> str:
    if not sample.finish_reason:
        return ""
    return f'<div class="finish">{escape(_FINISH.get(sample.finish_reason, sample.finish_reason))}</div>'


def _scores(sample: Sample) -> str:
    before = "" if sample.initial_score is None else f"<small>{number(sample.initial_score)} &rarr;</small> "
    return f"{before}{number(sample.score)}"
