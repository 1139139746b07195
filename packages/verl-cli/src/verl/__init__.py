"""The names that users of the original system import; everything behind them is verl-cli and the packages below it."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from verl_data import DataProcessor

if TYPE_CHECKING:
    from verl_algos.rewards import RewardModel


def _refuse_the_original() -> None:
    try:
        other = version("verl")
    except PackageNotFoundError:
        return
    raise ImportError(
        f"Two distributions in this environment provide the package `verl`: verl-cli {version('verl-cli')} and the "
        f"original verl {other}. Their files overwrite each other, so neither can be trusted. Remove both (`pip "
        f"uninstall verl verl-cli`) and install the one you want again, or use two environments."
    )


_refuse_the_original()

__version__ = version("verl-cli")
__all__ = ["DataProcessor", "RewardModel", "__version__"]


def __getattr__(name: str) -> Any:
    """Import what takes a while at its first use."""
    if name != "RewardModel":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("verl_algos.rewards").RewardModel


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
