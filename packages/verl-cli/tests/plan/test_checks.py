"""What stands in a run's way outside its configuration."""

import fcntl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from verl_cli.config import RunConfig, resolve
from verl_cli.plan.checks import (
    Disk,
    context_warning,
    disk,
    disk_problem,
    gib,
    look_at_run_dir,
    memory_verdict,
    vocabulary_problem,
)
from verl_cli.plan.device import DeviceInfo
from verl_cli.plan.memory import Footprint
from verl_cli.plan.model_size import Architecture, count_weights, decoder_shapes
from verl_cli.plan.phases import MemoryPlan, PhaseMemory, Sizes

Overrides = Callable[..., list[str]]
GIB = 1 << 30
ARCHITECTURE = Architecture("llama", 2, 8, 16, 2, 2, 4, 10, tied=True)
SIZES = Sizes(ARCHITECTURE, count_weights(decoder_shapes(ARCHITECTURE), "config.json"), 64)


def config(overrides: Overrides, **changes: object) -> RunConfig:
    return resolve(overrides(**changes)).config


def test_a_free_directory_starts_at_the_beginning(overrides: Overrides, tmp_path: Path) -> None:
    found = look_at_run_dir(config(overrides), 2)
    assert (found.problems, found.start.step if found.start else None) == ([], 0)
    assert not (tmp_path / "run").exists()


def test_a_directory_in_use_is_a_problem_and_stays_as_it_is(overrides: Overrides, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    lock = tmp_path / "run" / ".lock"
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        (problem,) = look_at_run_dir(config(overrides), 2).problems
        assert "is in use" in problem
    assert look_at_run_dir(config(overrides), 2).problems == []
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


def test_another_run_is_not_overwritten(overrides: Overrides, tmp_path: Path) -> None:
    (tmp_path / "run" / "global_step_1").mkdir(parents=True)
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    (problem,) = look_at_run_dir(config(overrides, trainer__resume_mode="disable"), 2).problems
    assert "already holds a run" in problem


def test_a_place_that_cannot_be_written_to_is_a_problem(overrides: Overrides, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (problem,) = look_at_run_dir(config(overrides, trainer__default_local_dir=tmp_path / "file" / "run"), 2).problems
    assert "cannot be made" in problem


def test_checkpoints_by_hand(overrides: Overrides, tmp_path: Path) -> None:
    # Parameters and two moments, and the parameters again as a Hugging Face folder: 16 bytes each in float32.
    total = SIZES.weights.total
    run_dir = str(tmp_path / "run")
    assert disk(config(overrides), SIZES, None, 5, run_dir).checkpoint_bytes == 16 * total
    both = disk(config(overrides), SIZES, SIZES, 5, run_dir)
    assert (both.checkpoint_bytes, both.checkpoints) == (32 * total, 5)
    rotating = disk(config(overrides, trainer__max_actor_ckpt_to_keep=2), SIZES, SIZES, 5, run_dir)
    assert rotating.checkpoints == 3  # the new one is complete before the oldest goes
    assert both.free_bytes > 0


def test_checkpoints_that_do_not_fit_are_a_problem() -> None:
    problem = disk_problem(Disk(3 * GIB, 4, 11 * GIB), "run")
    assert problem is not None
    assert "4 checkpoints of 3.0 GiB each need 12.0 GiB, and 11.0 GiB are free" in problem
    assert disk_problem(Disk(3 * GIB, 4, 12 * GIB), "run") is None


def test_a_model_shorter_than_prompt_and_response(overrides: Overrides) -> None:
    run = config(overrides, data__max_prompt_length=40, data__max_response_length=30)
    problem = context_warning(run, 64)
    assert problem is not None and "has 64 positions" in problem and "= 70 tokens" in problem
    assert "data.max_response_length to at most 24" in problem
    assert "data.max_response_length to at most 40 together" in (context_warning(run, 40) or "")
    assert context_warning(run, 70) is None and context_warning(run, None) is None


def test_a_tokenizer_larger_than_the_vocabulary() -> None:
    assert vocabulary_problem(100, 100) is None and vocabulary_problem(None, 100) is None
    problem = vocabulary_problem(101, 100)
    assert problem is not None and "101 tokens" in problem


def plan(resident: int, peak: int) -> MemoryPlan:
    held = Footprint(parameters=resident)
    return MemoryPlan({"actor": held}, [PhaseMemory("update_actor", "actor", "logits", Footprint(activations=peak))])


def test_too_much_for_a_gpu_is_a_problem_with_the_key_to_lower() -> None:
    gpu = DeviceInfo("cuda", "NVIDIA H200", 140 * GIB, 20 * GIB, "")
    assert list(memory_verdict(plan(10 * GIB, 100 * GIB), gpu)) == []
    ((tight, text),) = memory_verdict(plan(10 * GIB, 115 * GIB), gpu)
    assert not tight and "that is tight" in text
    ((wrong, text),) = memory_verdict(plan(10 * GIB, 130 * GIB), gpu)
    assert wrong and "update_actor needs about 130 GiB" in text and "20.0 GiB of it are in use" in text
    assert "actor_rollout_ref.actor.ppo_max_token_len_per_gpu" in text
    ((wrong, text),) = memory_verdict(plan(125 * GIB, 130 * GIB), gpu)
    assert wrong and "models alone need more" in text


def test_a_cpu_may_swap_and_an_unknown_size_says_nothing() -> None:
    cpu = DeviceInfo("cpu", "CPU", 16 * GIB, None, "")
    ((wrong, _),) = memory_verdict(plan(GIB, 20 * GIB), cpu)
    assert not wrong
    assert list(memory_verdict(plan(GIB, 20 * GIB), replace(cpu, memory_bytes=None))) == []


def test_bytes_in_words() -> None:
    assert [gib(size) for size in (None, 1 << 19, 3 * GIB, 250 * GIB)] == ["unknown", "0.5 MiB", "3.0 GiB", "250 GiB"]
