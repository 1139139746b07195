"""A plan as one screen of text."""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from verl_cli.plan.arithmetic import MicroBatches, Schedule, Updates
from verl_cli.plan.checks import gib
from verl_cli.plan.memory import Footprint
from verl_cli.plan.phases import MemoryPlan
from verl_cli.plan.placement import Role
from verl_cli.plan.plan import BatchPlan, Plan
from verl_cli.plan.sample import Sample

#: Steps that are listed before the rest is only counted, and characters of a sample.
_LISTED, _CHARACTERS = 6, 300
#: What the memory's columns hold, as narrow as can be.
_HEADINGS = ("params", "grads", "optim", "activ", "KV", "total")
_GIB, _MIB = 1 << 30, 1 << 20

Row = tuple[str, str]


def render(plan: Plan) -> Group:
    """The plan as something rich prints, at any width."""
    parts: list[RenderableType] = [
        *_section("Algorithm", [("maximises", plan.algorithm)]),
        *_section("Batch", [*_batch(plan.batch), *_dynamic_sampling(plan)]),
        *_section("Steps", _steps(plan)),
        *_section(f"Placement on {_device(plan)}", _placement(plan)),
    ]
    if plan.memory is not None:
        unit, name = (_GIB, "GiB") if plan.memory.peak.held.total >= _GIB else (_MIB, "MiB")
        title = f"Memory by phase in {name}, where responses are as long as allowed"
        parts += [Text(title, "bold"), _memory(plan.memory, unit)]
    else:
        parts += _section("Memory by phase", [("unknown", plan.memory_unknown or "")])
    if plan.reward:
        parts += _section("Reward", [("from", plan.reward)])
    if plan.sample is not None:
        parts += _section(f"One training prompt ({plan.sample.location})", _sample(plan.sample))
    for title, style, texts in (
        ("To know", "bold", plan.notices),
        ("Warnings", "bold yellow", plan.warnings),
        (f"{len(plan.problems)} problem{'s' * (len(plan.problems) > 1)}", "bold red", plan.problems),
    ):
        if texts:
            parts += [Text(title, style), _numbered(texts)]
    if plan.ok:
        parts.append(Text("Nothing is wrong.", "bold green"))
    return Group(*parts)


def _section(title: str, rows: Iterable[Row]) -> list[RenderableType]:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(min_width=13)
    grid.add_column(ratio=1, overflow="fold")
    for label, text in rows:
        grid.add_row(Text(f"  {label}"), Text(text))
    return [Text(title, "bold"), grid]


def _numbered(texts: Sequence[str]) -> Table:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(justify="right", min_width=4)
    grid.add_column(ratio=1, overflow="fold")
    for number, text in enumerate(texts, 1):
        grid.add_row(Text(f"{number}."), Text(text))
    return grid


def _batch(batch: BatchPlan) -> Iterator[Row]:
    sequences = f"{_count(batch.sequences, 'sequence')} of at most {batch.longest_sequence:,} tokens"
    yield "step", f"{_count(batch.prompts, 'prompt')} x n={batch.n} -> {sequences}"
    if batch.greedy:
        each = f"{_count(batch.greedy, 'further response')} a step"
        yield (
            "baseline",
            f"{each}, the likeliest to each prompt, generated and scored to compare with and not trained on",
        )
    if batch.ranks > 1:
        fewest, most = batch.sequences_per_rank
        yield "ranks", f"{batch.ranks}, each with {fewest if fewest == most else f'{fewest} or {most}'} sequences"
    if batch.lengths is not None:
        seen = batch.lengths
        looked = f"{'all' if seen.looked_at == seen.total else f'{seen.looked_at:,} of'} {seen.total:,} rows looked at"
        looked += "" if seen.usable == seen.looked_at else f", {seen.usable:,} usable"
        spread = f"{seen.shortest} to {seen.longest} tokens, median {seen.median}"
        if seen.shortest == seen.longest:
            spread = f"{seen.shortest} tokens each"
        yield "prompts", f"{spread} ({looked})"
    for updates in batch.updates:
        yield updates.role, _updates(updates)
        yield "", f"micro-batches of {_micro_batches(updates.micro_batches)}"
    if batch.reference is not None:
        yield "ref", f"micro-batches of {_micro_batches(batch.reference)}"
    for updates in batch.updates:
        yield f"{updates.role} lr", _learning_rate(updates)


def _dynamic_sampling(plan: Plan) -> Iterator[Row]:
    sampling = plan.dynamic_sampling
    if sampling is None:
        return
    most = ""
    if sampling.most_batches and sampling.most_prompts and sampling.most_sequences:
        batches = _count(sampling.most_batches, "batch", "es")
        sequences = _count(sampling.most_sequences, "sequence")
        most = f": up to {batches} = {_count(sampling.most_prompts, 'prompt')} ({sequences}) are generated a step"
    wanted = f"{_count(plan.batch.prompts, 'prompt')} have responses that differ in {sampling.metric}"
    yield "sampling", f"until {wanted}{most} (algorithm.filter_groups)"


def _updates(updates: Updates) -> str:
    passes = f" x {updates.passes} passes" if updates.passes > 1 else ""
    late = f", from step {updates.first_training_step} on" if updates.first_training_step > 1 else ""
    in_run = "" if updates.steps_in_run is None else f", {updates.steps_in_run:,} in the run"
    return (
        f"{_count(updates.mini_batches, 'mini-batch', 'es')} of {_count(updates.prompts_per_mini_batch, 'prompt')} "
        f"({_count(updates.sequences_per_mini_batch, 'sequence')}){passes} -> "
        f"{_count(updates.steps_per_training_step, 'optimiser step')} a training step{in_run}{late}"
    )


def _micro_batches(micro: MicroBatches) -> str:
    cap = f"at most {micro.limit:,} tokens"
    if micro.cut_by == "sequences":
        cap = f"{_count(micro.limit, 'sequence')} (at most {micro.most_tokens:,} tokens)"
    worst = "none holds a longest sequence" if micro.worst is None else f"{micro.worst:,} at worst"
    return f"{cap}: {worst}" + ("" if micro.typical is None else f", {micro.typical:,} with these prompts")


def _learning_rate(updates: Updates) -> str:
    rate = f"{updates.learning_rate:g} {updates.lr_schedule}"
    if updates.warmup_steps is None:
        return rate
    if not updates.warmup_steps:
        return f"{rate}, no warm-up (schedules count optimiser steps)"
    in_training_steps = updates.warmup_steps / updates.steps_per_training_step
    return (
        f"{rate} after a warm-up of {_count(updates.warmup_steps, 'optimiser step')} ({in_training_steps:g} training "
        f"steps)"
    )


def _steps(plan: Plan) -> Iterator[Row]:
    timing = plan.schedule
    if timing is None:
        yield "unknown", "see the problems"
        return
    about = "" if timing.rows_are_exact else "about "
    left = f"; {_count(timing.rows_left_out, 'row')} left out of each" if timing.rows_left_out else ""
    epoch = f"{_count(timing.steps_per_epoch, 'step')} of {_count(plan.batch.prompts, 'prompt')}"
    yield "rows", f"{about}{_count(timing.rows, 'row')}: an epoch is {epoch}{left}"
    for source in plan.mix:
        passes = source.share * timing.steps_per_epoch * plan.batch.prompts / max(source.rows, 1)
        rows = f"{_count(source.rows, 'row')}, {passes:.3g} passes an epoch"
        yield "mix", f"{source.share:.1%} of every batch from {source.entry} ({rows})"
    if plan.order_by is not None:
        within = " of each entry" if plan.mix else ""
        yield "order", f"rows{within} in ascending order of {plan.order_by} (data.order_by)"
    after = f"; {plan.start_step:,} are done" if plan.start_step else ""
    least = "at least " if plan.dynamic_sampling else ""
    yield "length", f"{_count(timing.steps, 'training step')} = {least}{timing.epochs:.4g} epochs{after}"
    yield "validation", f"{_at(timing.validations)} (trainer.test_freq counts steps, not epochs)"
    yield "checkpoints", f"{_at(timing.checkpoints)} (trainer.save_freq counts steps, not epochs){_disk(plan, timing)}"
    yield "run directory", plan.run_dir


def _at(steps: Sequence[int]) -> str:
    if not steps:
        return "never"
    if len(steps) <= _LISTED:
        return f"after step{'s' * (len(steps) > 1)} {', '.join(map(str, steps))}"
    return f"{len(steps)} times, after steps {', '.join(map(str, steps[: _LISTED - 2]))}, ..., {steps[-2]}, {steps[-1]}"


def _disk(plan: Plan, timing: Schedule) -> str:
    if plan.disk is None:
        return ""
    kept = plan.disk.checkpoints
    return (
        f"; {gib(plan.disk.checkpoint_bytes)} each, "
        f"{f'all {kept}' if kept == len(timing.checkpoints) else f'at most {kept}'} at a time, "
        f"{gib(plan.disk.free_bytes)} free"
    )


def _device(plan: Plan) -> str:
    device = plan.device
    memory = "" if device.memory_bytes is None else f", {gib(device.memory_bytes)}"
    used = f" ({gib(device.used_bytes)} in use)" if device.used_bytes else ""
    return f"{device.kind}: {device.name}{memory}{used}; {device.why}"


def _placement(plan: Plan) -> Iterator[Row]:
    for role in plan.roles:
        yield role.name, _role(role, plan.memory)


def _role(role: Role, memory: MemoryPlan | None) -> str:
    if not role.present:
        return f"absent: {role.why}"
    dtypes = role.stored if role.stored == role.computed else f"{role.stored} stored, {role.computed} computed"
    held = f", {gib(memory.resident[role.name].total)} at all times" if memory and role.name in memory.resident else ""
    return f"{role.engine} ({dtypes}){held}: {role.why}"


def _memory(memory: MemoryPlan, unit: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("  phase", overflow="fold")
    for heading in _HEADINGS:
        table.add_column(heading, justify="right", overflow="fold")
    table.add_column("peak at", overflow="fold")
    top = memory.peak
    table.add_row("  always", *_cells(sum(memory.resident.values(), Footprint()), unit), "all models stay")
    for phase in memory.phases:
        mark, style = (" <- highest", "bold") if phase is top else ("", "")
        table.add_row(f"  {phase.phase}", *_cells(phase.held, unit), f"{phase.stage}{mark}", style=style)
    return table


def _cells(held: Footprint, unit: int) -> list[str]:
    sizes = (held.parameters, held.gradients, held.optimizer, held.activations, held.kv_cache, held.total)
    return [f"{size / unit:.2f}" if size else "-" for size in sizes]


def _sample(sample: Sample) -> Iterator[Row]:
    cut = ", cut" if sample.truncated else ""
    yield "prompt", f"{_short(sample.prompt)} ({_count(sample.tokens, 'token')}{cut})"
    yield "ground truth", f"{_short(str(sample.ground_truth))} (data source {sample.data_source})"
    for tried in sample.tried:
        extra = "".join(f", {name} {_value(value)}" for name, value in tried.extra.items())
        yield "reward", f"{tried.score:g} for {tried.what}{extra}"


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else _short(str(value))


def _short(text: str) -> str:
    return repr(text) if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]!r} ... ({len(text):,} characters)"


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}{plural if number != 1 else ''}"
