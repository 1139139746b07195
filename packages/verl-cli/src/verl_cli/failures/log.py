"""error.log: everything that is needed to find a defect, in the run's own folder."""

import os
import platform
import shlex
import sys
import time
import traceback
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from verl_cli.failures.explain import explain
from verl_cli.failures.place import note, place_of

if TYPE_CHECKING:
    from verl_cli.config import RunConfig

#: The file's name in a run directory.
ERROR_LOG = "error.log"
_DISTRIBUTIONS = (
    *("verl-cli", "verl-engine", "verl-rollout", "verl-algos", "verl-data"),
    *("torch", "transformers", "huggingface-hub", "datasets", "pyarrow", "numpy", "vllm", "ray"),
)


def record_failure(run_dir: Path, error: BaseException, *, config: "RunConfig", step: int | None = None) -> None:
    """Keep what can be known about a failure of a run, before anything is tidied up.

    Notes the configuration on `error`, so that `explain` can name the keys that apply. If the failure is not a known
    one, also appends its traceback to ``error.log`` in `run_dir`, with time, command line, versions, step, phase and
    the resolved configuration: whoever removes the rest of the folder must leave this file. Where it cannot be written
    nothing happens, and the traceback goes to stderr.

    Args:
        run_dir: the run's folder; made again if it is gone.
        error: what ended the run. An interrupt or exit is not a failure.
        config: the resolved configuration.
        step: the step under way, where no phase has noted it.
    """
    note(error, config=config, step=step)
    if not isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)) and explain(error) is None:
        with suppress(OSError):
            note(error, log=_append(run_dir, error, config))


def _append(run_dir: Path, error: BaseException, config: "RunConfig") -> Path:
    from verl_cli.config import dump

    place, path = place_of(error), run_dir / ERROR_LOG
    entry = "\n".join(
        [
            f"===== {time.strftime('%Y-%m-%d %H:%M:%S %z')} =====",
            f"command: {shlex.join(sys.orig_argv)}",
            f"working folder: {Path.cwd()}",
            f"process: {os.getpid()} on {platform.node()}, {platform.platform()}, Python {platform.python_version()}",
            f"versions: {_versions()}",
            f"step: {'none' if place.step is None else place.step}",
            f"phase: {place.phase or 'none'}",
            f"configuration: {run_dir / 'config.yaml'} (its content stands below the traceback)",
            "",
            "".join(traceback.format_exception(error)),
            dump(config),
            "",
        ]
    )
    run_dir.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(entry)
        file.flush()
        os.fsync(file.fileno())
    return path


def _versions() -> str:
    found = []
    for name in _DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join(found)
