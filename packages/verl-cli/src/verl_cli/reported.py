"""Numbers that the reward function reports beside the score, as columns of the batch."""

from collections.abc import Mapping, Sequence

import numpy as np
from verl_data import Prompt

from verl_cli.errors import UserError
from verl_cli.scoring import Scored


def column_name(reported: str) -> str:
    """The batch's column that holds a reported number, which is the name of its metric, too."""
    return f"reward/{reported}"


def reported_columns(scored: Scored, prompts: Sequence[Prompt], wanted: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Sequence columns (N,) float32 of reported numbers; NaN in the rows that could not be scored.

    Args:
        scored: the scores of N responses.
        prompts: the prompt of each response.
        wanted: each number's name, and the configuration key that asks for it.

    Raises:
        UserError: a response was scored, and the function did not report the number with it.
    """
    columns = {}
    has_reward = ~np.isnan(scored.rewards)
    for name, key in wanted.items():
        column = scored.extra.get(name, np.full(len(scored.rewards), np.nan, dtype=np.float32))
        missing = np.flatnonzero(np.isnan(column) & has_reward)
        if missing.size == has_reward.sum() > 0:
            raise UserError(
                f"{key} asks for {name!r}, which the reward does not report; it reports "
                f"{', '.join(sorted(scored.extra))}. Set {key} to what it reports, or let your function return it: "
                f'{{"score": ..., "{name}": ...}}.'
            )
        if missing.size:
            prompt = prompts[missing[0]]
            raise UserError(
                f"{key} asks for {name!r}, which the reward reports for some responses and not for {missing.size} of "
                f"{int(has_reward.sum())}, the first to row {prompt.row} of the data files (data source "
                f"{prompt.data_source!r}). Let your function return {name!r} with every score, or set {key} to what it "
                f"always reports, such as score."
            )
        columns[column_name(name)] = column
    return columns
