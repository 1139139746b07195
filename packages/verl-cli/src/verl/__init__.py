"""The names that users of the original system import; everything behind them is verl-cli and the packages below it."""

from importlib.metadata import PackageNotFoundError, version

from verl_data import DataProcessor


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
__all__ = ["DataProcessor", "__version__"]
