"""Is the memory that `verl-cli plan` predicts what a step really takes? Measured on a GPU, phase by phase.

    uv run python benchmarks/memory.py [--check] [--case NAME ...] [--small]

Writes a Qwen2 model of random weights (0.5B; a small one with --small) and prompts of varied length into a temporary
folder, runs training steps with the local controller, and compares the peak of every phase with the plan's. Prints one
JSON object. With --check the exit code is the verdict: in every case each phase, and so the overall peak, is within
20 % of what was measured. Without a GPU nothing can be measured: it says so and exits with 2.
"""

import argparse
import gc
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

TOLERANCE = 0.2
STEPS = 2
VOCABULARY = 151_936
#: Qwen2.5-0.5B's sizes, and smaller ones.
SIZES: dict[str, dict[str, Any]] = {
    "0.5B": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
    "small": {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 4},
}
KV_HEADS = 2
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"

#: What differs between the cases: many short sequences or few long ones, with and without gradient checkpointing, with
#: a critic (PPO) or without (GRPO), micro-batches by tokens or by sequences.
CASES: dict[str, dict[str, Any]] = {
    "short, PPO": {
        "data.train_batch_size": 128,
        "data.max_prompt_length": 64,
        "data.max_response_length": 96,
        f"{ROLLOUT}.n": 4,
        f"{ROLLOUT}.max_num_seqs": 512,
        f"{ACTOR}.ppo_mini_batch_size": 64,
        f"{ACTOR}.ppo_max_token_len_per_gpu": 16384,
        "critic.ppo_max_token_len_per_gpu": 32768,
        "actor_rollout_ref.model.enable_gradient_checkpointing": "true",
    },
    "short, GRPO, kept activations": {
        "preset": "grpo",
        "data.train_batch_size": 32,
        "data.max_prompt_length": 64,
        "data.max_response_length": 96,
        f"{ROLLOUT}.n": 8,
        f"{ACTOR}.ppo_mini_batch_size": 16,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": 64,
        f"{ACTOR}.entropy_coeff": 0.01,
        "actor_rollout_ref.model.enable_gradient_checkpointing": "false",
    },
    "long, PPO, kept activations": {
        "data.train_batch_size": 8,
        "data.max_prompt_length": 1024,
        "data.max_response_length": 512,
        f"{ROLLOUT}.n": 2,
        f"{ACTOR}.ppo_mini_batch_size": 4,
        f"{ACTOR}.ppo_max_token_len_per_gpu": 8192,
        "critic.ppo_micro_batch_size_per_gpu": 2,
        "actor_rollout_ref.model.enable_gradient_checkpointing": "false",
    },
    "long, GRPO": {
        "preset": "grpo",
        "data.train_batch_size": 8,
        "data.max_prompt_length": 512,
        "data.max_response_length": 512,
        f"{ROLLOUT}.n": 4,
        f"{ROLLOUT}.top_p": 0.95,
        f"{ROLLOUT}.temperature": 0.9,
        f"{ACTOR}.ppo_mini_batch_size": 8,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": 32,
        "actor_rollout_ref.model.enable_gradient_checkpointing": "true",
    },
}


def main() -> int:
    """Measure the cases and print how far the plan is from each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 unless every phase is within 20 %%")
    parser.add_argument("--case", action="append", choices=list(CASES), help="only this case; may be repeated")
    parser.add_argument("--small", action="store_true", help="a small model, for a GPU of a few GiB")
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("There is no GPU here that torch can use, so no memory can be measured.", file=sys.stderr)
        return 2
    names: list[str] = options.case or list(CASES)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        write_model(model, SIZES["small" if options.small else "0.5B"])
        cases = {name: measure(Path(folder) / f"case-{i}", model, dict(CASES[name])) for i, name in enumerate(names)}
    holds = all(abs(ratio - 1) <= TOLERANCE for case in cases.values() for ratio in case["plan_over_measured"].values())
    device = {"name": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(json.dumps({"device": device, "tolerance": TOLERANCE, "cases": cases, "holds": holds}, indent=2))
    return 1 if options.check and not holds else 0


def write_model(folder: Path, sizes: dict[str, Any]) -> None:
    """Write a model of random weights in bfloat16, with a tokenizer of single characters."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from verl_cli.quickstart.model import character_tokenizer

    tokenizer = character_tokenizer("0123456789+=")
    config = Qwen2Config(
        **sizes,
        vocab_size=VOCABULARY,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = Qwen2ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_data(folder: Path, longest: int) -> None:
    """Write prompts whose lengths spread from half of `longest` to all of it, and a reward that differs."""
    from verl_data import write_rows

    draw = random.Random(1)
    rows = [
        {
            "data_source": "benchmark",
            "prompt": [{"role": "user", "content": "1" * draw.randint(longest // 2, longest)}],
            "reward_model": {"style": "rule", "ground_truth": str(i)},
            "extra_info": {"index": i},
        }
        for i in range(256)
    ]
    write_rows(rows, folder / "train.parquet")
    write_rows(rows[:2], folder / "validation.parquet")
    reward = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
    (folder / "reward.py").write_text(reward + "    return sum(map(ord, solution_str)) % 7 / 7\n")


def measure(folder: Path, model: Path, case: dict[str, Any]) -> dict[str, Any]:
    """Run a case; the peak of every phase in GiB, as planned and as measured."""
    import torch
    from verl_cli.build import build
    from verl_cli.config import resolve
    from verl_cli.phases import Step
    from verl_cli.plan import make_plan
    from verl_cli.ppo import PPO

    folder.mkdir()
    write_data(folder, case["data.max_prompt_length"])
    preset = case.pop("preset", "ppo")
    keys = case | {
        "data.train_files": folder / "train.parquet",
        "data.val_files": folder / "validation.parquet",
        "actor_rollout_ref.model.path": model,
        f"{ROLLOUT}.ignore_eos": "true",
        "reward.custom_reward_function.path": folder / "reward.py",
        "trainer.total_training_steps": STEPS,
        "trainer.device": "cuda",
        "trainer.default_local_dir": folder / "run",
    }
    resolved = resolve([f"{key}={value}" for key, value in keys.items()], preset=preset)
    plan = make_plan(resolved)
    assert plan.memory is not None, plan.problems
    planned = {phase.phase: phase.held.total for phase in plan.memory.phases}

    parts = build(resolved.config)
    phases = PPO(parts.config, parts.controller, parts.workers, parts.scorer, parts.tokenizer).phases()
    measured: dict[str, int] = {}
    for number, (epoch, prompts) in zip(range(1, STEPS + 1), parts.loader.batches(), strict=False):
        step = Step(number=number, epoch=epoch, prompts=prompts)
        for phase in phases:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            phase.run(step)
            torch.cuda.synchronize()
            if phase.name in planned:
                measured[phase.name] = max(measured.get(phase.name, 0), torch.cuda.max_memory_allocated())
    resident = torch.cuda.memory_allocated()
    parts.controller.shutdown()
    del parts, phases, phase, step
    gc.collect()
    torch.cuda.empty_cache()

    ratios = {name: planned[name] / measured[name] for name in planned}
    return {
        "plan_gib": _gib(planned) | {"peak": _round(max(planned.values()))},
        "measured_gib": _gib(measured) | {"peak": _round(max(measured.values()))},
        "plan_over_measured": {name: round(ratio, 3) for name, ratio in ratios.items()}
        | {"peak": round(max(planned.values()) / max(measured.values()), 3)},
        "at": {phase.phase: phase.stage for phase in plan.memory.phases},
        "resident_gib": {
            "plan": _round(sum(held.total for held in plan.memory.resident.values())),
            "measured": _round(resident),
        },
    }


def _gib(sizes: dict[str, int]) -> dict[str, float]:
    return {name: _round(size) for name, size in sizes.items()}


def _round(size: int) -> float:
    return round(size / 2**30, 3)


if __name__ == "__main__":
    sys.exit(main())
