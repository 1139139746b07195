"""What a reward function is, and what scoring a row yields."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

#: What a reward function returns: a number, or a mapping with "score" whose other entries are logged beside it.
RewardResult = float | Mapping[str, Any]

#: ``compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs)``, plain or async.
#: `solution_str` is the response alone, without the prompt; `ground_truth` and `extra_info` are the row's own.
RewardFunction = Callable[..., RewardResult | Awaitable[RewardResult]]


class RewardRow(NamedTuple):
    """What one response is scored on."""

    data_source: str
    solution_str: str
    """The decoded response; may be empty."""
    ground_truth: Any
    extra_info: Mapping[str, Any] | None = None


class Score(NamedTuple):
    """One row's reward and whatever else the function said about it."""

    score: float
    """Finite."""
    extra: dict[str, Any]
    """The other entries of a returned mapping; for a plain number ``{"acc": number}``, the published name."""


class RewardModel(ABC):
    """Something that scores batches of responses: subclass it, implement `score`, and give it to whatever takes a
    reward function.
    """

    rows_per_call: int | None = None
    """Most rows that a `RewardRunner` gives to one call of `score`; None: its max_concurrency."""

    @abstractmethod
    def score(self, rows: Sequence[RewardRow]) -> Sequence[RewardResult | Exception]:
        """Return one reward per row, in order: a number, or a mapping with "score"; or why that row has none.

        Called in the process that made the model, from one thread at a time, with at least one row.
        """


class Failure(NamedTuple):
    """Why a row has no reward."""

    kind: Literal["timeout", "exception"]
    """timeout: a limit of time was reached; exception: the function raised or its worker died."""
    message: str


class RewardTimeoutError(Exception):
    """A row took longer than it may."""


class RewardError(RuntimeError):
    """A reward function raised, or returned something that is not a reward; the cause is chained."""

    def __init__(self, message: str, row: int, data_source: str) -> None:
        super().__init__(
            message, row, data_source
        )  # all of them, so that the error survives pickling between processes
        self.row = row
        self.data_source = data_source

    def __str__(self) -> str:
        return str(self.args[0])


class RewardCountError(RewardError):
    """A reward model returned another number of results than it was given rows: which belongs to which is unknown."""


class RewardLoadError(ValueError):
    """A reward function could not be loaded from where the configuration says."""


class MissingExtraError(ImportError):
    """A rule or model needs a package that is not installed; the message has the install line."""
