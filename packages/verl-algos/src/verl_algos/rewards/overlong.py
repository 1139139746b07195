"""The soft overlong penalty of DAPO (Yu et al. 2025, arXiv:2503.14476, equation 13)."""

from collections.abc import Sequence
from dataclasses import dataclass

from verl_algos._numbers import checked, in_range
from verl_algos.rewards.types import Score


@dataclass(frozen=True)
class OverlongConfig:
    """The published ``overlong_buffer_cfg``."""

    enable: bool = False
    """Whether long responses are punished."""
    len: int = 0
    """Tokens before the limit in which the penalty grows."""
    penalty_factor: float = 1.0
    """The penalty at the limit; at least 0."""
    log: bool = False
    """Whether each score reports overlong_reward and overlong."""

    def __post_init__(self) -> None:
        checked("overlong_buffer_cfg.penalty_factor", self.penalty_factor, "it is the penalty at the limit", 0)
        if self.enable and not in_range(self.len, 1):
            raise ValueError(f"overlong_buffer_cfg.len={self.len} must be at least 1 token when it is enabled.")


def penalty(response_tokens: int, max_response_tokens: int, config: OverlongConfig) -> float:
    """``min(-(length - (max - len)) / len * penalty_factor, 0)``; 0 up to ``max - len`` tokens."""
    if not config.enable:
        return 0.0
    over = response_tokens - (max_response_tokens - config.len)
    return min(-over / config.len * config.penalty_factor, 0.0)


def apply(
    scores: Sequence[Score],
    response_tokens: Sequence[int],
    max_response_tokens: int,
    config: OverlongConfig | None = None,
) -> list[Score]:
    """Add the penalty to every score; without a config, or one that is not enabled, the scores are as they were.

    Args:
        scores: of the responses.
        response_tokens: their lengths.
        max_response_tokens: the limit of a response; the buffer lies before it.
        config: None punishes nothing.

    Returns:
        The scores; "acc" and the other entries are unchanged. With `OverlongConfig.log` each has ``overlong_reward``
        (the penalty) and ``overlong`` (whether it is below 0).

    Raises:
        ValueError: the numbers of scores and lengths differ, the buffer is longer than a response may be, or a function
            reports one of these entries itself.
    """
    if len(scores) != len(response_tokens):
        raise ValueError(f"There are {len(scores)} scores and {len(response_tokens)} response lengths.")
    if config is None or not config.enable:
        return list(scores)
    if config.len > max_response_tokens:
        raise ValueError(
            f"overlong_buffer_cfg.len={config.len} is more than the {max_response_tokens} tokens of a response: every "
            "response would be punished. Lower it."
        )
    punished = []
    for score, tokens in zip(scores, response_tokens, strict=True):
        added = penalty(tokens, max_response_tokens, config)
        told = {"overlong_reward": added, "overlong": added < 0} if config.log else {}
        if clash := sorted(told.keys() & score.extra.keys()):
            raise ValueError(
                f"The reward function reports {clash[0]!r}, and so does overlong_buffer_cfg.log: give the function's "
                "entry another name, or set log to false."
            )
        punished.append(Score(score.score + added, score.extra | told))
    return punished
