"""Which charts a report has: the metrics of each, their unit, and what good looks like (docs/metrics.md tells more)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

#: Lines of one chart that can be told apart: the style sheet has as many colours.
MAX_LINES = 8


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes:
        title: what it shows.
        unit: unit of the vertical axis; empty for a number without one.
        good: what to look for.
        lines: what the legend calls each metric, and its name.
        share: whether the values are shares of a whole, whose axis goes from 0 to 1.
    """

    title: str
    unit: str
    good: str
    lines: tuple[tuple[str, str], ...]
    share: bool = False

    def bounds(self, values: Iterable[float]) -> tuple[float, float] | None:
        """Fixed ends of the vertical axis; None fits it to the values."""
        return (0.0, 1.0) if self.share and all(0.0 <= value <= 1.0 for value in values) else None

    def single_lines(self) -> list[tuple[Chart, str]]:
        """A chart for each line, and the line's metric: for pages whose lines are runs."""
        if len(self.lines) == 1:
            return [(self, self.lines[0][1])]
        return [(replace(self, title=f"{self.title}: {label}"), name) for label, name in self.lines]


_LEARNING = (
    Chart(
        "Reward",
        "mean over responses",
        "Should rise. Far below the score after the KL penalty: lower algorithm.kl_ctrl.kl_coef.",
        (("score", "critic/score/mean"), ("after KL penalty", "critic/rewards/mean")),
    ),
    Chart(
        "Spread of the scores",
        "score of a response",
        "Highest equal to lowest: nothing can be learnt from that batch.",
        (("highest", "critic/score/max"), ("lowest", "critic/score/min")),
    ),
    Chart(
        "Prompts dropped by dynamic sampling",
        "prompts in a step",
        "Far below the prompts drawn. Nearly all of them: the data are too easy or too hard.",
        (
            ("responses all alike", "training/filter_groups/evicted_samples"),
            ("not needed", "training/filter_groups/discarded_surplus_samples"),
        ),
    ),
    Chart(
        "KL to the reference",
        "nats per token",
        "Settles. Growing without end: raise the KL coefficient or lower the learning rate.",
        (
            ("in the reward", "actor/reward_kl_penalty"),
            ("in the loss", "actor/kl_loss"),
            ("k3 per token", "health/kl"),
        ),
    ),
    Chart(
        "KL of the update (ppo_kl)",
        "nats per token",
        "Small, 0 where a step has one mini-batch. Large: steps are too large.",
        (("ppo_kl", "actor/ppo_kl"),),
    ),
    Chart(
        "Entropy",
        "nats per token",
        "Falls slowly. At 0 early on: the policy stops exploring.",
        (("entropy", "actor/entropy"),),
    ),
)
_HEALTH = (
    Chart(
        "Groups without an advantage",
        "share of prompts",
        "Low. All responses of such a prompt have one reward: too easy (best), or too hard (worst).",
        (
            ("equal rewards", "health/zero_variance_groups"),
            ("all best", "health/all_best_groups"),
            ("all worst", "health/all_worst_groups"),
        ),
        share=True,
    ),
    Chart(
        "Saturation of the reward",
        "share of responses",
        "Below 0.95. At 1 nothing distinguishes the responses, and nothing is learnt.",
        (("best reward", "health/rewards_at_maximum"), ("most common reward", "health/most_common_reward")),
        share=True,
    ),
    Chart(
        "Equal responses",
        "share of responses",
        "Low. High: the policy has collapsed to one answer, or answers are very short.",
        (
            ("in their group", "health/duplicate_responses"),
            ("in the batch", "health/duplicate_responses_batch"),
            ("the most common one", "health/most_common_response"),
        ),
        share=True,
    ),
    Chart(
        "Reward against length",
        "correlation",
        "Near 0. Above 0.5 while responses grow: the reward pays for length.",
        (
            ("within groups", "health/reward_length_correlation"),
            ("over the batch", "health/reward_length_correlation_batch"),
        ),
    ),
    Chart(
        "Against the first steps",
        "times the first steps' mean",
        "Moves slowly. Entropy below 0.2: the policy stops exploring; above 3: it becomes random.",
        (("entropy", "health/entropy_ratio"), ("response length", "health/response_length_ratio")),
    ),
    Chart(
        "Gradient norm against its median",
        "times the last steps' median",
        "Around 1. Peaks above 10: lower the learning rate.",
        (("grad_norm", "health/grad_norm_to_median"),),
    ),
    Chart(
        "Oscillation of the policy loss",
        "share of changes that turn back",
        "Around 0.67, as noise has. Near 1 each update overshoots: lower the learning rate.",
        (("pg_loss", "health/pg_loss_sign_changes"),),
        share=True,
    ),
)
_OPTIMISATION = (
    Chart(
        "Clipped tokens",
        "share of tokens",
        "Below 0.3. Above: lower the learning rate or raise ppo_mini_batch_size.",
        (("pg_clipfrac", "actor/pg_clipfrac"), ("dual clip", "actor/pg_clipfrac_lower")),
    ),
    Chart(
        "Gradient norm",
        "before clipping",
        "Steady. Sudden peaks: look at the learning rate and the data of that step.",
        (("actor", "actor/grad_norm"), ("critic", "critic/grad_norm")),
    ),
    Chart(
        "Learning rate",
        "of each optimiser step",
        "What the optimiser used: warm-up and schedule as configured.",
        (("actor", "actor/lr"), ("critic", "critic/lr")),
    ),
    Chart(
        "Value loss", "squared error of the returns", "Falls as the critic learns.", (("vf_loss", "critic/vf_loss"),)
    ),
    Chart(
        "Explained variance of the values",
        "1 is perfect",
        "Rises from 0 towards 1. Far below 0 the critic hurts: raise trainer.critic_warmup.",
        (("explained variance", "critic/vf_explained_var"),),
    ),
    Chart(
        "Rollout against engine",
        "difference of a token's probability",
        "1e-6 in float32, up to 1e-2 in bfloat16. More: they do not compute the same.",
        (("mean", "training/rollout_probs_diff_mean"), ("largest", "training/rollout_probs_diff_max")),
    ),
)
_LENGTHS = (
    Chart(
        "Response length",
        "tokens",
        "As long as the task needs; growing without the reward is drift.",
        (("mean", "response_length/mean"), ("longest", "response_length/max"), ("shortest", "response_length/min")),
    ),
    Chart(
        "Responses cut at the length limit",
        "share of responses",
        "Low. High: raise data.max_response_length.",
        (("clip_ratio", "response_length/clip_ratio"),),
    ),
    Chart(
        "Prompt length",
        "tokens",
        "What the data has, below data.max_prompt_length.",
        (("mean", "prompt_length/mean"), ("longest", "prompt_length/max")),
    ),
)
_REWARD_COUNTS = Chart(
    "Responses without a reward of their own",
    "responses of a step",
    "Zero. What failed is left out of training; many unparsable: the prompt does not say which form an answer has.",
    (
        ("timeout", "reward/timeout"),
        ("exception", "reward/exception"),
        ("unparsable", "reward/unparsable"),
        ("empty", "reward/empty_responses"),
        ("workers replaced", "reward/workers_replaced"),
    ),
)
_THROUGHPUT = Chart(
    "Throughput",
    "tokens per second and device",
    "Steady. Prompt and response tokens count.",
    (("throughput", "perf/throughput"),),
)
_STEP_TIME = Chart("Time of a step", "seconds", "Steady, apart from steps that save.", (("step", "timing_s/step"),))


def chart_groups(names: Iterable[str]) -> list[tuple[str, list[Chart]]]:
    """The charts by heading, in the order of the page, without validation: those of which a line is among the names.

    Every heading is there, be it without a chart.
    """
    known = set(names)
    groups: list[tuple[str, Sequence[Chart]]] = [
        ("Learning", [*_LEARNING, *_reward_charts(known), _REWARD_COUNTS]),
        ("Optimisation", _OPTIMISATION),
        ("Lengths", _LENGTHS),
        ("Health", _HEALTH),
        ("Speed", [_THROUGHPUT, _STEP_TIME]),
    ]
    result = []
    for heading, charts in groups:
        kept = [replace(chart, lines=lines) for chart in charts if (lines := _present(chart, known))]
        result.append((heading, kept))
    return result


def _present(chart: Chart, names: set[str]) -> tuple[tuple[str, str], ...]:
    return tuple((label, name) for label, name in chart.lines if name in names)


def _reward_charts(names: set[str]) -> list[Chart]:
    counts = {name for _, name in _REWARD_COUNTS.lines}
    numbers = sorted(name for name in names - counts if name.startswith("reward/"))
    lines = tuple((name.removeprefix("reward/"), name) for name in numbers)
    good = "What your reward function returns beside the score; reward/no_marker 1: the answer's mark is never written."
    return split(Chart("Numbers of the reward function", "mean over responses", good, lines))


def split(chart: Chart) -> list[Chart]:
    """The chart, or several where its lines could not be told apart."""
    if len(chart.lines) <= MAX_LINES:
        return [chart]
    starts = range(0, len(chart.lines), MAX_LINES)
    return [
        replace(
            chart,
            title=f"{chart.title} ({part} of {len(starts)})",
            lines=chart.lines[start : start + MAX_LINES],
        )
        for part, start in enumerate(starts, start=1)
    ]


def phases(names: Iterable[str]) -> list[tuple[str, str]]:
    """The phases of a step among the metrics, and the metric of each: wall time in seconds."""
    prefix = "timing_s/"
    return [
        (name.removeprefix(prefix), name)
        for name in sorted(names)
        if name.startswith(prefix) and name != f"{prefix}step"
    ]
