"""Failures of an advantage estimator or a policy loss that the user brings."""

from pathlib import Path

import verl_algos

from verl_cli.errors import UserError
from verl_cli.failures.text import raised_at

#: Where the checks of a function's result stand, whose lines would tell its author nothing.
_CHECKS = frozenset({Path(verl_algos.__file__).parent, Path(__file__).parents[1]})


def own_failure(setting: str, error: Exception) -> UserError:
    """What a function of the user's own raised, or what is wrong with its result.

    Args:
        setting: ``key=value`` that names the function.
        error: what it raised.
    """
    at = f" (at {place})" if (place := raised_at(error, outside=_CHECKS)) else ""
    return UserError(
        f"{setting} failed: {type(error).__name__}: {str(error).rstrip('.')}{at}. Its columns are packed: (T,) tokens, "
        "sequence i from cu_seqlens[i] to cu_seqlens[i + 1]. Repair the function."
    )
