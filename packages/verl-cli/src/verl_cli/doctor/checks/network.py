"""Do the settings of NCCL and Gloo name things that exist?"""

from collections.abc import Iterator, Mapping, Sequence

from verl_cli.doctor.facts.host import Limit
from verl_cli.doctor.facts.network import NetworkFacts, Setting
from verl_cli.doctor.finding import Finding, note, ok, problem

#: What a setting costs, for those that are often left over from hunting an error.
_SLOWER = {
    "NCCL_P2P_DISABLE": "GPUs of one host do not reach each other directly (NVLink, PCIe): weight sync and gradients "
    "pass through the host's memory",
    "NCCL_SHM_DISABLE": "GPUs of one host that do not reach each other directly talk through the network",
    "NCCL_IB_DISABLE": "traffic between hosts takes TCP instead of InfiniBand or RoCE",
}


def judge_network(facts: NetworkFacts, locked_memory: Limit, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Interfaces, adapters, and settings that slow NCCL down."""
    yield judge_interfaces(facts, environ)
    yield judge_adapters(facts)
    if facts.adapters:
        yield judge_verbs(facts, locked_memory)
    yield judge_slow_settings(facts)


def judge_interfaces(facts: NetworkFacts, environ: Mapping[str, str]) -> Finding:
    """NCCL_SOCKET_IFNAME is a pattern (see `select`), GLOO_SOCKET_IFNAME a list of names."""
    name, there = "network interfaces", facts.interfaces
    if there is None:
        return ok(name, "this system does not list them")
    remedies, wrong, right = [], [], []
    nccl, gloo = facts.nccl.get("NCCL_SOCKET_IFNAME"), environ.get("GLOO_SOCKET_IFNAME")
    if nccl is not None:
        if select(nccl.value, there):
            right.append(f"NCCL_SOCKET_IFNAME={nccl.value}")
        else:
            wrong.append(f"{_told('NCCL_SOCKET_IFNAME', nccl)} leaves NCCL no interface")
            remedies.append("NCCL_SOCKET_IFNAME")
    if gloo:
        missing = [part for part in gloo.split(",") if part.strip() not in there]
        if missing:
            wrong.append(f"GLOO_SOCKET_IFNAME={gloo} names {', '.join(missing)}")
            remedies.append("GLOO_SOCKET_IFNAME")
        else:
            right.append(f"GLOO_SOCKET_IFNAME={gloo}")
    if wrong:
        return problem(
            name,
            f"{'; '.join(wrong)}; this machine has {', '.join(there) or 'none'}",
            f"Unset {' and '.join(remedies)}, or name an interface that the other hosts can reach (`ip addr`).",
        )
    return ok(name, ", ".join(there) + (f" ({', '.join(right)})" if right else ""))


def judge_adapters(facts: NetworkFacts) -> Finding:
    """NCCL_IB_HCA is read as NCCL_SOCKET_IFNAME is, with an optional port after each name."""
    name, there = "InfiniBand", facts.adapters
    asked = facts.nccl.get("NCCL_IB_HCA")
    if asked is not None and not select(asked.value, list(there)):
        return problem(
            name,
            f"{_told('NCCL_IB_HCA', asked)} leaves NCCL no adapter; this machine has {', '.join(there) or 'none'}",
            "Unset NCCL_IB_HCA, or name adapters of this machine (`ls /sys/class/infiniband`).",
        )
    if not there:
        return ok(name, "no adapter: hosts would talk through TCP")
    down = [f"{adapter}:{port}" for adapter, ports in there.items() for port, active in ports.items() if not active]
    if down:
        every = len(down) == sum(len(ports) for ports in there.values())
        return note(
            name,
            f"{', '.join(there)}; without an active link: {', '.join(down)}",
            "NCCL takes TCP: have the link checked if you mean to use several hosts (`ibstat`)."
            if every
            else "NCCL uses the active ports. Have the others checked (`ibstat`) if they should carry traffic.",
        )
    return ok(name, f"{', '.join(there)}, links active" + (f" (NCCL_IB_HCA={asked.value})" if asked else ""))


def judge_verbs(facts: NetworkFacts, locked_memory: Limit) -> Finding:
    """Adapters are used through device files and with memory that is locked."""
    name = "InfiniBand access"
    if not facts.has_verbs:
        return problem(
            name,
            "/dev/infiniband is missing, so NCCL cannot open the adapters",
            "Start the container with `--device=/dev/infiniband --ulimit memlock=-1`, or set NCCL_IB_DISABLE=1 to take "
            "TCP knowingly.",
        )
    if locked_memory.soft is not None:
        return problem(
            name,
            f"at most {locked_memory.soft // 1024:,} KiB may be locked in memory, and InfiniBand locks its buffers",
            "`ulimit -l unlimited` before the run; in Docker `--ulimit memlock=-1`; for everybody in "
            "/etc/security/limits.conf (Slurm: LimitMEMLOCK=infinity in the unit of slurmd).",
        )
    return ok(name, "device files are there, and memory may be locked without limit")


def judge_slow_settings(facts: NetworkFacts) -> Finding:
    """Settings that make NCCL slower."""
    name = "NCCL settings"
    slow = [
        (setting_name, f"{_told(setting_name, setting)}: {_SLOWER[setting_name]}")
        for setting_name, setting in facts.nccl.items()
        if setting_name in _SLOWER
        and setting.value not in {"", "0"}
        and (setting_name != "NCCL_IB_DISABLE" or facts.adapters)
    ]
    level = facts.nccl.get("NCCL_P2P_LEVEL")
    if level is not None and level.value.upper() in {"LOC", "0"}:
        slow.append(("NCCL_P2P_LEVEL", f"{_told('NCCL_P2P_LEVEL', level)}: {_SLOWER['NCCL_P2P_DISABLE']}"))
    if slow:
        return note(
            name,
            "; ".join(told for _, told in slow),
            f"Unset {', '.join(setting_name for setting_name, _ in slow)} unless a fault of this machine needs it.",
        )
    return ok(name, ", ".join(f"{key}={setting.value}" for key, setting in facts.nccl.items()) or "none")


def select(pattern: str, names: Sequence[str]) -> list[str]:
    """The names that a list in NCCL's form selects: `a,b` prefixes, `=a,b` whole names, `^...` all but those.

    A port after a name (`mlx5_0:1`) selects the same name. Source: NCCL user guide, environment variables.
    """
    leave_out = pattern.startswith("^")
    rest = pattern.removeprefix("^")
    whole = rest.startswith("=")
    parts = [part.strip().partition(":")[0] for part in rest.removeprefix("=").split(",")]
    parts = [part for part in parts if part]

    def named(candidate: str) -> bool:
        return any(candidate == part if whole else candidate.startswith(part) for part in parts)

    return [candidate for candidate in names if named(candidate) != leave_out]


def _told(name: str, setting: Setting) -> str:
    return f"{name}={setting.value}" + ("" if setting.source == "the environment" else f" (in {setting.source})")
