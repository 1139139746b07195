"""What the quickstart promises, measured: three seeds that learn, and that do not learn from a constant reward.

    uv run python benchmarks/quickstart.py [--check]

Prints one JSON object. With --check the exit code is the verdict: every seed's accuracy rises by at least 0.25 through
PPO and takes at most 150 s, and with a constant reward none rises by more than 0.05. Takes about six minutes on two
cores.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SEEDS = (1, 2, 3)
MIN_GAIN, MAX_CONTROL_GAIN, MAX_SECONDS = 0.25, 0.05, 150.0


def main() -> int:
    """Run all six and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 unless every promise holds")
    check: bool = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        learning = [run(Path(folder) / f"seed-{seed}", seed) for seed in SEEDS]
        control = [run(Path(folder) / f"control-{seed}", seed, "--constant-reward") for seed in SEEDS]
    holds = (
        all(row["gain"] >= MIN_GAIN and row["seconds"] <= MAX_SECONDS for row in learning)
        and all(row["gain"] <= MAX_CONTROL_GAIN for row in control)
    )  # fmt: skip
    machine = {"processor": platform.machine(), "cores": os.cpu_count()}
    print(
        json.dumps({"machine": machine, "quickstart": learning, "constant_reward": control, "holds": holds}, indent=2)
    )
    return 1 if check and not holds else 0


def run(folder: Path, seed: int, *options: str) -> dict[str, Any]:
    """One quickstart in a process of its own; what its summary says, and the gain."""
    program = [sys.executable, "-m", "verl_cli.main", "quickstart", "--run-dir", str(folder), "--seed", str(seed)]
    subprocess.run([*program, *options], check=True, stdout=subprocess.DEVNULL)
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return {**summary, "gain": round(summary["val_accuracy_after"] - summary["val_accuracy_before"], 3)}


if __name__ == "__main__":
    sys.exit(main())
