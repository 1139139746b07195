"""What a run will do, before it does it: `verl-cli plan` and `verl-cli train --dry-run`.

A plan needs no GPU and no torch, writes nothing and lists everything that is wrong at once. A name is imported at its
first use: the child process of `tokenizing` lives in this package too and needs little of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl_cli.plan.make import make_plan
    from verl_cli.plan.plan import Plan
    from verl_cli.plan.run import run_plan
    from verl_cli.plan.screen import render

__all__ = ["Plan", "make_plan", "render", "run_plan"]

#: The module of each public name.
_MODULES = {"Plan": "plan", "make_plan": "make", "render": "screen", "run_plan": "run"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
