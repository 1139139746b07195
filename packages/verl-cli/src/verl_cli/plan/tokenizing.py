"""The run's own tokenizer and model configurations, asked in a process of their own.

transformers imports torch where it is installed, which takes seconds and which a plan has no use for. In the child
torch is made unimportable before transformers is imported; tokenizers and configurations work without it. That it is a
child keeps this process' transformers whole for whoever trains here afterwards, and lets it import while this process
still reads the data.
"""

import pickle
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from verl_cli.errors import UserError

if TYPE_CHECKING:
    from verl_data import DataConfig
    from verl_engine.config import ModelConfig

#: The child only reads files; a hub name may take the hub's client some time.
DEADLINE_SECONDS = 120.0


@dataclass(frozen=True)
class Question:
    """What the child is asked; it travels pickled."""

    tokenizer: str | None
    """Folder or hub name; None asks for no tokenizer."""
    trust_remote_code: bool
    models: "dict[str, ModelConfig]"
    """By the key of their path, which is a folder or a hub name."""
    same_vocabulary: tuple[str, str] | None
    """Two model folders whose token ids must mean the same."""
    data: "DataConfig"
    rows: list[dict[str, Any]]
    """Rows whose prompts are rendered."""


@dataclass(frozen=True)
class ShownPrompt:
    """A rendered prompt as text."""

    row: int
    """Its position in the question's rows."""
    tokens: int
    """After truncation."""
    truncated: bool
    text: str


@dataclass
class Answer:
    """What the child found."""

    problems: list[str] = field(default_factory=list)
    vocabulary: int | None = None
    """Tokens of the tokenizer, added ones included; None where there is none."""
    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The configuration values of each model that could be read, with every default filled in."""
    lengths: list[int | None] = field(default_factory=list)
    """Tokens of each row's prompt before truncation; None where it cannot be rendered."""
    refusals: dict[int, str] = field(default_factory=dict)
    """Why, by position in the rows."""
    shown: ShownPrompt | None = None
    """The first prompt that the run can use."""


class TransformersProcess:
    """A child that answers one `Question`; it starts at once and imports while nobody waits for it."""

    def __init__(self, *, without_torch: bool = True) -> None:
        """Start it; `without_torch` is off for remote code, which may import whatever it likes."""
        self.without_torch = without_torch
        module = "verl_cli.plan.tokenizing_child"
        # -P: a file of the working folder must not pass for a library.
        program = [sys.executable, "-P", "-m", module, *(["--without-torch"] if without_torch else [])]
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def __enter__(self) -> "TransformersProcess":
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:  # closes the pipes and waits
            self._process.kill()

    def ask(self, question: Question) -> Answer:
        """Send the question and wait for the answer; UserError if the child fails or does not answer in time."""
        try:
            output, errors = self._process.communicate(pickle.dumps(question), timeout=DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            raise UserError(
                f"The tokenizer and the model's configuration did not load within {DEADLINE_SECONDS:.0f} s. Give "
                f"actor_rollout_ref.model.path as a folder on a disk that answers."
            ) from None
        if self._process.returncode != 0:
            lines = errors.decode(errors="replace").strip().splitlines() or ["it said nothing"]
            raise UserError(
                f"The process that loads the tokenizer ended with code {self._process.returncode}: {lines[-1]}. Look "
                f"at the files of actor_rollout_ref.model.path, and at their code where trust_remote_code is on."
            )
        answer: Answer = pickle.loads(output)
        return answer
