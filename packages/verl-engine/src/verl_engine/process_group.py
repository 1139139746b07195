"""The process group: every engine has one, of one process where nobody has started more."""

import os
from typing import Literal

import torch
import torch.distributed as dist

from verl_engine.errors import EngineError


def init_single_process(device: Literal["cpu", "cuda"] = "cpu") -> None:
    """Start a process group of this process alone, over gloo, and NCCL as well for CUDA; nothing happens where one "
    "exists."""
    if device == "cuda" and not torch.cuda.is_available():
        raise EngineError(
            "The training engine was asked to run on cuda, but torch finds no usable GPU here. Set trainer.device=cpu, "
            "or use a machine whose GPU and driver this torch build supports."
        )
    if dist.is_initialized():
        return
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size != 1:
        raise EngineError(
            f"The environment says that {world_size} ranks work together (WORLD_SIZE), but torch.distributed is not "
            "initialised. Call torch.distributed.init_process_group before building an engine."
        )
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    store = dist.HashStore()  # type: ignore[attr-defined]  # public, but torch's stubs do not export it
    dist.init_process_group(backend, store=store, rank=0, world_size=1)


def max_over_ranks(value: int, device: torch.device) -> int:
    """Return the largest `value` of all ranks."""
    if dist.get_world_size() == 1:
        return value
    largest = torch.tensor(value, device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return int(largest)
