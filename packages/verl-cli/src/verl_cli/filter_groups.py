"""Dynamic sampling (DAPO, Yu et al. 2025, arXiv:2503.14476, section 3.2): every step trains on full batches of groups
that can teach something.

Responses of one prompt that are all alike have no advantage over each other. Their group is dropped, and responses to
further prompts are sampled in its place, so that the batch keeps its size, which is part of the algorithm.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from verl_data import PackedBatch, Prompt

from verl_cli.config import FilterGroupsConfig
from verl_cli.errors import UserError
from verl_cli.phases import Step
from verl_cli.reported import column_name
from verl_cli.scoring import Scored

SECTION = "algorithm.filter_groups"
_EMPTY_RESPONSES = "reward/empty_responses"
#: Values that an error lists before it sums up the others.
_LISTED = 5


def uninformative_groups(group: np.ndarray, values: np.ndarray) -> dict[int, float | None]:
    """The groups that have nothing to compare, and the value that all their responses have.

    Args:
        group: (N,) integers.
        values: (N,) what is compared; NaN for a response that could not be scored, which does not count.

    Returns:
        The value by group, in ascending order of the groups; None for one with fewer than two responses that count.
    """
    found: dict[int, float | None] = {}
    for name in np.unique(group).tolist():
        of_group = values[group == name]
        counted = of_group[~np.isnan(of_group)]
        if len(counted) < 2:
            found[name] = None
        elif (counted == counted[0]).all():
            found[name] = float(counted[0])
    return found


def keep_groups(
    batch: PackedBatch, prompts: Sequence[Prompt], groups: Sequence[int], first: int = 0
) -> tuple[PackedBatch, list[Prompt]]:
    """The rows of some groups, and the prompts of these.

    Args:
        batch: any columns; prompt i is that of group i.
        prompts: of all groups.
        groups: those to keep, in ascending order.
        first: the new number of the first of them; the others follow.

    Returns:
        All columns of the kept rows, which stay in their order, and the kept prompts in the order of the new numbers.
    """
    kept, group = np.asarray(groups, dtype=np.int64), np.asarray(batch["group"])
    rows = np.flatnonzero(np.isin(group, kept))  # one selection for every column, so that rows cannot come apart
    numbers = first + np.searchsorted(kept, group[rows])
    return batch.select(rows).with_columns(sequences={"group": numbers}), [prompts[number] for number in groups]


@dataclass
class Sampled:
    """What a step has sampled, round by round."""

    size: int
    """Groups that the step trains on."""
    metric: str
    """The reported number by which responses are compared."""
    batches: list[PackedBatch] = field(default_factory=list)
    """The kept rows of each round."""
    prompts: list[Prompt] = field(default_factory=list)
    """Of the kept groups."""
    scored: list[Scored] = field(default_factory=list)
    """All rewards of each round."""
    evicted: Counter[float | None] = field(default_factory=Counter)
    """Groups without information, by the value that all their responses have; None: too few could be scored."""
    surplus: int = 0
    """Groups with information that no place was left for."""
    empty_responses: float = 0.0

    @property
    def full(self) -> bool:
        """Whether there are enough groups."""
        return len(self.prompts) == self.size

    def add(self, drawn: Step) -> None:
        """Take what is needed from a round's groups, all of them sampled and scored, and count the others."""
        uninformative = uninformative_groups(
            np.asarray(drawn.batch["group"]), np.asarray(drawn.batch[column_name(self.metric)])
        )
        informative = [group for group in range(len(drawn.prompts)) if group not in uninformative]
        kept = informative[: self.size - len(self.prompts)]
        batch, prompts = keep_groups(drawn.batch, drawn.prompts, kept, first=len(self.prompts))
        self.batches.append(batch)
        self.prompts += prompts
        self.evicted.update(uninformative.values())
        self.surplus += len(informative) - len(kept)
        self.empty_responses += drawn.metrics.get(_EMPTY_RESPONSES, 0.0)
        if drawn.scored is not None:
            self.scored.append(drawn.scored)

    def metrics(self) -> dict[str, float]:
        """Published names, whose samples are groups; and the reward's own numbers over every response sampled."""
        prefix = "training/filter_groups"
        values = [value for value in self.evicted.elements() if value is not None]
        return {
            f"{prefix}/evicted_samples": float(self.evicted.total()),
            f"{prefix}/discarded_surplus_samples": float(self.surplus),
            f"{prefix}/unscored_samples": float(self.evicted[None]),
            f"{prefix}/num_gen_batches": float(len(self.batches)),
            **({f"{prefix}/evicted_value/mean": float(np.mean(values))} if values else {}),
            **merged_metrics(self.scored),
            _EMPTY_RESPONSES: self.empty_responses,
        }


def fill_batch(step: Step, config: FilterGroupsConfig, size: int, sample: Callable[[Step], None]) -> None:
    """Leave `size` informative groups in the step, and sample further prompts for those that it lacks.

    Args:
        step: its prompts, at least `size`, sampled and scored. Its batch, prompts and metrics are replaced.
        config: by which number responses are compared, and how many batches of prompts may be drawn.
        size: prompts of a training step.
        sample: samples and scores the prompts of a further step, as was done with the first ones.

    Raises:
        UserError: the batches that may be drawn do not hold enough such groups. The step is as it was.
    """
    limit = config.max_num_gen_batches or step.batches_per_epoch
    sampled = Sampled(size, config.metric)
    sampled.add(step)
    taken = len(step.prompts)
    while not sampled.full:
        if len(sampled.batches) >= limit:
            raise UserError(_too_few(sampled, config, taken))
        further = Step(step.number, step.epoch, step.draw(), first_prompt=taken)
        sample(further)
        sampled.add(further)
        taken += len(further.prompts)
    step.gen_tokens = int(np.sum(step.batch["sampled_mask"]))
    step.batch, step.prompts = PackedBatch.concat(sampled.batches), sampled.prompts
    step.metrics |= sampled.metrics()


def merged_metrics(scored: Sequence[Scored]) -> dict[str, float]:
    """The metrics of several lists of responses, as if they were one: means of what was reported, sums of counts."""
    merged: dict[str, float] = {}
    for name in dict.fromkeys(name for part in scored for name in part.means):
        reported = name.removeprefix("reward/")
        values = np.concatenate([part.extra[reported] for part in scored if name in part.means])
        merged[name] = float(np.nanmean(values.astype(np.float64)))
    for name in dict.fromkeys(name for part in scored for name in part.counts):
        merged[name] = sum(part.counts.get(name, 0.0) for part in scored)
    return merged


def _too_few(sampled: Sampled, config: FilterGroupsConfig, taken: int) -> str:
    limit, number = f"{SECTION}.max_num_gen_batches", len(sampled.batches)
    why = f"{limit}={config.max_num_gen_batches}" + ("" if config.max_num_gen_batches else ", one pass over the data")
    listed = "; ".join(_reasons(sampled.evicted, config.metric))
    return (
        f"Only {len(sampled.prompts)} of {sampled.size} groups have responses that differ in {config.metric}, after "
        f"{number} batch{'es' * (number > 1)} of prompts ({why}). Of {taken} groups, {sampled.evicted.total()} were "
        f"dropped: {listed}. {_remedy(sampled.evicted)} Otherwise sample more responses of each prompt "
        f"(actor_rollout_ref.rollout.n), raise {limit}, or lower data.train_batch_size. The step was not trained; "
        f"earlier checkpoints are kept."
    )


def _reasons(evicted: Mapping[float | None, int], metric: str) -> Iterator[str]:
    """Each value with its number of groups, the most frequent ones first."""
    values = sorted(((value, count) for value, count in evicted.items() if value is not None), key=lambda of: -of[1])
    for value, count in values[:_LISTED]:
        yield f"all of {metric} {value:g}: {_groups(count)}"
    if rest := values[_LISTED:]:
        yield f"all of another {metric} each: {_groups(sum(count for _, count in rest))}"
    if unscored := evicted.get(None):
        yield f"fewer than two responses could be scored: {_groups(unscored)}"


def _groups(count: int) -> str:
    return f"{count} group{'s' * (count != 1)}"


def _remedy(evicted: Mapping[float | None, int]) -> str:
    """What to do about the most frequent reason."""
    reason = max(evicted, key=lambda value: evicted[value])
    if reason is None:
        return "Rewards failed: repair what scores the responses."
    if reason > 0:
        return "If every response solves these prompts, train on harder ones."
    return "If no response solves these prompts, train on easier ones, and look at whether the reward can be earned."
