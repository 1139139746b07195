"""The health monitors of verl-algos in a run: fed once a step, heard on standard error and in `warnings.jsonl`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from verl_algos import kl
from verl_algos.health import HealthMonitor, HealthWarning
from verl_data import PackedBatch

from verl_cli.columns import tensors
from verl_cli.config import RunConfig
from verl_cli.config.keys import flatten
from verl_cli.phases import Step
from verl_cli.tracking.interface import say


class Health:
    """Monitors of one run.

    A step is looked at before its checkpoint is written, so that the checkpoint knows what the monitors know after it.
    What they had to say is told when the step ends; until then the checkpoint holds it, as it holds the metrics.
    """

    def __init__(self, config: RunConfig, warnings: Path) -> None:
        self._monitor = HealthMonitor(settings=flatten(config))
        self._path = warnings
        self._speaks = config.trainer.health_warnings
        self._ends_at_limit = config.actor_rollout_ref.rollout.ignore_eos
        self._untold: list[HealthWarning] = []

    def look(self, step: Step) -> dict[str, float]:
        """The metrics of a step that is done; its warnings are told by `tell`."""
        batch, metrics = step.batch, step.metrics
        trained = "actor/grad_norm" in metrics  # a policy that is not trained yet has no KL to judge
        found, self._untold = self._monitor.update(
            step.number,
            rewards=batch["reward"],
            group=batch["group"],
            responses=_responses(batch),
            truncated=None
            if self._ends_at_limit  # every response is to end there
            else np.array([reason == "length" for reason in batch["finish_reason"]], dtype=bool),
            entropy=metrics.get("actor/entropy"),
            kl=_kl_to_reference(batch) if trained else None,
            loss=metrics.get("actor/pg_loss"),
            empty_loss="actor/pg_loss" not in metrics if trained else None,
            grad_norm=metrics.get("actor/grad_norm"),
        )
        return found

    def tell(self, step: int) -> None:
        """Print the step's warnings, a paragraph each, and record them."""
        untold, self._untold = self._untold, []
        if not self._speaks or not untold:
            return
        for warning in untold:
            say(f"Step {step}, warning {warning.name}: {warning.message}")
        try:
            _append(self._path, "".join(_line(step, warning) for warning in untold).encode())
        except OSError as error:
            say(f"The warnings of step {step} could not be recorded in {self._path}: {error}. Training goes on.")

    def state_dict(self) -> dict[str, Any]:
        """What the monitors remember, and what is not told yet."""
        untold = [{"name": warning.name, "message": warning.message} for warning in self._untold]
        return {"monitor": self._monitor.state_dict(), "untold": untold}

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Take up a checkpoint's state; None, of a checkpoint older than the monitors, lets them begin anew."""
        if state is None:
            return
        try:
            self._monitor.load_state_dict(state["monitor"])
        except ValueError as error:
            say(f"The health monitors begin anew, as if the run began here. {error}")
        self._untold = [HealthWarning(**warning) for warning in state["untold"]]


def _line(step: int, warning: HealthWarning) -> str:
    row = {"step": step, "name": warning.name, "message": warning.message}
    return json.dumps(row, ensure_ascii=False) + "\n"


def _append(path: Path, lines: bytes) -> None:
    """Append whole lines; where that fails, the file is left as it was before."""
    with path.open("ab", buffering=0) as file:
        end = file.tell()
        try:
            while lines:
                lines = lines[file.write(lines) :]
        except OSError:
            file.truncate(end)
            raise


def _responses(batch: PackedBatch) -> list[np.ndarray]:
    """The sampled tokens of each response."""
    rows = zip(batch.per_sequence("input_ids"), batch.per_sequence("sampled_mask"), strict=True)
    return [ids[mask] for ids, mask in rows]


def _kl_to_reference(batch: PackedBatch) -> float | None:
    """Mean over the sampled tokens of k3, whatever estimator and aggregation the run's own KL term has."""
    if "ref_logprobs" not in batch or "old_logprobs" not in batch:
        return None
    columns = tensors(batch, "old_logprobs", "ref_logprobs", mask="sampled_mask")
    per_token = kl.penalty("k3", columns["old_logprobs"], columns["ref_logprobs"])[columns["mask"]]
    return float(per_token.double().mean()) if per_token.numel() else None
