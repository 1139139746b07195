"""Reward functions from a user's file or installed module."""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, cast

from verl_algos.rewards.source import defined_at, raised_at, said
from verl_algos.rewards.types import RewardFunction, RewardLoadError, RewardModel

_PACKAGE_PREFIX = "pkg://"


def load_custom(path: str | Path, name: str = "compute_score") -> RewardFunction:
    """Load the function `name` from a Python file, or from an installed module written ``pkg://package.module``.

    The file is executed anew at every call, so that an edited one takes effect.

    Raises:
        RewardLoadError: the file or module does not exist or fails while it is executed (chained; also by
            sys.exit), has no such name, or the name is not callable.
    """
    location = str(path)
    if location.startswith(_PACKAGE_PREFIX):
        module = _import_module(location.removeprefix(_PACKAGE_PREFIX))
    else:
        module = _execute_file(Path(path).expanduser())
    if not hasattr(module, name):
        public = ", ".join(sorted(n for n, value in vars(module).items() if callable(value) and not n.startswith("_")))
        raise RewardLoadError(
            f"The reward function {name!r} is not defined in {location}. Callable names there: {public or 'none'}. "
            "Set reward.custom_reward_function.name to one of them."
        )
    function = getattr(module, name)
    if not callable(function):
        raise RewardLoadError(
            f"{name!r} in {location} is a {type(function).__name__}, not a function: a reward function is called as "
            "compute_score(data_source, solution_str, ground_truth, extra_info=None)."
        )
    return cast(RewardFunction, function)


def load_model_class(location: str) -> type[RewardModel]:
    """The class at ``FILE.py:Class`` or ``package.module:Class`` (also written ``pkg://package.module:Class``).

    Raises:
        RewardLoadError: as `load_custom`; or the class is no `RewardModel`.
    """
    path, colon, name = location.rpartition(":")
    if not colon or not path or not name.isidentifier():
        raise RewardLoadError(f"The reward model {location!r} is not written as FILE.py:Class or package.module:Class.")
    if all(map(str.isidentifier, path.split("."))) and not path.endswith(".py"):
        path = _PACKAGE_PREFIX + path
    kind: Any = load_custom(path, name)
    if not isinstance(kind, type) or not issubclass(kind, RewardModel):
        raise RewardLoadError(
            f"{name} in {path} is not a reward model: make it a subclass of verl_algos.rewards.RewardModel that "
            "implements score(rows)."
        )
    return kind


def load_model(location: str, kwargs: Mapping[str, Any] | None = None) -> RewardModel:
    """Make a reward model of the class at ``FILE.py:Class`` or ``package.module:Class``, with `kwargs`.

    Raises:
        RewardLoadError: as `load_model_class`; or the class leaves `score` out, or raises when it is made (chained).
    """
    kind = load_model_class(location)
    try:
        return kind(**(kwargs or {}))
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # a user's class may raise anything, and call sys.exit
        raise RewardLoadError(
            f"The reward model {location} raised {type(error).__name__} when it was made: {said(error)}{_at(error)}. "
            "Correct its options or repair the class."
        ) from error


def check_signature(function: RewardFunction, kwargs: Mapping[str, Any] | None = None) -> None:
    """Raise RewardLoadError if `function` cannot be called as `score_all` calls it; nothing is called.

    A function that tells no signature (a built-in one) is accepted.
    """
    row = {"data_source": "", "solution_str": "", "ground_truth": "", "extra_info": None}
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(**row, **(kwargs or {}))
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        place = f" ({at})" if (at := defined_at(function)) else ""
        options = "".join(f", {option}=..." for option in kwargs or {})
        raise RewardLoadError(
            f"The reward function {name}{place} takes {signature}, but it is called as {name}(data_source=..., "
            f"solution_str=..., ground_truth=..., extra_info=...{options}): {error}. Give it these parameters (or "
            "**kwargs for those that it does not need)" + (", or correct reward_kwargs." if options else ".")
        ) from error


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # a user's module may raise anything, and call sys.exit
        raise RewardLoadError(
            f"The reward module {name} could not be imported: {type(error).__name__}: {said(error)}{_at(error)}. "
            "Install it in this environment, correct the name after pkg://, or repair the module."
        ) from error


class FileModule(SourceFileLoader):
    """Compiles a file as it stands: Python's cache does not notice an edit of the same second and length.

    Keeps the compiled code, so that other processes can run what this one runs, whatever becomes of the file.
    """

    def __init__(self, fullname: str, path: str, code: CodeType | None = None) -> None:
        super().__init__(fullname, path)
        self.code = code

    def get_code(self, fullname: str) -> CodeType | None:
        """Compile the source; nothing is written beside the user's file."""
        if self.code is None:
            self.code = self.source_to_code(self.get_data(self.path), self.path)
        return self.code


def _execute_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise RewardLoadError(
            f"The reward file {path} does not exist (looked in {Path.cwd()}): give the path of a Python file, "
            "or pkg://package.module for an installed module."
        )
    # In sys.modules, as pickle and dataclasses look there; under a name that cannot hide an installed module.
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    module_name = f"verl_custom_reward_{digest}"
    if path.suffix != ".py":
        raise RewardLoadError(f"The reward file {path} is not a Python file: its name must end with .py.")
    spec = importlib.util.spec_from_file_location(module_name, path, loader=FileModule(module_name, str(path)))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except (KeyboardInterrupt, GeneratorExit):
        del sys.modules[module_name]
        raise
    except BaseException as error:  # a user's file may raise anything, and call sys.exit
        del sys.modules[module_name]
        raise RewardLoadError(
            f"The reward file {path} raised {type(error).__name__} while it was loaded: {said(error)}{_at(error)}. "
            "Repair the file."
        ) from error
    return module


def _at(error: BaseException) -> str:
    return f", at {at}" if (at := raised_at(error)) else ""
