"""All monitors of a training run behind one call per step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from verl_algos.health import _texts as texts
from verl_algos.health import responses as of_responses
from verl_algos.health import series
from verl_algos.health._advice import Settings
from verl_algos.health._memory import Baseline, Streak, Window
from verl_algos.health.thresholds import Thresholds


@dataclass(frozen=True)
class HealthWarning:
    """Something about a run that its user should look at."""

    name: str
    """Which monitor spoke, such as `entropy_collapse`."""
    message: str
    """A paragraph: what was seen since which step, what it usually means, which configuration key to try first."""


@dataclass(frozen=True)
class _Step:
    """What one step has shown so far."""

    number: int
    metrics: dict[str, float]
    warnings: list[HealthWarning]

    def log(self, name: str, value: float | None) -> float | None:
        """Log a number that there is; `health/` is put before its name."""
        if value is not None and np.isfinite(value):
            self.metrics[f"health/{name}"] = float(value)
        return value


@dataclass
class HealthMonitor:
    """Watches a run: give it every step's data in order, and it returns the step's metrics and the warnings now due.

    Whatever is not at hand is left out of the call: its metrics are absent, and its monitor waits. The same steps give
    the same warnings, also across `state_dict` and `load_state_dict`.
    """

    thresholds: Thresholds = field(default_factory=Thresholds)
    settings: Mapping[str, object] = field(default_factory=dict)
    """The resolved configuration by dotted key: warnings then propose values that begin from the present ones."""

    def __post_init__(self) -> None:
        from verl_algos.kl import Monitor as KlMonitor  # brings torch, which the numbers do not need

        limits = self.thresholds
        self._advice = Settings(self.settings)
        self._streaks = {
            name: Streak(patience)
            for name, patience in {
                "constant_reward": limits.constant_reward_patience,
                "empty_loss": limits.empty_loss_patience,
                **dict.fromkeys(
                    ("zero_variance", "reward_saturated", "duplicate_responses", "truncated_responses"), limits.patience
                ),
                **dict.fromkeys(("reward_of_length", "entropy_collapse", "entropy_explosion"), limits.patience),
                "loss_oscillation": limits.patience,
                "grad_norm_spikes": 1,  # the window is their patience
            }.items()
        }
        self._kl = KlMonitor(low=limits.kl_low, high=limits.kl_high, patience=limits.kl_patience)
        self._kl_steps = Window(limits.kl_patience)
        self._rewards_seen: tuple[float, float] | None = None
        self._first_entropy, self._first_length = Baseline(limits.baseline_steps), Baseline(limits.baseline_steps)
        self._losses, self._first_amplitude = Window(limits.window), Baseline(1)
        self._grad_norms, self._spikes = Window(limits.window), Window(limits.window)

    def update(
        self,
        step: int,
        *,
        rewards: np.ndarray | None = None,
        group: np.ndarray | None = None,
        responses: Sequence[np.ndarray] | None = None,
        truncated: np.ndarray | None = None,
        entropy: float | None = None,
        kl: float | None = None,
        loss: float | None = None,
        empty_loss: bool | None = None,
        grad_norm: float | None = None,
    ) -> tuple[dict[str, float], list[HealthWarning]]:
        """Take in one step.

        Args:
            step: its number; warnings name it.
            rewards: (N,) of each response, as the reward function gave it; NaN where it was not scored.
            group: (N,) ids of the prompts, whole numbers or strings; those of one prompt are equal. None: each is
                alone.
            responses: the sampled token ids of each of the N responses.
            truncated: (N,) bool, whether the response ended at a length limit.
            entropy: mean per token in nats of the policy that sampled.
            kl: mean per token in nats between that policy and the reference.
            loss: the policy loss of the step.
            empty_loss: whether no token entered it: each was rejected, or its response could not be scored.
            grad_norm: the actor's gradient norm before clipping; not finite where it broke.

        Returns:
            The metrics, under `health/`; the warnings that this step makes due, mostly none.

        Raises:
            ValueError: the columns have not the same number of rows, or an id is neither a whole number nor a string.
        """
        columns = {"rewards": rewards, "group": group, "responses": responses, "truncated": truncated}
        rows = {name: len(column) for name, column in columns.items() if column is not None}
        if len(set(rows.values())) > 1:
            raise ValueError(f"The health monitors were given columns of different lengths: {rows}.")
        seen = _Step(step, {}, [])
        if group is None:
            group = np.arange(max(rows.values(), default=0))
        if rewards is not None:
            rewards = np.asarray(rewards, np.float64)
            self._watch_rewards(seen, rewards, group)
        if responses is not None:
            self._watch_duplicates(seen, responses, group)
            self._watch_lengths(seen, responses, rewards, group, truncated)
        if entropy is not None:
            self._watch_entropy(seen, entropy, rewards)
        if kl is not None:
            self._watch_kl(seen, kl)
        if loss is not None:
            self._watch_loss(seen, loss)
        if due := self._due(seen, "empty_loss", empty_loss):
            seen.warnings.append(HealthWarning("empty_loss", texts.empty_loss(*due, self._advice)))
        if grad_norm is not None:
            self._watch_grad_norm(seen, grad_norm)
        return seen.metrics, seen.warnings

    def _due(self, seen: _Step, name: str, holds: bool | None) -> tuple[int, int] | None:
        """For how many steps, and since which one, where this step makes the warning due."""
        since = self._streaks[name].update(seen.number, holds)
        return None if since is None else (seen.number - since + 1, since)

    def _watch_rewards(self, seen: _Step, rewards: np.ndarray, group: np.ndarray) -> None:
        limits, scored = self.thresholds, rewards[np.isfinite(rewards)]
        if not scored.size:
            return
        low, high = float(scored.min()), float(scored.max())
        before = self._rewards_seen or (low, high)
        least, best = self._rewards_seen = min(low, before[0]), max(high, before[1])
        common = seen.log("most_common_reward", of_responses.most_common_reward(rewards))
        equal, groups = of_responses.equal_groups(rewards, group)
        share = seen.log("zero_variance_groups", len(equal) / groups if groups else None)
        told = bool(groups) and least < best  # one reward alone is neither the best nor the worst
        all_best = seen.log("all_best_groups", float(np.sum(equal == best)) / groups if told else None)
        all_worst = seen.log("all_worst_groups", float(np.sum(equal == least)) / groups if told else None)
        at_best = of_responses.share_at(rewards, best) if least < best else None
        seen.log("rewards_at_maximum", at_best)
        constant = common == 1.0 if scored.size > 1 else None
        if due := self._due(seen, "constant_reward", constant):
            text = texts.constant_reward(low, *due, (least, best), self._advice)
            seen.warnings.append(HealthWarning("constant_reward", text))
        if constant:
            return  # which says it all
        if due := self._due(seen, "zero_variance", None if share is None else share >= limits.zero_variance):
            assert share is not None
            text = texts.zero_variance(share, all_best, all_worst, *due, self._advice)
            seen.warnings.append(HealthWarning("zero_variance", text))
        if due := self._due(seen, "reward_saturated", None if at_best is None else at_best >= limits.saturated):
            assert at_best is not None
            seen.warnings.append(HealthWarning("reward_saturated", texts.reward_saturated(at_best, best, *due)))

    def _watch_duplicates(self, seen: _Step, responses: Sequence[np.ndarray], group: np.ndarray) -> None:
        in_group = seen.log("duplicate_responses", of_responses.duplicate_responses(responses, group))
        seen.log("duplicate_responses_batch", of_responses.duplicate_responses(responses))
        common = seen.log("most_common_response", of_responses.most_common_response(responses, group))
        tokens = np.mean([len(response) for response in responses]) if len(responses) else 0.0
        if tokens < self.thresholds.short_response:
            in_group = None  # logged, not judged
        shares = [share for share in (in_group, common) if share is not None]
        if due := self._due(seen, "duplicate_responses", max(shares) >= self.thresholds.duplicates if shares else None):
            text = texts.duplicates(in_group, common, *due, self._advice)
            seen.warnings.append(HealthWarning("duplicate_responses", text))

    def _watch_lengths(
        self,
        seen: _Step,
        responses: Sequence[np.ndarray],
        rewards: np.ndarray | None,
        group: np.ndarray,
        truncated: np.ndarray | None,
    ) -> None:
        limits, lengths = self.thresholds, np.array([len(tokens) for tokens in responses], np.int64)
        if not lengths.size:
            return
        cut = None
        if truncated is not None:
            ended = np.asarray(truncated, bool)
            cut = seen.log("truncated_responses", float(ended.mean()))
            if due := self._due(seen, "truncated_responses", cut is not None and cut >= limits.truncated):
                assert cut is not None
                text = texts.truncated(cut, int(lengths[ended].max()), *due)
                seen.warnings.append(HealthWarning("truncated_responses", text))
        mean_length = float(lengths.mean())
        growth = seen.log("response_length_ratio", self._first_length.ratio(mean_length))
        if rewards is None:
            return
        over_batch = seen.log(
            "reward_length_correlation_batch", of_responses.reward_length_correlation(rewards, lengths)
        )
        within = seen.log("reward_length_correlation", of_responses.reward_length_correlation(rewards, lengths, group))
        alone = len(np.unique(group)) == len(group)
        correlation = over_batch if alone else within
        if correlation is None or growth is None:
            return
        longer = correlation >= limits.correlation and growth >= limits.longer
        # Responses that run into the limit are long and wrong: that they go is no fault of the reward.
        shorter = correlation <= -limits.correlation and growth <= limits.shorter and not (cut or 0.0) > 0.05
        if due := self._due(seen, "reward_of_length", longer or shorter):
            text = texts.reward_of_length(correlation, growth, mean_length, *due, self._advice)
            seen.warnings.append(HealthWarning("reward_of_length", text))

    def _watch_entropy(self, seen: _Step, entropy: float, rewards: np.ndarray | None) -> None:
        ratio = seen.log("entropy_ratio", self._first_entropy.ratio(entropy))
        low = None if ratio is None else ratio <= self.thresholds.entropy_low
        high = None if ratio is None else ratio >= self.thresholds.entropy_high
        if due := self._due(seen, "entropy_collapse", low):
            assert ratio is not None
            scored = None if rewards is None else rewards[np.isfinite(rewards)]
            reward = series.mean(scored) if scored is not None and scored.size else None
            text = texts.entropy_low(ratio, entropy, reward, *due, self._advice)
            seen.warnings.append(HealthWarning("entropy_collapse", text))
        if due := self._due(seen, "entropy_explosion", high):
            assert ratio is not None
            text = texts.entropy_high(ratio, entropy, *due, self._advice)
            seen.warnings.append(HealthWarning("entropy_explosion", text))

    def _watch_kl(self, seen: _Step, kl: float) -> None:
        seen.log("kl", kl)
        self._kl_steps.add(seen.number)
        if text := self._kl.update(kl):
            since, above = int(self._kl_steps.values[0]), not kl < self.thresholds.kl_low
            seen.warnings.append(HealthWarning("kl_out_of_range", texts.kl(text, since, above, self._advice)))

    def _watch_loss(self, seen: _Step, loss: float) -> None:
        if not np.isfinite(loss):
            return
        limits = self.thresholds
        self._losses.add(loss)
        if not self._losses.full:
            return
        turns = seen.log("pg_loss_sign_changes", series.sign_changes(self._losses.values))
        change = seen.log("pg_loss_amplitude", series.amplitude(self._losses.values))
        growth = seen.log("pg_loss_amplitude_ratio", self._first_amplitude.ratio(change))
        if turns is None or change is None:
            return
        back_and_forth = turns >= limits.sign_changes
        growing = growth is not None and growth >= limits.amplitude and turns > 0.5  # no trend
        if due := self._due(seen, "loss_oscillation", change >= limits.amplitude_floor and (back_and_forth or growing)):
            text = texts.loss_oscillation(turns, change, growth, limits.window, *due, self._advice)
            seen.warnings.append(HealthWarning("loss_oscillation", text))

    def _watch_grad_norm(self, seen: _Step, grad_norm: float) -> None:
        limits = self.thresholds
        usual = self._grad_norms.values
        times = series.spike(grad_norm, usual) if len(usual) >= 10 or not np.isfinite(grad_norm) else None
        seen.log("grad_norm_to_median", times)
        self._spikes.add(float(times is not None and times >= limits.spike))
        if np.isfinite(grad_norm):
            self._grad_norms.add(grad_norm)
        spikes = int(sum(self._spikes.values))
        if self._due(seen, "grad_norm_spikes", spikes >= limits.spikes):
            text = texts.grad_norm_spikes(grad_norm, spikes, limits.spike, limits.window, self._advice)
            seen.warnings.append(HealthWarning("grad_norm_spikes", text))

    def _parts(self) -> dict[str, Any]:
        return {
            "kl": self._kl,
            "kl_steps": self._kl_steps,
            "first_entropy": self._first_entropy,
            "first_length": self._first_length,
            "losses": self._losses,
            "first_amplitude": self._first_amplitude,
            "grad_norms": self._grad_norms,
            "spikes": self._spikes,
            **{f"streak/{name}": streak for name, streak in self._streaks.items()},
        }

    def state_dict(self) -> dict[str, Any]:
        """What the monitors remember, as JSON has it."""
        seen = None if self._rewards_seen is None else list(self._rewards_seen)
        return {"rewards_seen": seen, **{name: part.state_dict() for name, part in self._parts().items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` gave.

        Raises:
            ValueError: it is the state of something else.
        """
        parts = self._parts()
        if state.keys() != {"rewards_seen", *parts}:
            differing = sorted(state.keys() ^ {"rewards_seen", *parts})
            raise ValueError(
                f"This is not the state of these health monitors: {', '.join(differing)} stand in one of the two only. "
                "It was saved by another version; go on with the one that saved it."
            )
        seen = state["rewards_seen"]
        self._rewards_seen = None if seen is None else (float(seen[0]), float(seen[1]))
        for name, part in parts.items():
            part.load_state_dict(state[name])
