"""Functions and their modules as bytes that another process of the same Python understands.

What can be imported there travels by name. The module of a reward file travels as its compiled code, so that a worker
that starts after an edit runs what the others run. What lives in a script, a notebook or another function travels by
value: its code with the names that it uses. So nothing is asked of the script that starts the workers: no
``if __name__ == "__main__"``.
"""

import abc
import enum
import importlib.machinery
import io
import marshal
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, cast

from verl_algos.rewards.loading import FileModule

#: Names of modules that were rebuilt here by value, with what their functions share.
_globals: dict[str, dict[str, Any]] = {}

_CLASS_PARTS_LEFT_OUT = frozenset({"__dict__", "__weakref__", "_abc_impl", "__abstractmethods__"})


def dumps(value: object) -> bytes:
    """Pickle `value`; functions, classes and modules as described above.

    Raises:
        Exception: whatever the pickling of its parts raises.
    """
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(value)
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        if isinstance(value, types.ModuleType):
            return self._module(value)
        if isinstance(value, types.MappingProxyType):
            return types.MappingProxyType, (dict(value),)
        if isinstance(value, staticmethod | classmethod):
            return type(value), (value.__func__,)
        if isinstance(value, property):
            return property, (value.fget, value.fset, value.fdel, value.__doc__)
        return NotImplemented

    def _module(self, module: types.ModuleType) -> Any:
        if isinstance(loader := getattr(module, "__loader__", None), FileModule) and loader.code is not None:
            return _module_of_code, (module.__name__, module.__file__, marshal.dumps(loader.code))
        return importlib.import_module, (module.__name__,)

    def _function(self, function: types.FunctionType) -> Any:
        if (home := _home(function)) is not None:
            return home
        code = function.__code__
        used = {name: function.__globals__[name] for name in _names(code) if name in function.__globals__}
        cells = None if function.__closure__ is None else tuple(_content(cell) for cell in function.__closure__)
        state = {
            "globals": used,
            "cells": cells,
            "defaults": function.__defaults__,
            "kwdefaults": function.__kwdefaults__,
            "attributes": {
                "__dict__": dict(function.__dict__),
                "__qualname__": function.__qualname__,
                "__doc__": function.__doc__,
                "__module__": function.__module__,
                "__annotations__": {},
            },
        }
        shell = (marshal.dumps(code), function.__module__ or "__main__", function.__globals__.get("__file__"))
        return _shell, (*shell, len(function.__closure__ or ())), state, None, None, _fill_function

    def _class(self, kind: type) -> Any:
        if (home := _home(kind)) is not None:
            return home
        if issubclass(kind, enum.Enum) and kind.__members__:
            return self._enum(kind)
        parts = {
            name: part
            for name, part in vars(kind).items()
            if name not in _CLASS_PARTS_LEFT_OUT and not isinstance(part, types.MemberDescriptorType)
        }
        slots = {name: parts.pop(name) for name in ("__slots__", "__module__", "__qualname__") if name in parts}
        return _class_shell, (type(kind), kind.__name__, kind.__bases__, slots), parts, None, None, _fill_class

    def _enum(self, kind: type[enum.Enum]) -> Any:
        members = {name: member.value for name, member in kind.__members__.items()}
        methods = {
            name: part
            for name, part in vars(kind).items()
            if isinstance(part, types.FunctionType | property | staticmethod | classmethod) and name[0] != "_"
        }
        origin = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
        shell = (type(kind), kind.__name__, kind.__bases__, origin | members)
        return _enum_shell, shell, methods, None, None, _fill_class


def _home(value: Any) -> Any:
    """How to reach a function or class by name in another process; None if it cannot be."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if module is None or "<" in value.__qualname__:
        return None
    if _reach(module, value.__qualname__) is not value:
        return None
    if isinstance(getattr(module, "__loader__", None), FileModule):
        return _reach, (module, value.__qualname__)
    return NotImplemented if _importable(module) else None  # NotImplemented: as pickle does


def _reach(module: types.ModuleType, qualname: str) -> Any:
    found: Any = module
    for name in qualname.split("."):
        found = getattr(found, name, None)
    return found


def _importable(module: types.ModuleType) -> bool:
    """Whether a fresh process with the same sys.path would find this very module under its name."""
    name = module.__name__
    if name == "__main__":
        return False
    if name in sys.builtin_module_names or name.partition(".")[0] in sys.stdlib_module_names:
        return True
    path: Any = None
    spec = None
    prefix = ""
    for part in name.split("."):
        prefix = f"{prefix}.{part}" if prefix else part
        spec = next((spec for finder in _finders() if (spec := finder.find_spec(prefix, path)) is not None), None)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    own = module.__spec__
    return spec is not None and own is not None and spec.origin == own.origin


def _finders() -> Iterator[Any]:
    yield importlib.machinery.PathFinder
    for finder in sys.meta_path:  # of packages that are installed editable
        if getattr(finder, "__module__", type(finder).__module__).startswith("__editable__"):
            yield finder


def _names(code: types.CodeType) -> set[str]:
    """Global names that `code` and the functions inside it may use."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant)
    return names


class _Empty:
    """The content of a cell that has none."""


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _Empty()


# --- in the other process


def _shell(code: bytes, module: str, file: str | None, cells: int) -> types.FunctionType:
    shared = _globals.setdefault(module, {"__name__": module, "__builtins__": __builtins__, "__file__": file})
    closure = tuple(types.CellType() for _ in range(cells))
    return types.FunctionType(marshal.loads(code), shared, closure=closure)


def _fill_function(function: types.FunctionType, state: dict[str, Any]) -> None:
    for name, value in state["globals"].items():
        function.__globals__.setdefault(name, value)
    for cell, content in zip(function.__closure__ or (), state["cells"] or (), strict=True):
        if not isinstance(content, _Empty):
            cell.cell_contents = content
    function.__defaults__, function.__kwdefaults__ = state["defaults"], state["kwdefaults"]
    attributes = state["attributes"]
    function.__dict__.update(attributes.pop("__dict__"))
    for name, value in attributes.items():
        setattr(function, name, value)


def _class_shell(metaclass: Callable[..., type], name: str, bases: tuple[type, ...], parts: dict[str, Any]) -> type:
    return metaclass(name, bases, parts)


def _enum_shell(metaclass: Any, name: str, bases: tuple[type, ...], members: dict[str, Any]) -> type:
    namespace = metaclass.__prepare__(name, bases)
    for member, value in members.items():
        namespace[member] = value
    return cast(type, metaclass(name, bases, namespace))


def _fill_class(kind: type, parts: dict[str, Any]) -> None:
    for name, part in parts.items():
        if name not in ("__doc__", "__hash__") or part is not None:
            setattr(kind, name, part)
    if isinstance(kind, abc.ABCMeta):
        abc.update_abstractmethods(cast(Any, kind))


def _module_of_code(name: str, file: str, code: bytes) -> types.ModuleType:
    if name not in sys.modules:
        module = types.ModuleType(name)
        module.__file__ = file
        compiled = marshal.loads(code)
        module.__loader__ = FileModule(name, file, compiled)
        sys.modules[name] = module
        exec(compiled, vars(module))
    return sys.modules[name]
