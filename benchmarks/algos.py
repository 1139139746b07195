"""Is verl-algos as fast, and as small, as what it stands on?

    uv run python benchmarks/algos.py [--check] [--parts PART,PART] [--rounds N] [--workers N]

Most figures are ratios against a reference that is measured in turn with them, so that a busy machine slows both:

- advantages: 1,024 sequences of up to 4,096 tokens through every estimator, padded and packed, against a plain GAE loop
  over time that handles all sequences at once; and the memory that an estimator takes, its results included, as a
  multiple of the inputs that it reads,
- import: what `import verl_algos` and its advantages add to `import torch` (seconds),
- gsm8k: 8,192 GSM8K answers through `RewardRunner`, per core, against a bare loop over the same function on each of as
  many cores,
- math_verify: 512 mathematics answers, 5 of them built to hang: seconds over the limit of each answer; and that all the
  others have their right score. Needs the extra of verl-algos with Math-Verify.

Prints one JSON object. With --check the exit code is the verdict. The figures are those of a machine that does nothing
else: each part needs a core to itself, gsm8k one more than workers, and math_verify two at least.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil

#: Most time as a multiple of the reference's.
MOST_TIME = 1.5
#: Most memory as a multiple of the inputs'.
MOST_MEMORY = 3.0
MOST_IMPORT_SECONDS = 0.1

SEQUENCES, TOKENS, GROUP_SIZE = 1024, 4096, 8
TOKEN_COLUMNS = ("token_rewards", "values", "old_logprobs", "sum_pi_squared", "mask")


def main() -> int:
    """Measure everything, or one part, and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 unless every figure holds")
    parser.add_argument(
        "--parts", default=",".join(PARTS), help="which to measure, with commas between them: %(default)s"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, help="times that each is measured, gsm8k ten times as often; the median counts"
    )
    parser.add_argument("--workers", type=int, default=1, help="worker processes of gsm8k")
    options = parser.parse_args()
    parts = options.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    figures = {name: part(options) for name, part in PARTS.items() if name in parts}
    result = {
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()[0]},
        **figures,
        "holds": all(figure["holds"] for figure in figures.values()),
    }
    print(json.dumps(result, indent=2))
    return 1 if options.check and not result["holds"] else 0


def advantages(options: argparse.Namespace) -> dict[str, Any]:
    """Time every estimator in both layouts on one core; measure its memory in a process of its own."""
    import torch
    from verl_algos.estimators import ESTIMATORS

    torch.set_num_threads(1)
    layouts = {"padded": advantage_inputs("padded"), "packed": advantage_inputs("packed")}
    rewards, values = layouts["padded"]["token_rewards"], layouts["padded"]["values"]
    gae_loop(rewards[:8], values[:8])
    reference: list[float] = []
    seconds: dict[str, dict[str, list[float]]] = {name: {layout: [] for layout in layouts} for name in ESTIMATORS}
    for _ in range(options.rounds):
        reference.append(timed(partial(gae_loop, rewards, values))[0])
        for name, own in seconds.items():
            for layout, inputs in layouts.items():
                own[layout].append(timed(partial(compute, name, inputs))[0])
    del layouts, rewards, values
    figures: dict[str, Any] = {"reference_seconds": rounded(reference)}
    for name, own in seconds.items():
        figures[name] = {}
        for layout, taken in own.items():
            ratio = statistics.median(mine / other for mine, other in zip(taken, reference, strict=True))
            memory = measured_memory(name, layout)
            figures[name][layout] = {
                "time_over_reference": round(ratio, 3),
                "seconds": rounded(taken),
                "memory_over_inputs": round(memory, 2),
                "holds": ratio <= MOST_TIME and memory <= MOST_MEMORY,
            }
    figures["holds"] = all(figures[name][layout]["holds"] for name, own in seconds.items() for layout in own)
    return figures


def gae_loop(rewards: Any, values: Any, gamma: float = 1.0, lam: float = 0.95) -> tuple[Any, Any]:
    """GAE as the textbooks have it, for all sequences at once, from the last token to the first; without a mask."""
    import torch

    advantages = torch.empty_like(rewards)
    advantage = next_value = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * lam * advantage
        next_value = values[:, t]
        advantages[:, t] = advantage
    return advantages, advantages + values


def advantage_inputs(layout: str) -> dict[str, Any]:
    """All that any estimator reads: sequences that fill their width, a tenth of their tokens a tool's.

    Written in place, so that making them needs no more memory than they take.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    shape = (SEQUENCES, TOKENS) if layout == "padded" else (SEQUENCES * TOKENS,)
    inputs: dict[str, Any] = {
        "token_rewards": torch.empty(shape).normal_(generator=generator),
        "values": torch.empty(shape).normal_(generator=generator),
        "old_logprobs": torch.empty(shape).uniform_(-3.0, 0.0, generator=generator),
        "sum_pi_squared": torch.empty(shape).uniform_(0.1, 1.0, generator=generator),
        "mask": torch.empty(shape, dtype=torch.bool).bernoulli_(0.9, generator=generator),
        "group": torch.arange(SEQUENCES) // GROUP_SIZE,
        "baseline": torch.zeros(SEQUENCES),
        "reward_components": {"one": torch.arange(SEQUENCES) % 3.0, "other": torch.arange(SEQUENCES) % 5.0},
    }
    if layout == "packed":
        inputs["cu_seqlens"] = torch.arange(SEQUENCES + 1) * TOKENS
    return inputs


def compute(name: str, inputs: dict[str, Any]) -> Any:
    """Call one estimator."""
    from verl_algos.advantages import compute

    return compute(name, **inputs, gamma=1.0, lam=0.95)


def measured_memory(name: str, layout: str) -> float:
    """The most memory that an estimator takes, over the bytes of the token columns that it reads."""
    command = [sys.executable, "-P", __file__, "--memory", name, layout]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_memory(name: str, layout: str) -> None:
    """Measure it; for a process of its own, whose peak is not that of anything else."""
    import torch
    from verl_algos.estimators import ESTIMATORS

    torch.set_num_threads(1)
    inputs = advantage_inputs(layout)
    spec = ESTIMATORS[name]
    read = [inputs[column] for column in TOKEN_COLUMNS if column in (*spec.required, "mask")]
    small = {**inputs, "cu_seqlens": torch.tensor([0, 4])} if layout == "packed" else dict(inputs)
    for column in TOKEN_COLUMNS:
        small[column] = inputs[column][:4]
    count = 1 if layout == "packed" else 4
    small |= {"group": inputs["group"][:count], "baseline": inputs["baseline"][:count]}
    small["reward_components"] = {"one": torch.zeros(count)}
    compute(name, small)  # loads whatever is loaded at the first use
    before = psutil.Process().memory_info().rss
    kept = compute(name, inputs)
    peak = peak_bytes()
    del kept
    print((peak - before) / sum(column.numel() * column.element_size() for column in read))


def peak_bytes() -> int:
    """The most memory that this process has held. Linux counts the parent's into ru_maxrss, not into VmHWM."""
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


def imports(options: argparse.Namespace) -> dict[str, Any]:
    """Time what the package and its advantages add to torch."""
    code = "import time, torch; t = time.perf_counter(); import verl_algos{}; print(time.perf_counter() - t)"
    figures: dict[str, Any] = {}
    for name, what in (("package", ""), ("advantages", ", verl_algos.advantages")):
        command = [sys.executable, "-P", "-c", code.format(what)]
        seconds = [
            float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            for _ in range(options.rounds)
        ]
        holds = statistics.median(seconds) <= MOST_IMPORT_SECONDS
        figures[name] = {"seconds": rounded(seconds), "holds": holds}
    return {**figures, "holds": all(figure["holds"] for figure in figures.values())}


def gsm8k(options: argparse.Namespace) -> dict[str, Any]:
    """See `algos_rewards.gsm8k`. A round takes a fifth of a second, and a busy neighbour is busy for longer."""
    import algos_rewards

    return algos_rewards.gsm8k(10 * options.rounds, options.workers)


def math_verify(options: argparse.Namespace) -> dict[str, Any]:
    """See `algos_rewards.math_verify`."""
    import algos_rewards

    return algos_rewards.math_verify()


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that a call took, and what it returned."""
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def rounded(seconds: list[float]) -> list[float]:
    """Return seconds as they are printed."""
    return [round(value, 3) for value in seconds]


#: Each takes the options and returns figures with the verdict `holds`.
PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "advantages": advantages,
    "import": imports,
    "gsm8k": gsm8k,
    "math_verify": math_verify,
}


if __name__ == "__main__":
    if sys.argv[1:2] == ["--memory"]:
        print_memory(sys.argv[2], sys.argv[3])
        sys.exit(0)
    sys.exit(main())
