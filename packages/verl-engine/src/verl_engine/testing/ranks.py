"""Real processes with a real process group, kept alive between tests because starting them is slow."""

import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


class RankPool:
    """`world_size` processes in one process group (gloo; with NCCL where `device` is cuda, one GPU a rank)."""

    def __init__(self, world_size: int, device: str = "cpu", deadline_seconds: float = 240.0) -> None:
        self._deadline = deadline_seconds
        self._folder = tempfile.TemporaryDirectory()
        context = mp.get_context("spawn")
        self._ranks: list[tuple[Any, Connection]] = []
        for rank in range(world_size):
            here, there = context.Pipe()
            arguments = (rank, world_size, device, Path(self._folder.name) / "store", there)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            there.close()
            self._ranks.append((process, here))

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call ``function(*arguments)`` on every rank at once and return the results by rank.

        `function` and what it takes and returns must be picklable. Raises RuntimeError with the traceback of a rank
        that failed, was lost or did not answer within the deadline.
        """
        for _, pipe in self._ranks:
            pipe.send((function, arguments))
        results = []
        for rank, (_, pipe) in enumerate(self._ranks):
            if not pipe.poll(self._deadline):
                raise RuntimeError(f"Rank {rank} did not finish {function.__name__} within {self._deadline:.0f} s.")
            try:
                failed, result = pipe.recv()
            except EOFError as error:
                raise RuntimeError(f"Rank {rank} died in {function.__name__}.") from error
            if failed:
                raise RuntimeError(f"Rank {rank} failed in {function.__name__}:\n{result}")
            results.append(result)
        return results

    def __enter__(self) -> "RankPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, pipe in self._ranks:
            pipe.close()
        for process, _ in self._ranks:
            process.join(10)
            if process.is_alive():
                process.terminate()
                process.join()
        self._folder.cleanup()


def _serve(rank: int, world_size: int, device: str, store: Path, pipe: Connection) -> None:
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    shared = dist.FileStore(str(store), world_size)  # type: ignore[attr-defined]  # public, not in torch's stubs
    dist.init_process_group(backend, store=shared, rank=rank, world_size=world_size)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            break
        try:
            answer = (False, function(*arguments))
        except Exception:  # noqa: BLE001 the traceback travels to the caller, whatever was raised
            answer = (True, traceback.format_exc())
        pipe.send(answer)
    dist.destroy_process_group()
