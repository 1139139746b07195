"""Optional dependencies: imported at first use, and named with the install line when they are missing."""

import importlib
from typing import Any

from verl_algos.rewards.types import MissingExtraError


def require(module: str, extra: str, purpose: str) -> Any:
    """Import `module`, which the extra `extra` of verl-algos installs.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{purpose} needs {module.partition('.')[0]}, which could not be imported ({error}): "
            f"pip install 'verl-algos[{extra}]'."
        ) from error
