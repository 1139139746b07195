"""Is verl-data as fast as what it stands on?

    uv run python benchmarks/data.py [--check] [--rows N] [--gsm8k FOLDER]

Each figure is a ratio against a reference that is measured in turn with it, so that a busy machine slows both:

- a million RL rows of 2 KB through `DataProcessor`, by process_row and by process_batch, against
  pyarrow alone reading and writing the same file batch by batch; and the most memory it holds,
- the next batch of 1,024 prompts, rendered and tokenised by `PromptLoader`, against the tokenizer alone in a loop over
  the finished texts,
- GSM8K, both splits, on one core, imports included (seconds; of made-up rows of its size if no folder is given),
- `import verl_data` (seconds), and that it loads neither torch nor transformers.

Prints one JSON object. With --check the exit code is the verdict.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

#: Least speed as a share of the reference's.
LEAST = {"process_row": 0.5, "process_batch": 0.8, "next_batch": 0.7}
MOST_MEMORY_MB = 600
MOST_SECONDS = {"gsm8k": 5.0, "import": 0.5}

PROCESS = {
    "reference": """
import sys, pyarrow.parquet as pq
with pq.ParquetFile(sys.argv[1]) as file, pq.ParquetWriter(sys.argv[2], file.schema_arrow) as writer:
    for batch in file.iter_batches(batch_size=8192):
        writer.write_batch(batch)
""",
    "process_row": """
import sys
from verl_data import DataProcessor
def process(row, index):
    row["prompt"][0]["content"] += " Think step by step."
    row["extra_info"]["index"] = index
    return row
DataProcessor(process).run(sys.argv[1], sys.argv[2])
""",
    "process_batch": """
import sys, numpy as np, pyarrow as pa
from verl_data import DataProcessor
class Numbered(DataProcessor):
    def process_batch(self, batch, index):
        numbers = pa.array(np.arange(index, index + batch.num_rows))
        return batch.set_column(batch.schema.get_field_index("number"), "number", numbers)
Numbered().run(sys.argv[1], sys.argv[2])
""",
}


def main() -> int:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit 1 unless every figure holds")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the large file")
    parser.add_argument("--rounds", type=int, default=2, help="times that each is measured; the median counts")
    parser.add_argument("--gsm8k", type=Path, default=os.environ.get("VERL_GSM8K"), help="train.jsonl and test.jsonl")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = {
            **processing(Path(folder), options.rows, options.rounds),
            "next_batch": next_batch(options.rounds),
            "gsm8k": gsm8k(Path(folder), options.gsm8k),
            "import": imports(),
        }
    result = {
        "machine": {"processor": platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()[0]},
        **figures,
        "holds": all(figure["holds"] for figure in figures.values()),
    }
    print(json.dumps(result, indent=2))
    return 1 if options.check and not result["holds"] else 0


def processing(folder: Path, rows: int, rounds: int) -> dict[str, Any]:
    """Process a large file in three ways, in turn, each in a process of its own."""
    source, output = folder / "large.parquet", folder / "out.parquet"
    write_large(source, rows)
    seconds: dict[str, list[float]] = {name: [] for name in PROCESS}
    memory = dict.fromkeys(PROCESS, 0.0)
    for _ in range(rounds):
        for name, code in PROCESS.items():
            took, peak = run([sys.executable, "-P", "-c", code, str(source), str(output)])
            seconds[name].append(took)
            memory[name] = max(memory[name], peak)
            if pq.read_metadata(output).num_rows != rows:
                raise AssertionError(f"{name} wrote {pq.read_metadata(output).num_rows} rows of {rows}")
            output.unlink()
    figures = {}
    for name in ("process_row", "process_batch"):
        ratio = statistics.median(
            reference / own for reference, own in zip(seconds["reference"], seconds[name], strict=True)
        )
        figures[name] = {
            "speed_over_reference": round(ratio, 3),
            "seconds": rounded(seconds[name]),
            "reference_seconds": rounded(seconds["reference"]),
            "peak_mb": round(memory[name]),
            "holds": ratio >= LEAST[name] and memory[name] <= MOST_MEMORY_MB,
        }
    return figures


def write_large(path: Path, rows: int) -> None:
    """Write RL rows of about 2 KB: text of made-up words, so that it compresses as text does."""
    random = np.random.default_rng(0)
    letters = random.integers(97, 123, size=(4096, 64), dtype=np.uint8)
    letters[:, ::7] = 32  # words
    letters[random.random(letters.shape) < 0.05] = 32

    def text(count: int, length: int) -> pa.Array:
        pieces = letters[random.integers(0, len(letters), size=(count, length // 64))]
        offsets = np.arange(count + 1, dtype=np.int32) * length
        return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(pieces.tobytes()))

    writer: pq.ParquetWriter | None = None
    for begin in range(0, rows, 20_000):
        count = min(20_000, rows - begin)
        numbers = pa.array(np.arange(begin, begin + count))
        ones = pa.array(np.arange(count + 1, dtype=np.int32))
        messages = pa.StructArray.from_arrays([pa.array(["user"] * count), text(count, 1536)], ["role", "content"])
        columns = {
            "data_source": pa.array(["benchmark/rows"] * count),
            "prompt": pa.ListArray.from_arrays(ones, messages),
            "ability": pa.array(["math"] * count),
            "reward_model": pa.StructArray.from_arrays(
                [pa.array(["rule"] * count), pc.cast(numbers, pa.string())], ["style", "ground_truth"]
            ),
            "extra_info": pa.StructArray.from_arrays(
                [pa.array(["train"] * count), numbers, text(count, 448)], ["split", "index", "answer"]
            ),
            "number": numbers,
        }
        batch = pa.RecordBatch.from_pydict(columns)
        writer = writer or pq.ParquetWriter(path, batch.schema)
        writer.write_batch(batch, row_group_size=count)
    assert writer is not None  # there are rows
    writer.close()


def run(command: list[str]) -> tuple[float, float]:
    """Run a process; return its seconds, and the most memory that it and its children held together, in MB."""
    peak = 0
    begin = time.perf_counter()
    with psutil.Popen(command) as process:
        done = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.2):
                peak = max(peak, held_bytes(process))

        watcher = threading.Thread(target=watch)
        watcher.start()
        code = process.wait()
        done.set()
        watcher.join()
    if code:
        raise subprocess.CalledProcessError(code, command)
    return time.perf_counter() - begin, peak / 1e6


def held_bytes(process: psutil.Process) -> int:
    """Memory of a process and its children; what they share is counted once where the system tells."""
    total = 0
    try:
        for one in [process, *process.children(recursive=True)]:
            info = one.memory_full_info()
            total += getattr(info, "pss", info.rss)
    except psutil.Error:  # a process that has just ended
        return 0
    return total


def next_batch(rounds: int) -> dict[str, Any]:
    """Time a batch of prompts against the tokenizer alone."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-P", __file__, "--next-batch", folder, str(rounds)],
            check=True,
            capture_output=True,
            text=True,
        )
    ratio, own, reference = json.loads(done.stdout)
    return {
        "speed_over_reference": round(ratio, 3),
        "seconds": rounded(own),
        "reference_seconds": rounded(reference),
        "holds": ratio >= LEAST["next_batch"],
    }


def time_next_batch(folder: Path, rounds: int) -> None:
    """Print the median ratio and the seconds of both, as JSON; for a process of its own."""
    from verl_data import DataConfig, PromptLoader, write_rows

    tokenizer = byte_pair_tokenizer()
    random = np.random.default_rng(1)
    rows = [
        {
            "data_source": "benchmark/rows",
            "prompt": [{"role": "user", "content": " ".join(words(random, 120))}],
            "reward_model": {"style": "rule", "ground_truth": "1"},
        }
        for _ in range(4096)
    ]
    write_rows(rows, folder / "prompts.parquet")
    config = DataConfig(train_batch_size=1024, max_prompt_length=4096, truncation="left")
    loader = PromptLoader(folder / "prompts.parquet", tokenizer, config, training=True)
    batches = loader.batches()
    next(batches)  # whatever is made at the first use
    own, reference = [], []
    for _ in range(max(rounds, 3)):
        took, (_, prompts) = timed(lambda: next(batches))
        own.append(took)
        texts = [
            tokenizer.apply_chat_template(prompt.messages, tokenize=False, add_generation_prompt=True)
            for prompt in prompts
        ]
        took, ids = timed(partial(tokenizer_alone, tokenizer, texts))
        reference.append(took)
        if ids != [prompt.prompt_ids for prompt in prompts]:
            raise AssertionError("the loader's tokens are not the tokenizer's")
    ratio = statistics.median(other / one for one, other in zip(own, reference, strict=True))
    print(json.dumps([ratio, own, reference]))


def tokenizer_alone(tokenizer: Any, texts: list[str]) -> list[list[int]]:
    """Tokenise finished texts one by one."""
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]


def words(random: np.random.Generator, count: int) -> list[str]:
    """Return made-up words."""
    return ["".join(map(chr, random.integers(97, 123, size=random.integers(2, 9)))) for _ in range(count)]


def byte_pair_tokenizer() -> Any:
    """Train a byte-level BPE tokenizer, of the kind that today's models have, on made-up words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    random = np.random.default_rng(2)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=4000, special_tokens=["<|im_start|>", "<|im_end|>"], show_progress=False)
    tokenizer.train_from_iterator((" ".join(words(random, 200)) for _ in range(200)), trainer)
    template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    fast: Any = PreTrainedTokenizerFast  # its constructor is not typed
    return fast(tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=template)


def gsm8k(folder: Path, given: Path | None) -> dict[str, Any]:
    """Time the GSM8K processor on one core, as a command."""
    source = given
    if source is None:
        source = folder / "gsm8k"
        source.mkdir()
        random = np.random.default_rng(3)
        for split, count in (("train", 7473), ("test", 1319)):
            with (source / f"{split}.jsonl").open("w") as file:
                for _ in range(count):
                    row = {"question": " ".join(words(random, 45)), "answer": " ".join(words(random, 55)) + "\n#### 7"}
                    file.write(json.dumps(row) + "\n")
    command = [
        *(sys.executable, "-P", "-m", "verl_data.processors.gsm8k"),
        *("--local_dataset_path", str(source), "--local_save_dir", str(folder / "out")),
    ]
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, preexec_fn=on_one_core)
    took = time.perf_counter() - begin
    rows = {split: pq.read_metadata(folder / f"out/{split}.parquet").num_rows for split in ("train", "test")}
    holds = took <= MOST_SECONDS["gsm8k"] and rows == {"train": 7473, "test": 1319}
    return {"seconds": round(took, 2), "rows": rows, "made_up": given is None, "holds": holds}


def on_one_core() -> None:
    """Keep this process to one core, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def imports() -> dict[str, Any]:
    """Time the import, and see what it loads."""
    code = "import sys, time; t = time.perf_counter(); import verl_data; print(time.perf_counter() - t, *sys.modules)"
    lines = [
        subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True).stdout.split()
        for _ in range(3)
    ]
    seconds = [float(line[0]) for line in lines]
    heavy = sorted({"torch", "transformers"} & set(lines[0]))
    holds = statistics.median(seconds) <= MOST_SECONDS["import"] and not heavy
    return {"seconds": rounded(seconds), "loads": heavy, "holds": holds}


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds that a call took, and what it returned."""
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def rounded(seconds: list[float]) -> list[float]:
    """Return seconds as they are printed."""
    return [round(value, 3) for value in seconds]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--next-batch"]:
        time_next_batch(Path(sys.argv[2]), int(sys.argv[3]))
        sys.exit(0)
    sys.exit(main())
