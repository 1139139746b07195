"""Network interfaces, InfiniBand adapters, and what NCCL and Gloo are told about them."""

import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from verl_cli.system.system_files import entries_of, home_folder, text_of


@dataclass(frozen=True)
class Setting:
    """A setting of NCCL and where it stands: "the environment" or a file."""

    value: str
    source: str = "the environment"


@dataclass(frozen=True)
class NetworkFacts:
    """Names as the system knows them; None where it does not tell."""

    interfaces: tuple[str, ...] | None = None
    #: InfiniBand and RoCE adapters, and for each port whether its link is active.
    adapters: Mapping[str, Mapping[int, bool]] = field(default_factory=dict)
    #: Whether /dev/infiniband is there, which programs need to use the adapters.
    has_verbs: bool = False
    nccl: Mapping[str, Setting] = field(default_factory=dict)


def gather_network(environ: Mapping[str, str], root: Path = Path("/")) -> NetworkFacts:
    """Read `sys`, `dev` and NCCL's files under `root`."""
    return NetworkFacts(
        interfaces=_interfaces(root / "sys/class/net"),
        adapters={
            adapter.name: {
                int(port.name): "ACTIVE" in text_of(port / "state") for port in entries_of(adapter / "ports")
            }
            for adapter in entries_of(root / "sys/class/infiniband")
        },
        has_verbs=any((root / "dev/infiniband").glob("uverbs*")),
        nccl=dict(_nccl(environ, root)),
    )


def _interfaces(folder: Path) -> tuple[str, ...] | None:
    if folder.is_dir():
        return tuple(sorted(entry.name for entry in entries_of(folder) if entry.is_dir()))
    try:
        return tuple(name for _, name in socket.if_nameindex())
    except OSError:
        return None


def _nccl(environ: Mapping[str, str], root: Path) -> Iterator[tuple[str, Setting]]:
    """Settings from the weakest place to the strongest: the system's file, the user's file, the environment."""
    own = environ.get("NCCL_CONF_FILE") or home_folder(environ) / ".nccl.conf"
    for file in (root / "etc/nccl.conf", Path(own)):
        for line in text_of(file).splitlines():
            name, equals, value = line.partition("=")
            if equals and name.strip().startswith("NCCL_"):
                yield name.strip(), Setting(value.strip(), str(file))
    for name, value in sorted(environ.items()):
        if name.startswith("NCCL_"):
            yield name, Setting(value)
