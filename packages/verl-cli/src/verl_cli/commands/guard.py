"""How a command ends when something goes wrong."""

from collections.abc import Callable
from typing import NoReturn

from rich.console import Console

from verl_cli.errors import InterruptedRunError, UserError, known_failures


def guarded(run: Callable[[], None]) -> None:
    """Turn a known failure into its paragraph on stderr and a non-zero exit."""
    try:
        failures = known_failures()
        try:
            run()
        except InterruptedRunError as error:
            _fail(error, 130)
        except failures as error:
            _fail(error, 1)
    except KeyboardInterrupt:
        _fail(UserError("Interrupted. Files that were already written are whole."), 130)


def _fail(error: Exception, code: int) -> NoReturn:
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"error: {error}", markup=False)
    raise SystemExit(code)
