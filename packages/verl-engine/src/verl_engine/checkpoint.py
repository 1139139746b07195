"""Checkpoints of sharded training state: written whole or not at all, read strictly, at any number of ranks."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from verl_engine.errors import CheckpointError

_MANIFEST = "engine.json"
_FORMAT = 1


@contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """Give all ranks a temporary sibling to write into; once all are done it takes the name `directory`. Collective.

    What was written is on disk before the name changes. A failure leaves a sibling ``.<name>.partial``, which nothing
    reads and the next attempt removes, and an earlier `directory` as it was.
    """
    partial = directory.with_name(f".{directory.name}.partial")
    replaced = directory.with_name(f".{directory.name}.replaced")
    first = dist.get_rank() == 0
    if first:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    dist.barrier()
    yield partial
    dist.barrier()
    if first:
        for path in [*partial.rglob("*"), partial]:
            _sync(path)
        shutil.rmtree(replaced, ignore_errors=True)
        if directory.exists():
            directory.rename(replaced)
        partial.rename(directory)
        _sync(directory.parent)
        shutil.rmtree(replaced, ignore_errors=True)
    dist.barrier()


def save_state(directory: Path, tensors: dict[str, torch.Tensor], steps: int) -> None:
    """Write named tensors (DTensors by shards) and the number of optimiser steps taken. Collective."""
    with whole_directory(directory) as partial:
        save(tensors, storage_writer=FileSystemWriter(partial))
        dist.barrier()
        if dist.get_rank() == 0:
            sizes = {path.name: path.stat().st_size for path in partial.iterdir()}
            manifest = {"format": _FORMAT, "steps": steps, "file_bytes": sizes}
            (partial / _MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True))


def load_state(directory: Path, tensors: dict[str, torch.Tensor]) -> int:
    """Fill `tensors` in place from what `save_state` wrote and return the number of optimiser steps. Collective.

    The number of ranks may differ from that of the writer. Raises CheckpointError, before anything is changed, for a
    folder that is missing, partial or of another model, and for tensors that it lacks.
    """
    steps = _read_manifest(directory)
    reader = FileSystemReader(directory)
    try:
        stored = reader.read_metadata().state_dict_metadata
        shapes = {name: tuple(getattr(entry, "size", ())) for name, entry in stored.items()}
        _check_names(directory, tensors, shapes)
        load(tensors, storage_reader=reader)
    except (CheckpointException, OSError, EOFError, RuntimeError, ValueError, ModuleNotFoundError) as error:
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(
            f"The checkpoint {directory} is damaged and cannot be read: {reason}. Go back to an earlier checkpoint; "
            "this engine's parameters may be a mixture now, so build it anew."
        ) from error
    return steps


def _read_manifest(directory: Path) -> int:
    manifest = directory / _MANIFEST
    if not manifest.is_file():
        raise CheckpointError(
            f"{directory} is not a complete engine checkpoint: it has no {_MANIFEST}, which is written last. Load a "
            "folder that TrainEngine.save has finished."
        )
    try:
        content = json.loads(manifest.read_text())
        written, steps, sizes = content["format"], int(content["steps"]), dict(content["file_bytes"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{manifest} is damaged and cannot be read. Go back to an earlier checkpoint.") from error
    if written != _FORMAT:
        raise CheckpointError(
            f"{directory} has checkpoint format {written}; this verl-engine reads {_FORMAT}. Use the version that "
            "wrote it."
        )
    for name, size in sizes.items():
        path = directory / name
        found = path.stat().st_size if path.is_file() else 0
        if found != size:
            raise CheckpointError(
                f"The checkpoint {directory} is damaged: {name} has {found} bytes instead of {size}. Go back to an "
                "earlier checkpoint or copy this one again."
            )
    return steps


def _check_names(directory: Path, tensors: dict[str, torch.Tensor], shapes: dict[str, tuple[int, ...]]) -> None:
    missing = [name for name in tensors if name not in shapes]
    if missing:
        raise CheckpointError(
            f"The checkpoint {directory} has no {missing[0]} (and lacks {len(missing)} of {len(tensors)} entries): it "
            "is of another model, or of one saved without its optimiser. Going on without it would change the run; "
            "load the right checkpoint, or start from its exported model."
        )
    for name, tensor in tensors.items():
        if shapes[name] != tuple(tensor.shape):
            raise CheckpointError(
                f"The checkpoint {directory} has {name} of shape {shapes[name]}, the engine of shape "
                f"{tuple(tensor.shape)}: it is of another model. Load the checkpoint of this model."
            )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
