"""Hubs, proxies and loggers: what a run reaches outside this machine."""

import re
from collections.abc import Iterator, Mapping

from verl_cli.doctor.finding import Finding, note, ok, problem

_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")


def judge_services(environ: Mapping[str, str], *, wandb_installed: bool, wandb_login: bool) -> Iterator[Finding]:
    """Offline settings, the hub's address, proxies and wandb."""
    yield judge_offline(environ)
    yield judge_endpoint(environ)
    yield judge_proxies(environ)
    yield judge_wandb(environ, installed=wandb_installed, login=wandb_login)


def judge_offline(environ: Mapping[str, str]) -> Finding:
    """huggingface_hub reads HF_HUB_OFFLINE, and TRANSFORMERS_OFFLINE only where that is empty."""
    name = "Hugging Face hub"
    hub, transformers = environ.get("HF_HUB_OFFLINE", ""), environ.get("TRANSFORMERS_OFFLINE", "")
    if hub and transformers and _is_true(hub) != _is_true(transformers):
        return note(
            name,
            f"HF_HUB_OFFLINE={hub} and TRANSFORMERS_OFFLINE={transformers} contradict each other; the first counts",
            "Unset TRANSFORMERS_OFFLINE.",
        )
    if _is_true(hub or transformers):
        which = "HF_HUB_OFFLINE" if hub else "TRANSFORMERS_OFFLINE"
        return note(
            name,
            f"offline ({which}={hub or transformers})",
            f"Models and data sets come from folders and the cache; a name that is in neither fails. Unset {which} to "
            f"download.",
        )
    if environ.get("TRANSFORMERS_CACHE"):
        return note(
            name,
            f"TRANSFORMERS_CACHE={environ['TRANSFORMERS_CACHE']} is no longer read by transformers",
            "Set HF_HOME (or HF_HUB_CACHE) instead.",
        )
    return ok(name, "not offline by any setting (whether the hub answers was not tried)")


def judge_endpoint(environ: Mapping[str, str]) -> Finding:
    """A mirror is a whole address."""
    name, endpoint = "hub address", environ.get("HF_ENDPOINT", "")
    if not endpoint:
        return ok(name, "https://huggingface.co")
    if not re.match(r"https?://[^/]", endpoint):
        return problem(
            name,
            f"HF_ENDPOINT={without_password(endpoint)} is not a whole address",
            "Write it with its scheme, such as HF_ENDPOINT=https://hf-mirror.com, or unset it.",
        )
    return ok(name, f"HF_ENDPOINT={without_password(endpoint)}")


def judge_proxies(environ: Mapping[str, str]) -> Finding:
    """A proxy must not come between the processes of this machine."""
    name = "proxy"
    there = {
        key: value
        for key in _PROXIES
        for spelt in (key, key.upper())
        if (value := environ.get(spelt))
        for key in [spelt]
    }
    if not there:
        return ok(name, "none")
    seen = ", ".join(f"{key}={without_password(value)}" for key, value in there.items())
    spared = environ.get("no_proxy") or environ.get("NO_PROXY") or environ.get("no_grpc_proxy") or ""
    hosts = {host.strip() for host in spared.split(",")}
    missing = [host for host in ("localhost", "127.0.0.1") if host not in hosts and "*" not in hosts]
    if missing:
        return note(
            name,
            f"{seen}; no_proxy lacks {' and '.join(missing)}",
            "Ray and vLLM talk to themselves through these addresses, and wait for ever behind a proxy: "
            "no_proxy=localhost,127.0.0.1 and the addresses of your other hosts.",
        )
    return ok(name, f"{seen}; no_proxy={spared}")


def judge_wandb(environ: Mapping[str, str], *, installed: bool, login: bool) -> Finding:
    """Without a key wandb keeps its files here; the key itself is never shown."""
    name, mode = "wandb", environ.get("WANDB_MODE", "").lower()
    if not installed:
        return ok(name, "not installed: trainer.logger=wandb needs `pip install 'verl-cli[wandb]'`")
    if mode in {"offline", "disabled", "dryrun"}:
        return note(name, f"WANDB_MODE={mode}", "Runs are not sent. Unset it, or send them later with `wandb sync`.")
    if not login and not environ.get("WANDB_API_KEY"):
        return note(
            name,
            "no key: runs with trainer.logger=wandb are kept offline",
            "`wandb login`, or set WANDB_API_KEY; send what was kept with `wandb sync`.",
        )
    return ok(name, "a key is there")


def without_password(address: str) -> str:
    """The address without what stands before an @."""
    return re.sub(r"^(\w[\w+.-]*://)?.*@", r"\1***@", address)


def _is_true(text: str) -> bool:
    """As huggingface_hub reads a switch."""
    return text.upper() in {"1", "ON", "YES", "TRUE"}
