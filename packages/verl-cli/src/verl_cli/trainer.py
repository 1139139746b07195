"""The outer loop of a run: steps, validation, checkpoints, the run directory."""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from verl_cli import step_metrics
from verl_cli.build import Parts
from verl_cli.config import dump
from verl_cli.errors import InterruptedRunError, UserError
from verl_cli.phases import Step, run_phases
from verl_cli.ppo import PPO
from verl_cli.report import write_report
from verl_cli.tracking import trackers_for
from verl_cli.validation import SampleLog, ValidationResult, validate


def fit(parts: Parts) -> dict[str, Any]:
    """Train to the end and return what summary.json says; everything is written into the run directory."""
    run_dir = parts.run_dir
    run_dir.create(dump(parts.config))
    run = None
    try:
        run = _Run(parts)
        summary = run.fit()
        run_dir.write_summary(summary)
    except BaseException:
        with suppress(OSError, UserError):  # what went wrong must not be hidden by what cannot be tidied up
            if run is None or run.done == 0:
                run_dir.discard()
            else:
                write_report(run_dir.path)
        raise
    finally:
        parts.controller.shutdown()
    write_report(run_dir.path)
    return summary


class _Run:
    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.trainer = parts.config.trainer
        self.algorithm = PPO(parts.config, parts.controller, parts.workers, parts.scorer, parts.tokenizer)
        self.tracker = trackers_for(self.trainer.logger, parts.run_dir.path, parts.total_steps)
        self.samples = SampleLog(parts.run_dir.samples)
        self.accuracy: dict[int, float] = {}
        self.start = time.monotonic()
        self.done = 0

    def fit(self) -> dict[str, Any]:
        """Run every step; returns the summary."""
        try:
            if self.trainer.val_before_train or self.trainer.val_only:
                self.tracker.log(0, self.validate(0))
            if not self.trainer.val_only:
                self.steps()
        except KeyboardInterrupt as interrupt:
            saved = sorted(self.parts.run_dir.path.glob("global_step_*"))
            kept = (
                f"{self.parts.run_dir.path} holds the metrics up to there and {len(saved)} checkpoints."
                if self.done
                else "Nothing is kept of it."
            )
            raise InterruptedRunError(
                f"Interrupted after step {self.done} of {self.parts.total_steps}; a step under way is lost. {kept}"
            ) from interrupt
        finally:
            self.tracker.close()
        before, after = self.accuracy.get(0), self.accuracy.get(self.done)
        return {
            "val_accuracy_before": before,
            "val_accuracy_after": after,
            "seconds": round(time.monotonic() - self.start, 2),
            "seed": self.trainer.seed,
            "steps": self.done,
        }

    def steps(self) -> None:
        """Train, and validate and save when due."""
        phases = self.algorithm.phases()
        epochs = -(-self.parts.total_steps // self.parts.loader.steps_per_epoch)
        for number, (epoch, prompts) in enumerate(self.parts.loader.batches(epochs), start=1):
            step = Step(number=number, epoch=epoch, prompts=prompts)
            start = time.perf_counter()
            run_phases(phases, step)
            step.seconds["step"] = time.perf_counter() - start
            metrics = step.metrics | step_metrics.of_time(step, self.trainer.nnodes * self.trainer.n_gpus_per_node)
            self.done = number
            try:
                if self.due(self.trainer.save_freq):
                    metrics |= self.save()
                if self.due(self.trainer.test_freq):
                    metrics |= self.validate(number)
            finally:  # the step is done, whatever becomes of saving it
                self.tracker.log(number, metrics)
            if number == self.parts.total_steps:
                break

    def due(self, frequency: int) -> bool:
        """Whether something happens after the current step: every `frequency` steps and after the last one."""
        return self.done == self.parts.total_steps or (frequency > 0 and self.done % frequency == 0)

    def validate(self, step: int) -> dict[str, float]:
        """Score the validation prompts with the rollout's current weights."""
        parts, start = self.parts, time.perf_counter()
        result: ValidationResult = validate(
            parts.config, parts.validation_prompts, parts.workers["rollout"], parts.scorer, parts.tokenizer
        )
        self.accuracy[step] = result.accuracy
        self.samples.write(step, result)
        for sample in result.samples[: self.trainer.log_val_generations]:
            print(
                f"step {step}: {sample['prompt']!r} -> {sample['generation']!r} "
                f"(ground truth {sample['ground_truth']!r}, score {sample['score']:g})"
            )
        return result.metrics | {"timing_s/testing": time.perf_counter() - start}

    def save(self) -> dict[str, float]:
        """Write a complete checkpoint: actor and critic, also as Hugging Face folders, and the trainer's own state."""
        start = time.perf_counter()

        def write(folder: Path) -> None:
            for role in {"actor", "critic"} & self.parts.workers.keys():
                self.parts.workers[role].call("save", directory=folder / role)
                self.parts.workers[role].call("export", directory=folder / role / "huggingface")
            (folder / "trainer_state.json").write_text(json.dumps(self.state(), indent=2) + "\n", encoding="utf-8")

        self.parts.run_dir.save_checkpoint(self.done, write)
        return {"timing_s/save_checkpoint": time.perf_counter() - start}

    def state(self) -> Mapping[str, Any]:
        """What the trainer itself must remember."""
        return {
            "step": self.done,
            "kl_coef": self.algorithm.kl_controller.coef,
            "loader": self.parts.loader.state_dict(),
        }
