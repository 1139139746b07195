"""Endless verifiable tasks of reasoning-gym (Stojanovski et al., 2025), an extra of this package.

python -m verl_data.processors.reasoning_gym --tasks chain_sum,leg_counting --size 2000 --local_save_dir data/gym

Row i of a task depends on (task, options, seed, i) only. Each row carries its whole entry as JSON text, so that the
task's own scorer can judge a response (`score_response`; the reward function is examples/reasoning_gym/reward.py).
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from itertools import count, islice
from os import PathLike
from pathlib import Path
from typing import Any

from verl_data.errors import DataError
from verl_data.processor import DataProcessor, Manifest
from verl_data.processors.command import execute, options
from verl_data.prompts import to_native
from verl_data.rows import Row

DATA_SOURCE = "reasoning_gym"
INSTRUCTION = "Write the final answer between <answer> and </answer>."
#: Entries that are made with one seed of the library's. Some of its tasks prepare all entries of a seed at once.
SEGMENT_ROWS = 500
#: How often a new problem is asked for, for each that is held out.
_ATTEMPTS = 50

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_TUPLE, _DICT = "__tuple__", "__items__"


@dataclass(frozen=True)
class GymTask:
    """The problems of one task, as raw rows; iterates from the first one each time, and ends after `size`."""

    task: str
    """As the library calls it: chain_sum, sudoku, ..."""
    seed: int = 1
    size: int | None = None
    """Rows; None: without end."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the task's configuration is to have instead of its defaults."""

    def __iter__(self) -> Iterator[Row]:
        """Yield {task, options, seed, index, entry}, entry being {question, answer, metadata}.

        Raises ModuleNotFoundError without reasoning-gym, DataError for an unknown task or option.
        """
        return islice(self._endless(), self.size)

    def _endless(self) -> Iterator[Row]:
        for segment in count():
            key = f"{self.task}/{self.seed}/{segment}".encode()
            seed = int.from_bytes(hashlib.sha256(key).digest()[:4], "big")
            entries = _make(self.task, {**self.options, "seed": seed, "size": SEGMENT_ROWS})
            for number in range(SEGMENT_ROWS):
                index = segment * SEGMENT_ROWS + number
                yield {
                    "task": self.task,
                    "options": dict(self.options),
                    "seed": self.seed,
                    "index": index,
                    "entry": entries[number],
                }


class GymProcessor(DataProcessor):
    """Turns rows of `GymTask` into RL rows."""

    def __init__(self, split: str, instruction: str = INSTRUCTION) -> None:
        """Write `split` into extra_info, and `instruction` behind every question."""
        super().__init__()
        self._split = split
        self._instruction = instruction

    def process_row(self, row: Row, index: int) -> Row:
        """Ask the question; the ground truth is the library's answer, or "" where a task has many and names none."""
        entry = row["entry"]
        question = f"{entry['question'].rstrip()}\n\n{self._instruction}".rstrip()
        return {
            "data_source": f"{DATA_SOURCE}/{row['task']}",
            "prompt": [{"role": "user", "content": question}],
            "ability": "reasoning",
            "reward_model": {"style": "rule", "ground_truth": "" if entry["answer"] is None else str(entry["answer"])},
            "extra_info": {
                "split": self._split,
                "index": index,
                "task": row["task"],
                "seed": row["seed"],
                "position": row["index"],
                "options": json.dumps(row["options"], sort_keys=True),
                "entry": entry_to_json(entry),
            },
        }


def score_response(response: str, extra_info: Mapping[str, Any]) -> dict[str, float]:
    """Score a response with its task's own scorer, on what stands between the last <answer> and </answer>.

    Returns score (0 to 1); answered, whether there was such an answer; and unreadable, whether the scorer raised on it,
    as some do on answers that are no number or no board: the score then is 0.
    """
    answers = _ANSWER.findall(response)
    if not answers:
        return {"score": 0.0, "answered": 0.0, "unreadable": 0.0}
    task = _scorer(extra_info["task"], extra_info["options"])
    try:
        score = float(task.score_answer(answers[-1].strip(), json_to_entry(extra_info["entry"])))
    except Exception:  # noqa: BLE001 (scorers parse the answer, and raise whatever their parsing does)
        return {"score": 0.0, "answered": 1.0, "unreadable": 1.0}
    return {"score": score, "answered": 1.0, "unreadable": 0.0}


def prepare_reasoning_gym(
    save_dir: str | PathLike[str],
    *,
    tasks: Sequence[str],
    size: int,
    validation_size: int,
    seed: int = 1,
    task_options: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Manifest]:
    """Write train.parquet and validation.parquet, in which the tasks take turns, to `save_dir`.

    Args:
        save_dir: folder for the output.
        tasks: names of the library's tasks.
        size, validation_size: rows; no question is in both files.
        seed: decides every row.
        task_options: by task, what its configuration is to have instead of its defaults.

    Raises:
        ModuleNotFoundError: reasoning-gym is not installed.
        DataError: an unknown task or option, or too few different problems.
    """
    if not tasks or size < len(tasks) or validation_size < len(tasks):
        raise DataError(f"Every file needs a row of each task, so at least {max(1, len(tasks))}.")
    chosen = [GymTask(task, seed, None, (task_options or {}).get(task, {})) for task in tasks]
    if unused := set(task_options or {}) - set(tasks):
        raise DataError(f"There are options for {', '.join(sorted(unused))}, which is not among the tasks.")
    train = list(islice(_in_turn(chosen), size))
    known = {(row["task"], row["entry"]["question"]) for row in train}
    other = [GymTask(task.task, seed + (1 << 32), None, task.options) for task in chosen]
    held_out = list(islice(_unknown(_in_turn(other), known, _ATTEMPTS * validation_size), validation_size))
    if len(held_out) < validation_size:
        raise DataError(
            f"Of {_ATTEMPTS * validation_size} problems only {len(held_out)} are not among those for training, so "
            f"{validation_size} cannot be held out. Ask for fewer, or choose larger tasks."
        )
    folder = Path(save_dir).expanduser()
    return {
        "train": GymProcessor("train").run(train, folder / "train.parquet"),
        "validation": GymProcessor("validation").run(held_out, folder / "validation.parquet"),
    }


def entry_to_json(entry: Mapping[str, Any]) -> str:
    """Write an entry as JSON text that `json_to_entry` turns back, with tuples and keys that are numbers."""
    return json.dumps(_tag(entry), ensure_ascii=False)


def json_to_entry(entry: str) -> dict[str, Any]:
    """Read what `entry_to_json` wrote."""
    restored: dict[str, Any] = _untag(json.loads(entry))
    return restored


def _tag(value: Any) -> Any:
    if isinstance(value, tuple):
        return {_TUPLE: [_tag(item) for item in value]}
    if isinstance(value, list):
        return [_tag(item) for item in value]
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and type(key) is str for key in value):
            return {key: _tag(item) for key, item in value.items()}
        return {_DICT: [[_tag(key), _tag(item)] for key, item in value.items()]}
    return str(value) if isinstance(value, str) else to_native(value)  # numpy's text is a str that is not quite one


def _untag(value: Any) -> Any:
    if isinstance(value, list):
        return [_untag(item) for item in value]
    if isinstance(value, dict):
        if value.keys() == {_TUPLE}:
            return tuple(_untag(item) for item in value[_TUPLE])
        if value.keys() == {_DICT}:
            return {_untag(key): _untag(item) for key, item in value[_DICT]}
        return {key: _untag(item) for key, item in value.items()}
    return value


def _in_turn(tasks: Sequence[GymTask]) -> Iterator[Row]:
    for rows in zip(*tasks, strict=True):
        yield from rows


def _unknown(rows: Iterable[Row], known: set[tuple[str, str]], attempts: int) -> Iterator[Row]:
    for row in islice(rows, attempts):
        if (row["task"], row["entry"]["question"]) not in known:
            yield row


def _make(task: str, task_options: Mapping[str, Any]) -> Any:
    try:
        library = import_module("reasoning_gym")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"reasoning-gym is not installed ({error}). Install it with verl-data's extra of that name; in a clone: "
            "pip install 'packages/verl-data[reasoning-gym]'.",
            name=error.name,
        ) from error
    known = sorted(set(library.factory.DATASETS) - {"composite"})  # a composite is several tasks, as we have them
    if task not in known:
        raise DataError(f"reasoning-gym has no task {task!r}. It has {', '.join(known)}.")
    try:
        return library.create_dataset(task, **task_options)
    except (TypeError, ValueError, AssertionError) as error:
        raise DataError(f"reasoning-gym refuses the options of {task}: {error}") from error


@lru_cache(maxsize=256)
def _scorer(task: str, task_options: str) -> Any:
    return _make(task, json.loads(task_options))


def main(argv: Sequence[str] | None = None) -> int:
    """Run as a command; return the exit status."""
    parser = options(__doc__, "~/data/reasoning_gym")
    parser.add_argument("--tasks", required=True, metavar="NAME,NAME", help="tasks of reasoning-gym")
    parser.add_argument("--size", type=int, default=1000, metavar="ROWS", help="rows for training (default 1000)")
    parser.add_argument("--validation_size", type=int, default=100, metavar="ROWS", help="rows held out (default 100)")
    parser.add_argument("--seed", type=int, default=1, help="decides every row (default 1)")
    parser.add_argument(
        "--task_options", type=json.loads, default={}, metavar="JSON", help='{"chain_sum": {"max_terms": 3}}'
    )
    arguments = parser.parse_args(argv)
    return execute(
        parser,
        arguments,
        lambda folder: prepare_reasoning_gym(
            folder,
            tasks=[task.strip() for task in arguments.tasks.split(",") if task.strip()],
            size=arguments.size,
            validation_size=arguments.validation_size,
            seed=arguments.seed,
            task_options=arguments.task_options,
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
