"""Is a plan there before torch would even be imported?

    uv run python benchmarks/plan.py [--check] [--rounds N]

Times `verl-cli plan` as a process (a tiny model, 1,000 rows) against a process that only imports torch and loads the
same tokenizer, in turn, so that a busy machine slows both. Prints one JSON object. With --check the exit code is the
verdict: the median of the ratios is at most 1. The seconds are told beside it: on two idle cores a plan takes under 5.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MOST = 1.0
REWARD = (
    "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return len(solution_str) / 100\n"
)


def main() -> int:
    """Time both in turn and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 unless a plan takes no longer than the imports")
    parser.add_argument("--rounds", type=int, default=3, help="times that each is started")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments = prepare(Path(folder))
        plan = [sys.executable, "-P", "-m", "verl_cli.main", "plan", *arguments]
        imports = f"import torch; from transformers import AutoTokenizer as T; T.from_pretrained({f'{folder}/model'!r})"
        pairs = [(seconds(plan), seconds([sys.executable, "-P", "-c", imports])) for _ in range(max(1, options.rounds))]
    ratio = statistics.median(one / other for one, other in pairs)
    result: dict[str, Any] = {
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()[0]},
        "plan_seconds": [round(one, 2) for one, _ in pairs],
        "imports_seconds": [round(other, 2) for _, other in pairs],
        "plan_over_imports": round(ratio, 3),
        "holds": ratio <= MOST,
    }
    print(json.dumps(result, indent=2))
    return 1 if options.check and not result["holds"] else 0


def prepare(folder: Path) -> list[str]:
    """Write model, data and reward; return the arguments of the plan."""
    from verl_cli.quickstart.model import write_model
    from verl_data.processors.arithmetic import prepare_addition

    write_model(folder / "model", seed=0)
    prepare_addition(folder, low=10, high=45, validation=200, seed=0)
    (folder / "reward.py").write_text(REWARD)
    keys = {
        "data.train_files": folder / "train.parquet",
        "data.val_files": folder / "validation.parquet",
        "data.train_batch_size": 256,
        "data.max_prompt_length": 16,
        "data.max_response_length": 8,
        "actor_rollout_ref.model.path": folder / "model",
        "actor_rollout_ref.actor.ppo_mini_batch_size": 64,
        "reward.custom_reward_function.path": folder / "reward.py",
        "trainer.default_local_dir": folder / "run",
    }
    return [f"{key}={value}" for key, value in keys.items()]


def seconds(command: list[str]) -> float:
    """The wall time of a process, which must succeed."""
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
