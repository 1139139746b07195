"""Is Ray's house in order? Nothing is ended and nothing removed."""

import shlex
from collections.abc import Iterator

from verl_cli.doctor.facts.ray_sessions import RayFacts, RaySession
from verl_cli.doctor.finding import Finding, note, ok, problem

#: A living session writes its logs every few seconds, also one in another container that shares the folder.
_IDLE_SECONDS = 600.0
#: Room that Ray needs below its folder for the names of its sockets: /session_<26>_<pid of 7>/sockets/plasma_store.
_SOCKET_NAME = 64
#: Length of a socket's path that every system takes (sun_path: 108 bytes on Linux, 104 on macOS).
_LONGEST_SOCKET = 103


def judge_ray(facts: RayFacts, *, installed: bool) -> Iterator[Finding]:
    """Sessions left behind, clusters that run, and the address that a run would use."""
    yield judge_processes(facts)
    yield judge_sessions(facts)
    yield judge_address(facts)
    longest = _LONGEST_SOCKET - _SOCKET_NAME
    if installed and len(facts.folder) > longest:
        yield problem(
            "Ray folder",
            f"{facts.folder} has {len(facts.folder)} characters, and the names of Ray's sockets in it become longer "
            f"than the system takes",
            f"Set RAY_TMPDIR to a folder whose path has at most {longest - len('/ray')} characters.",
        )


def judge_processes(facts: RayFacts) -> Finding:
    """Ray that runs on this machine now."""
    name = "running Ray"
    if facts.processes is None:
        return ok(name, "this system does not show processes")
    strangers = [process for process in facts.processes if process.user != facts.user]
    own = [process for process in facts.processes if process.user == facts.user]
    if strangers:
        who = ", ".join(f"{process.user} (pid {process.pid})" for process in strangers)
        return note(
            name,
            f"Ray of {who} runs here",
            f"It is left alone. Keep yours apart: RAY_TMPDIR=/tmp/{facts.user}, and ports of its own if you use `ray "
            f"start` (--port, --dashboard-port). Its GPUs and cores are in use.",
        )
    if own:
        pids = ", ".join(str(process.pid) for process in own)
        return note(
            name,
            f"your own Ray runs here (pid {pids})",
            "A run joins it. If you forgot it, end it with `ray stop`.",
        )
    return ok(name, "none")


def judge_sessions(facts: RayFacts) -> Finding:
    """Folders of sessions whose processes are gone."""
    name = "Ray sessions"
    stale = [session for session in facts.sessions if _is_stale(session, facts)]
    own = [session for session in stale if session.user == facts.user]
    seen = f"{len(facts.sessions)} in {facts.folder}" if facts.sessions else f"none in {facts.folder}"
    if own:
        size = sum(session.size_bytes for session in own) / 2**30
        about = "" if all(session.complete for session in own) else "at least "
        paths = " ".join(shlex.quote(session.path) for session in own[:3])
        more = f" and {len(own) - 3} more" if len(own) > 3 else ""
        return note(
            name, f"{len(own)} whose processes are gone, {about}{size:.1f} GiB", f"Remove them: `rm -r {paths}`{more}."
        )
    if stale:
        users = ", ".join(sorted({session.user for session in stale}))
        return ok(name, f"{seen}, of {users}")
    return ok(name, seen)


def _is_stale(session: RaySession, facts: RayFacts) -> bool:
    """Nobody uses the folder, as far as can be seen from here."""
    if facts.processes is None or session.idle_seconds < _IDLE_SECONDS:
        return False
    # A process that does not tell its session may be the one.
    return all(process.session not in {session.name, None} for process in facts.processes)


def judge_address(facts: RayFacts) -> Finding:
    """The cluster that a run would join."""
    name = "Ray address"
    if facts.address is not None:
        if facts.reachable is False:
            return problem(
                name,
                f"RAY_ADDRESS={facts.address}, and nothing answers there",
                "Start that cluster (`ray start --head`), correct RAY_ADDRESS, or unset it for a Ray of the run's own.",
            )
        if facts.address == "auto" and facts.processes == ():
            return problem(
                name,
                "RAY_ADDRESS=auto, and no Ray runs on this machine",
                "Start one (`ray start --head`), or unset RAY_ADDRESS for a Ray of the run's own.",
            )
        return ok(name, f"RAY_ADDRESS={facts.address}" + (" answers" if facts.reachable else ""))
    if facts.last_reachable is False:
        return note(
            name,
            f"{facts.folder}/ray_current_cluster names {facts.last_address}, and nothing answers there",
            f"Remove that file, which a killed Ray left: `rm {shlex.quote(facts.folder)}/ray_current_cluster`.",
        )
    return ok(name, "RAY_ADDRESS is not set")
