"""Failures of an advantage estimator or a policy loss that the user brings."""

from verl_cli.errors import UserError
from verl_cli.failures.text import raised_at


def own_failure(setting: str, error: Exception) -> UserError:
    """What a function of the user's own raised, or what is wrong with its result.

    Args:
        setting: ``key=value`` that names the function.
        error: what it raised.
    """
    at = f" (at {place})" if (place := raised_at(error)) else ""
    return UserError(
        f"{setting} failed: {type(error).__name__}: {str(error).rstrip('.')}{at}. Its columns are packed: (T,) tokens, "
        "sequence i from cu_seqlens[i] to cu_seqlens[i + 1]. Repair the function."
    )
