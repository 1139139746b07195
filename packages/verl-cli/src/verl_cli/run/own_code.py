"""The files of a user's own function: the one that is named, and those that it imports from beside it.

Only read and parsed: finding out what a file imports imports nothing.
"""

import ast
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

#: Folders of installed packages, whose modules are not the user's.
_INSTALLED = frozenset({"site-packages", "dist-packages"})
#: Packages that are not the user's, wherever they lie.
_NOT_OWN = frozenset({"verl", "verl_algos", "verl_cli", "verl_data", "verl_engine", "verl_rollout"})


def own_files(place: str) -> dict[str, Path]:
    """The files behind a Python file, a module ``package.module`` or ``pkg://package.module``, by what imports name.

    The named file itself stands under the empty name; an empty result means that there is none. Imports are followed
    into modules beside the file, and beside what these import; of an installed package only into the package itself.
    """
    if (file := Path(place).expanduser()).suffix == ".py":
        if not file.is_file():
            return {}
        roots = [file.resolve().parent, *([Path.cwd()] if {"", str(Path.cwd())} & set(sys.path) else [])]
        return {"": file, **_imported(file, "", roots)}
    module = place.removeprefix("pkg://")
    if not all(map(str.isidentifier, module.split("."))) or module.partition(".")[0] in _NOT_OWN:
        return {}
    if (located := _module_file(module)) is None:
        return {}
    file, root = located
    only = module.partition(".")[0] if root.name in _INSTALLED else None
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    found = _imported(file, package, [root], only)
    return {"": file, **{name: other for name, other in found.items() if other != file}}


def _module_file(module: str) -> tuple[Path, Path] | None:
    """The file of a module on the path, and the folder that holds its outermost package; nothing is imported."""
    outermost, *inner = _with_packages(module)
    spec = PathFinder.find_spec(outermost)
    for name in inner:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations))
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    file = Path(spec.origin)
    levels = module.count(".") + (file.name == "__init__.py")
    return file, file.parents[levels]


def _imported(file: Path, package: str, roots: Sequence[Path], only: str | None = None) -> dict[str, Path]:
    """The files that imports lead to from a file of `package`; within `only` one top-level package, if given."""
    found: dict[str, Path] = {}
    waiting = [(file, package)]
    while waiting:
        importing, of_package = waiting.pop()
        for name in _imports(importing, of_package):
            top = name.partition(".")[0]
            if name in found or top in _NOT_OWN | sys.stdlib_module_names or (only is not None and top != only):
                continue
            if (other := _local(name, roots)) is not None:
                found[name] = other
                waiting.append((other, name if other.name == "__init__.py" else name.rpartition(".")[0]))
    return found


def _imports(file: Path, package: str) -> Iterator[str]:
    """The modules that a file may import, packages around them first; a name after ``from`` may be one, too."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):  # whoever loads it says so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_packages(alias.name)
        elif isinstance(node, ast.ImportFrom):
            around = package.split(".")[: package.count(".") + 2 - node.level] if node.level and package else []
            base = ".".join([*around, *([node.module] if node.module else [])])
            for alias in node.names:
                yield from _with_packages(f"{base}.{alias.name}" if base else alias.name)


def _with_packages(name: str) -> Iterator[str]:
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


def _local(name: str, roots: Sequence[Path]) -> Path | None:
    """The file of a module in the first of the folders that has it."""
    for root in roots:
        path = root.joinpath(*name.split("."))
        for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
            if file.is_file():
                return file
    return None
