"""The MLflow logger."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from verl_cli.tracking.interface import RunInfo
from verl_cli.tracking.run_ids import RunIds

_SERVICE = "mlflow"
_KEY_CHARACTERS = 250
_VALUE_CHARACTERS = 6000
_METRICS_AT_ONCE, _PARAMS_AT_ONCE = 1000, 100


class MlflowTracker:
    """One run of an MLflow experiment: params, metrics by step, validation samples as JSON artifacts.

    Environment: MLFLOW_TRACKING_URI, by default a SQLite file in `mlflow/` of the run directory (`mlflow ui
    --backend-store-uri sqlite:///RUN/mlflow/mlflow.db` shows it); MLFLOW_RUN_ID, a run to log into; and everything else
    that mlflow reads itself.
    """

    def __init__(self, run: RunInfo, ids: RunIds) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        self._metric, self._errors = Metric, MlflowException
        artifacts = None
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if not uri:
            folder = (run.directory / "mlflow").absolute()
            folder.mkdir(parents=True, exist_ok=True)
            uri, artifacts = f"sqlite:///{folder / 'mlflow.db'}", (folder / "artifacts").as_uri()
        self._client: Any = MlflowClient(tracking_uri=uri)
        self._names = MetricNames()
        known = os.environ.get("MLFLOW_RUN_ID") or ids.id(_SERVICE)
        self._run_id = "" if known is None else self._reopened(known)
        self._has_history = bool(self._run_id)
        self._steps: dict[str, set[int]] = {}
        if not self._run_id:
            experiment = self._experiment(run.project, artifacts)
            self._run_id = self._client.create_run(experiment, run_name=run.name).info.run_id
            params = [Param(key, value) for key, value in _params(run.config)]
            for start in range(0, len(params), _PARAMS_AT_ONCE):
                self._client.log_batch(self._run_id, params=params[start : start + _PARAMS_AT_ONCE])
        ids.write(_SERVICE, self._run_id)
        for step, metrics in run.earlier:
            self.log(step, metrics)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log the metrics of a step that the run lacks: MLflow would show a step that is logged again twice."""
        now = time.time_ns() // 1_000_000
        keys = {self._names.clean(name): value for name, value in metrics.items()}
        values = [self._metric(key, value, now, step) for key, value in keys.items() if step not in self._logged(key)]
        for start in range(0, len(values), _METRICS_AT_ONCE):
            self._client.log_batch(self._run_id, metrics=values[start : start + _METRICS_AT_ONCE])
        for metric in values:
            self._logged(metric.key).add(step)

    def log_samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Write the samples as an artifact of the step."""
        text = json.dumps(list(samples), ensure_ascii=False, indent=2, default=str)
        self._client.log_text(self._run_id, text, f"val_generations/step_{step}.json")

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self._run_id)

    def _reopened(self, run_id: str) -> str:
        """The id of an earlier run, which counts as running again; nothing if the store does not have it."""
        try:
            self._client.update_run(run_id, status="RUNNING")
        except self._errors as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return ""
        return run_id

    def _experiment(self, name: str, artifacts: str | None) -> str:
        """The id of the project's experiment, which is made if it is missing."""
        if (found := self._client.get_experiment_by_name(name)) is None:
            try:
                return str(self._client.create_experiment(name, artifact_location=artifacts))
            except self._errors:
                # Another run of the project may have made it meanwhile.
                if (found := self._client.get_experiment_by_name(name)) is None:
                    raise
        return str(found.experiment_id)

    def _logged(self, key: str) -> set[int]:
        """The steps of which the store has this metric."""
        if key not in self._steps:
            history = self._client.get_metric_history(self._run_id, key) if self._has_history else ()
            self._steps[key] = {int(metric.step) for metric in history}
        return self._steps[key]


class MetricNames:
    """Metric names as MLflow takes them: letters, digits, ``_ - . : /`` and spaces, in a path that stays what it is."""

    def __init__(self) -> None:
        self._clean: dict[str, str] = {}

    def clean(self, name: str) -> str:
        """The name to log under: `@` is written `_at_`; two names never become one."""
        if name not in self._clean:
            text = re.sub(r"[^\w.\- :/]", "_", name.replace("@", "_at_"))
            parts = [part if part.strip(".") else f"_{part}" for part in text.split("/")]
            text = "/".join(parts)[:_KEY_CHARACTERS].rstrip("/.")
            text = f"_{text}"[:_KEY_CHARACTERS] if text.startswith("..") else text
            taken = set(self._clean.values())
            number = 2
            unique = text
            while unique in taken:
                unique = f"{text[: _KEY_CHARACTERS - 8]}_{number}"
                number += 1
            self._clean[name] = unique
        return self._clean[name]


def _params(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The configuration as params: text of limited length."""
    for key, value in config.items():
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        yield key[:_KEY_CHARACTERS], text[:_VALUE_CHARACTERS]
