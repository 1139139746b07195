"""Cores, threads, memory and limits."""

from collections.abc import Iterator, Mapping

from verl_cli.doctor.facts.host import HostFacts
from verl_cli.doctor.finding import Finding, note, ok, problem
from verl_cli.system.resources import cpu_limit, cpu_limit_source

GIB = 2**30
#: What Docker and Kubernetes give a container that asks for nothing.
_CONTAINER_SHARED_MEMORY = 64 * 2**20
#: NCCL takes tens of MiB a rank, vLLM's workers and data workers pass batches through it.
_ENOUGH_SHARED_MEMORY = GIB
_SCARCE_MEMORY = 2 * GIB
#: Ray opens files for every worker and every connection, and advises this much.
_ENOUGH_FILES = 65_536
_FEW_FILES = 4_096
_FEW_PROCESSES = 4_096
#: From here on a pool of one thread a core costs more than it gains, and such machines are seldom one person's own.
_MANY_CORES = 16


def judge_host(facts: HostFacts, environ: Mapping[str, str]) -> Iterator[Finding]:
    """What a run may use of this machine."""
    yield judge_cores(facts, environ)
    yield judge_threads(facts, environ)
    yield judge_memory(facts)
    yield judge_shared_memory(facts)
    yield judge_limits(facts)
    yield judge_encoding(facts)


def usable_cores(facts: HostFacts, environ: Mapping[str, str]) -> int:
    """Cores that a run may use: what the system allows, and Slurm's allotment if that is less."""
    return min(facts.cpu.cores, cpu_limit(environ) or facts.cpu.cores)


def judge_cores(facts: HostFacts, environ: Mapping[str, str]) -> Finding:
    """How many cores a run may use, and why."""
    name, cpu, source = "CPU cores", facts.cpu, cpu_limit_source(environ)
    try:
        slurm = cpu_limit(environ)
    except ValueError as error:
        return problem(name, str(error).partition(". ")[0], f"Unset {source}, or set it to the cores of the job.")
    reasons = []
    if slurm is not None:
        reasons.append(f"{source}={slurm}")
    if cpu.affinity < cpu.host:
        reasons.append(f"this process may run on {cpu.affinity} cores (CPU affinity)")
    if cpu.quota is not None and cpu.quota < cpu.affinity:
        reasons.append(f"its control group has CPU time for {cpu.quota:g}")
    seen = f"a run may use {usable_cores(facts, environ)} of {cpu.host}" + (
        f": {'; '.join(reasons)}" if reasons else ""
    )
    if slurm is not None and slurm < cpu.cores:
        return note(
            name,
            seen,
            f"Slurm counts on {slurm} and does not hold the job to it: other programs than verl-cli take all "
            f"{cpu.cores}. Start Ray yourself with `ray start --num-cpus={slurm}`; ask Slurm for more with "
            f"--cpus-per-task.",
        )
    if slurm is not None and slurm > cpu.cores:
        return note(
            name,
            seen,
            f"Slurm allotted {slurm} cores to the job, and this process gets {cpu.cores}: start it with `srun "
            f"--cpus-per-task={slurm}`, which passes the allotment on.",
        )
    return ok(name, seen)


def judge_threads(facts: HostFacts, environ: Mapping[str, str]) -> Finding:
    """torch starts a thread for each core that it sees, in every process."""
    name, cpu, text = "threads", facts.cpu, environ.get("OMP_NUM_THREADS", "")
    try:
        cores = usable_cores(facts, environ)
    except ValueError:  # judge_cores
        cores = cpu.cores
    cost = "threads that wait for each other on a busy core make torch about ten times slower"
    if text.isdigit() and int(text) > cores:
        return problem(
            name, f"OMP_NUM_THREADS={text}, and {cores} cores: {cost}", f"Set OMP_NUM_THREADS to {cores} at most."
        )
    if text:
        return ok(name, f"OMP_NUM_THREADS={text}")
    sees = cpu.affinity
    if sees > cores:
        return note(
            name,
            f"OMP_NUM_THREADS is not set: torch starts {sees} threads, one for each core it sees, on {cores} that it "
            f"may use; {cost}",
            f"Set OMP_NUM_THREADS={cores} (divided by the processes of the run).",
        )
    # The load counts the processes of the whole host.
    busy = facts.load is not None and facts.load > cpu.host / 2 and cpu.host > 1
    if busy or cores >= _MANY_CORES:
        why = f" on a busy machine (load {facts.load:.1f} of {cpu.host})" if busy else ""
        return note(
            name,
            f"OMP_NUM_THREADS is not set: each process of a run starts {cores} threads{why}; {cost}",
            "Set OMP_NUM_THREADS to the cores that each process has for itself; on a shared machine to 1.",
        )
    return ok(name, f"OMP_NUM_THREADS is not set: {cores} threads")


def judge_memory(facts: HostFacts) -> Finding:
    """A control group ends a process that goes beyond its limit, without a message."""
    name, total, limit = "memory", facts.memory_bytes, facts.memory_limit_bytes
    if total is None:
        return ok(name, "this system does not tell")
    available = min(facts.available_bytes or total, limit or total)
    free = f"{_gib(available)} available"
    if limit is not None and limit < total:
        return note(
            name,
            f"the control group of this process may use {_gib(limit)} of the host's {_gib(total)}",
            "A process beyond it is ended without a message (exit code -9 or 137). Give the container or job more "
            "(`docker run --memory`, `sbatch --mem`), or lower micro-batches and offloading.",
        )
    if available < _SCARCE_MEMORY:
        return note(
            name,
            f"{free} of {_gib(total)}",
            "End what you no longer need: the first import of torch alone takes about half a GiB.",
        )
    return ok(name, f"{free} of {_gib(total)}")


def judge_shared_memory(facts: HostFacts) -> Finding:
    """Processes of one host exchange batches and NCCL its messages through /dev/shm."""
    name, there = "shared memory", facts.shared_memory
    if there is None:
        return ok(name, "no /dev/shm on this system")
    seen = f"/dev/shm has {_size(there.free)} free of {_size(there.total)}"
    remedy = (
        "Start the container with `--shm-size=16g` or `--ipc=host` (Kubernetes: mount an emptyDir with medium Memory "
        "on /dev/shm)."
    )
    if there.total <= _CONTAINER_SHARED_MEMORY:
        return problem(
            name, f"{seen}: NCCL, vLLM and data workers fail with a bus error or 'no space left on device'", remedy
        )
    if there.free <= _CONTAINER_SHARED_MEMORY:
        return problem(
            name,
            f"{seen}: it is full",
            "Look at `ls -l /dev/shm` and remove what programs that were killed left there.",
        )
    if there.total < _ENOUGH_SHARED_MEMORY:
        return note(name, f"{seen}, which several ranks use up", remedy)
    return ok(name, seen)


def judge_limits(facts: HostFacts) -> Finding:
    """Open files and processes; memory that may be locked matters with InfiniBand only (`judge_verbs`)."""
    name, files, processes = "limits", facts.open_files, facts.processes
    locked = "unlimited" if facts.locked_memory.soft is None else _size(facts.locked_memory.soft)
    seen = f"open files {_count(files.soft)}, processes {_count(processes.soft)}, locked memory {locked}"
    few_processes = processes.soft is not None and processes.soft < _FEW_PROCESSES
    if files.soft is not None and files.soft < _FEW_FILES:
        hard = _ENOUGH_FILES if files.hard is None else min(_ENOUGH_FILES, files.hard)
        more = "" if hard >= _FEW_FILES else "; more than that needs an administrator (/etc/security/limits.conf)"
        return note(
            name,
            f"{seen}: Ray with many workers, and data in many files, need more open files",
            f"`ulimit -n {hard}` before the run{more}; in Docker `--ulimit nofile={_ENOUGH_FILES}`.",
        )
    if few_processes:
        return note(
            name,
            f"{seen}: threads count, and Ray starts hundreds",
            f"`ulimit -u {_count(processes.hard)}` before the run; in Docker `--pids-limit=-1`.",
        )
    return ok(name, seen)


def judge_encoding(facts: HostFacts) -> Finding:
    """Prompts and generations are text of every language."""
    name = "encoding"
    seen = f"files {facts.preferred_encoding}, output {facts.output_encoding}"
    wrong = [text for text in (facts.preferred_encoding, facts.output_encoding) if not _is_utf8(text)]
    if wrong:
        return problem(
            name,
            f"{seen}: text outside {wrong[0]} cannot be printed, or is read wrongly by reward functions",
            "Set PYTHONUTF8=1 (and unset PYTHONIOENCODING), or a UTF-8 locale such as LANG=C.UTF-8 LC_ALL=C.UTF-8.",
        )
    return ok(name, seen)


def _is_utf8(encoding: str) -> bool:
    return encoding.lower().replace("-", "").replace("_", "") == "utf8"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"


def _size(size: int) -> str:
    return _gib(size) if size >= GIB else f"{size / 2**20:.0f} MiB"


def _count(value: int | None) -> str:
    return "unlimited" if value is None else str(value)
