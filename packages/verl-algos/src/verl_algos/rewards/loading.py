"""Reward functions from a user's file or installed module."""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeGuard, cast

from verl_algos.import_path import hint, no_function
from verl_algos.rewards.source import defined_at, raised_at, said
from verl_algos.rewards.types import RewardFunction, RewardLoadError, RewardModel

_PACKAGE_PREFIX = "pkg://"
_FUNCTION_KEY, _MODEL_KEY = "reward.custom_reward_function", "reward.reward_model"


def load_custom(path: str | Path, name: str = "compute_score") -> RewardFunction:
    """Load the function `name` from a Python file, or from an installed module written ``pkg://package.module``.

    The file is executed anew at every call, so that an edited one takes effect.

    Raises:
        RewardLoadError: the file or module does not exist or fails while it is executed (chained; also by
            sys.exit), has no such name, or it is no function: a class, say. An object that can be called is one.
    """
    module = _load(str(path))
    if not hasattr(module, name):
        public = _public(module, lambda value: no_function(value, may_be_async=True) is None)
        raise RewardLoadError(
            f"The reward function {name!r} is not defined in {path}. Callable names there: "
            f"{', '.join(public) or 'none'}.{hint(name, public)} Set {_FUNCTION_KEY}.name to one of them."
        )
    function = getattr(module, name)
    if (kind := no_function(function, may_be_async=True)) is not None:
        remedy = ""
        if _is_model_class(function):
            remedy = f" It is a reward model: set {_MODEL_KEY}.path={path}:{name} instead of {_FUNCTION_KEY}.path."
        raise RewardLoadError(
            f"{name!r} in {path} is {kind}, not a function: a reward function is called as "
            f"compute_score(data_source, solution_str, ground_truth, extra_info=None).{remedy}"
        )
    return cast(RewardFunction, function)


def load_model_class(location: str) -> type[RewardModel]:
    """The class at ``FILE.py:Class`` or ``package.module:Class`` (also written ``pkg://package.module:Class``).

    Raises:
        RewardLoadError: as `load_custom`; or the class is no `RewardModel`, leaves `score` out, or has one that cannot
            be called with the rows or is async.
    """
    path, colon, name = location.rpartition(":")
    if not colon or not path or not name.isidentifier():
        raise RewardLoadError(f"The reward model {location!r} is not written as FILE.py:Class or package.module:Class.")
    if all(map(str.isidentifier, path.split("."))) and not path.endswith(".py"):
        path = _PACKAGE_PREFIX + path
    module = _load(path)
    kind = getattr(module, name, None)
    if not _is_model_class(kind):
        public = _public(module, _is_model_class)
        if not hasattr(module, name):
            problem = f"The reward model {name!r} is not defined in {path}."
        else:
            what = f"a {type(kind).__name__}, and not its class" if isinstance(kind, RewardModel) else no_function(kind)
            problem = f"{name} in {path} is not a reward model but {what or 'a function'}."
            if what != "a class" and callable(kind):
                problem += f" A function is named by {_FUNCTION_KEY}.path={path} and .name={name}."
        raise RewardLoadError(
            f"{problem} Reward models there: {', '.join(public) or 'none'}."
            f"{hint(name, [*public, *getattr(module, '__all__', ())])} Correct the class that {_MODEL_KEY}.path "
            "names, or make it a subclass of verl_algos.rewards.RewardModel that implements score(rows)."
        )
    _check_score(kind, f"The reward model {name} in {path}")
    return kind


def _check_score(kind: type[RewardModel], called: str) -> None:
    if inspect.isabstract(kind):
        raise RewardLoadError(
            f"{called} does not implement {', '.join(sorted(kind.__abstractmethods__))}: give it score(self, rows), "
            "which returns one reward for each row."
        )
    if (what := no_function(kind.score)) is not None:
        raise RewardLoadError(
            f"{called} has a score that is {what}, but score(rows) is called plainly and returns the rewards "
            "themselves. Make it a plain method (asyncio.run awaits inside), or write an async reward function for one "
            f"row and name it by {_FUNCTION_KEY}.path."
        )
    is_method = inspect.isfunction(inspect.getattr_static(kind, "score"))
    signature = inspect.signature(kind.score)
    try:
        signature.bind(*([None, []] if is_method else [[]]))
    except TypeError as error:
        raise RewardLoadError(
            f"{called} has score{signature}, which cannot be called as model.score(rows): {error}. Write it as "
            "score(self, rows)."
        ) from error


def load_model(location: str, kwargs: Mapping[str, Any] | None = None) -> RewardModel:
    """Make a reward model of the class at ``FILE.py:Class`` or ``package.module:Class``, with `kwargs`.

    Raises:
        RewardLoadError: as `load_model_class`; or the class raises when it is made (chained).
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


def _is_model_class(value: object) -> TypeGuard[type[RewardModel]]:
    return isinstance(value, type) and issubclass(value, RewardModel) and value is not RewardModel


def _public(module: ModuleType, wanted: Callable[[object], bool]) -> list[str]:
    return sorted(name for name, value in vars(module).items() if not name.startswith("_") and wanted(value))


def _load(location: str) -> ModuleType:
    if location.startswith(_PACKAGE_PREFIX):
        return _import_module(location.removeprefix(_PACKAGE_PREFIX))
    return _execute_file(Path(location).expanduser())


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
