"""The outer loop of a run: steps, validation, checkpoints, the run directory."""

import json
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from verl_data import Prompt

from verl_cli import step_metrics
from verl_cli.build import Parts
from verl_cli.config import RunConfig, dump
from verl_cli.config.keys import flatten
from verl_cli.errors import InterruptedRunError, UserError
from verl_cli.evaluation.validation import SampleLog, ValidationResult, validate
from verl_cli.failures import during, record_failure
from verl_cli.health import Health
from verl_cli.phases import Step, run_phases
from verl_cli.ppo import PPO
from verl_cli.report import REPORT_FILE, write_report
from verl_cli.run import checkpoints
from verl_cli.run.checkpoints import Checkpoint
from verl_cli.run.copies import Copies
from verl_cli.run.resume import STATE, STATE_FORMAT, find_start
from verl_cli.run.run_dir import RunDir
from verl_cli.run.same_run import content
from verl_cli.system.stops import raise_if_noted
from verl_cli.tracking import cut_rows, last_step, read_rows, trackers_for


def fit(parts: Parts) -> dict[str, Any]:
    """Train to the end and return what summary.json says; everything is written into the run directory."""
    run_dir = parts.run_dir
    with run_dir.lock():
        if find_start(parts.config, run_dir) != parts.start:
            raise UserError(f"Another run wrote to {run_dir.path} while this one was starting. Run the command again.")
        run = None
        try:
            checkpoint = parts.start.prepare(run_dir, dump(parts.config))
            run = _Run(parts, checkpoint)
            summary = run.fit()
            run_dir.write_summary(summary)
        except BaseException as error:
            record_failure(run_dir.path, error, config=parts.config)
            with suppress(OSError, UserError):  # what went wrong must not be hidden by what cannot be tidied up
                if run is None or run.done == parts.start.step:
                    _forget(parts)
                else:
                    write_report(run_dir.path)
            raise
        finally:
            parts.scorer.close()
            parts.controller.shutdown()
        write_report(run_dir.path)
        run.copy()
    return summary


def _forget(parts: Parts) -> None:
    """Leave the directory free for the same command, mended, where this process began a run and did no step of it."""
    run_dir = parts.run_dir
    if not parts.start.own:
        for fetched in run_dir.checkpoints():
            checkpoints.remove(fetched.path)
    if not run_dir.checkpoints():
        run_dir.discard()


def complete_records(config: RunConfig) -> None:
    """Write the report of a finished run, and copy its records, where a kill at its very end prevented that."""
    run_dir = RunDir(Path(config.trainer.default_local_dir).expanduser().absolute())
    with run_dir.lock():
        if not (run_dir.path / REPORT_FILE).exists():
            write_report(run_dir.path)
        copies = None if config.trainer.default_hdfs_dir is None else Copies(config.trainer.default_hdfs_dir)
        if copies is not None and copies.read_text("summary.json") != run_dir.summary.read_text("utf-8"):
            copies.put_files((*run_dir.records, run_dir.path / REPORT_FILE))


class _Run:
    def __init__(self, parts: Parts, checkpoint: Path | None) -> None:
        self.parts = parts
        self.trainer = parts.config.trainer
        self.algorithm = PPO(parts.config, parts.controller, parts.workers, parts.scorer, parts.tokenizer)
        self.tracker = trackers_for(
            self.trainer,
            parts.run_dir.path,
            parts.total_steps,
            flatten(parts.config),
            resumed_from=None if checkpoint is None else parts.start.step,
        )
        self.samples = SampleLog(parts.run_dir.samples)
        self.health = Health(parts.config, parts.run_dir.warnings)
        self.copies = None if self.trainer.default_hdfs_dir is None else Copies(self.trainer.default_hdfs_dir)
        self.devices = self.trainer.nnodes * self.trainer.n_gpus_per_node
        self.batches = parts.loader.batches()
        self.epoch = 0
        self.drawn: list[Prompt] = []
        self.checkpoint = checkpoint
        self.done = parts.start.step
        self.content = content(parts.config)
        self.accuracy: dict[int, float | None] = {0: parts.start.state.get("val_accuracy_before")}
        self.start = time.monotonic() - parts.start.state.get("seconds", 0.0)

    def fit(self) -> dict[str, Any]:
        """Run every step that is left; returns the summary."""
        try:
            if self.checkpoint is not None:
                self.restore(self.checkpoint)
            elif self.trainer.val_before_train or self.trainer.val_only:
                self.tracker.log(0, self.validate())
            if not self.trainer.val_only:
                self.steps()
        except KeyboardInterrupt as interrupt:
            raise self.interrupted() from interrupt
        finally:
            self.tracker.close()
        return {
            "val_accuracy_before": self.accuracy[0],
            "val_accuracy_after": self.accuracy.get(self.done),
            "seconds": round(time.monotonic() - self.start, 2),
            "throughput": step_metrics.average_throughput(
                (row for _, row in read_rows(self.parts.run_dir.metrics)), self.devices
            ),
            "seed": self.trainer.seed,
            "steps": self.done,
        }

    def restore(self, checkpoint: Path) -> None:
        """Bring everything to where it was when the checkpoint was written, and end that step if it had not ended."""
        for role in self.saved_roles():
            self.parts.workers[role].call("load", directory=checkpoint / role)
        self.algorithm.kl_controller.coef = self.parts.start.state["kl_coef"]
        self.health.load_state_dict(self.parts.start.state.get("health"))
        self.parts.controller.sync_weights(self.parts.workers["actor"], self.parts.workers["rollout"], self.done)
        run_dir = self.parts.run_dir
        if last_step(run_dir.metrics) != self.done or self.done == self.parts.total_steps:
            for path in run_dir.rows:
                cut_rows(path, self.done - 1)
            metrics = dict(self.parts.start.state["metrics"])
            if self.done == self.parts.total_steps and not run_dir.checkpoints():  # a branch of no further step
                metrics |= self.save(metrics)
            self.finish_step(metrics)

    def steps(self) -> None:
        """Train, and save and validate when due."""
        phases = self.algorithm.phases()
        loader = self.parts.loader
        for number in range(self.done + 1, self.parts.total_steps + 1):
            self.drawn = []
            prompts = self.draw()
            step = Step(number, self.epoch, prompts, draw=self.draw, batches_per_epoch=loader.steps_per_epoch)
            start = time.perf_counter()
            run_phases(phases, step)
            step.seconds["step"] = time.perf_counter() - start
            metrics = step.metrics | step_metrics.of_data(self.drawn, loader)
            metrics |= step_metrics.of_time(step, self.devices)
            metrics |= self.health.look(step)
            self.done = number
            if self.due(self.trainer.save_freq):
                try:
                    metrics |= self.save(metrics)
                except BaseException:  # the step is done, whatever becomes of saving it
                    self.health.tell(number)
                    self.tracker.log(number, metrics)
                    raise
            self.finish_step(metrics)

    def draw(self) -> list[Prompt]:
        """Take the next batch of prompts from the data; dynamic sampling takes several for one step."""
        self.epoch, prompts = next(self.batches)
        self.drawn += prompts
        return prompts

    def finish_step(self, metrics: Mapping[str, float]) -> None:
        """Validate if due, warn and log. The step's checkpoint is written before: it holds metrics and warnings."""
        validation: Mapping[str, float] = {}
        try:
            if self.due(self.trainer.test_freq):
                validation = self.validate()
        finally:
            self.health.tell(self.done)
            self.tracker.log(self.done, {**metrics, **validation})

    def due(self, frequency: int) -> bool:
        """Whether something happens after the current step: every `frequency` steps and after the last one."""
        return self.done == self.parts.total_steps or (frequency > 0 and self.done % frequency == 0)

    def validate(self) -> dict[str, float]:
        """Score the validation prompts with the rollout's current weights."""
        parts, start = self.parts, time.perf_counter()
        with during("testing", self.done):
            result: ValidationResult = validate(
                parts.config, parts.validation_prompts, parts.workers["rollout"], parts.scorer, parts.tokenizer
            )
            raise_if_noted()
        self.accuracy[self.done] = result.accuracy
        self.samples.write(self.done, result)
        if self.trainer.log_val_generations:
            self.tracker.log_samples(self.done, result.samples[: self.trainer.log_val_generations])
        return result.metrics | {"timing_s/testing": time.perf_counter() - start}

    def save(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Write a complete checkpoint: actor and critic, also as Hugging Face folders, and the trainer's own state."""
        start = time.perf_counter()

        def write(folder: Path) -> None:
            for role in self.saved_roles():
                self.parts.workers[role].call("save", directory=folder / role)
                self.parts.workers[role].call("export", directory=folder / role / "huggingface")
            (folder / STATE).write_text(json.dumps(self.state(metrics), indent=2) + "\n", encoding="utf-8")

        with during("save_checkpoint", self.done):
            saved = self.parts.run_dir.save_checkpoint(self.done, write, keep=self.trainer.max_actor_ckpt_to_keep)
        copied = self.copy(saved)
        return copied | {"timing_s/save_checkpoint": time.perf_counter() - start}

    def copy(self, checkpoint: Checkpoint | None = None) -> dict[str, float]:
        """Copy a checkpoint and the records to trainer.default_hdfs_dir; what fails there does not stop the run."""
        if self.copies is None:
            return {}
        run_dir = self.parts.run_dir
        try:
            self.copies.put_files((*run_dir.records, run_dir.path / REPORT_FILE))
            if checkpoint is not None:
                self.copies.put_checkpoint(checkpoint)
        except Exception as error:  # noqa: BLE001 (every file system raises its own)
            print(
                f"Step {self.done} could not be copied to {self.copies.url} ({type(error).__name__}: {error}). The "
                f"run goes on; what it wrote is whole in {run_dir.path}.",
                file=sys.stderr,
            )
            return {"checkpoint/copy_failed": 1.0}
        return {"checkpoint/copy_failed": 0.0}

    def saved_roles(self) -> list[str]:
        """The roles that learn."""
        return [role for role in ("actor", "critic") if role in self.parts.workers]

    def state(self, metrics: Mapping[str, float]) -> Mapping[str, Any]:
        """What the trainer itself must remember."""
        return {
            "format": STATE_FORMAT,
            "step": self.done,
            "kl_coef": self.algorithm.kl_controller.coef,
            "health": self.health.state_dict(),
            "loader": self.parts.loader.state_dict(),
            "val_accuracy_before": self.accuracy[0],
            "seconds": time.monotonic() - self.start,
            "metrics": dict(metrics),
            "content": self.content,
        }

    def interrupted(self) -> InterruptedRunError:
        """What the user who stopped the run should know."""
        run_dir = self.parts.run_dir
        saved = run_dir.checkpoints()
        kept = f"{run_dir.path} holds the metrics up to there and {len(saved)} checkpoints"
        if saved:
            kept += f"; the same command goes on from step {saved[-1].step}"
        return InterruptedRunError(
            f"Interrupted after step {self.done} of {self.parts.total_steps}; a step under way is lost. "
            f"{kept if self.done else 'Nothing is kept of it'}."
        )
