"""Checkpoints of sharded training state: written whole or not at all, read strictly, at any number of ranks."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from verl_engine.errors import CheckpointError, EngineError

_MANIFEST = "engine.json"
_FORMAT = 1


@contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """Give all ranks a temporary sibling to write into; once all are done it takes the name `directory`. Collective.

    What was written is on disk before the name changes. A failure to write on any rank removes the sibling, leaves an
    earlier `directory` as it was and raises CheckpointError on every rank; a process that is killed leaves
    ``.<name>.partial``, which nothing reads and the next attempt removes.
    """
    partial = directory.with_name(f".{directory.name}.partial")
    first = dist.get_rank() == 0
    with _together(directory, partial):
        if first:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
    with _together(directory, partial):
        yield partial
    with _together(directory, partial):
        if first:
            _put_in_place(partial, directory)


@contextmanager
def _together(directory: Path, partial: Path) -> Iterator[None]:
    """Make a failure of one rank one of all, after removing what was written. Collective, and a barrier."""
    failure: BaseException | None = None
    try:
        yield
    # The first is what torch.distributed.checkpoint raises, and no Exception.
    except (CheckpointException, OSError, RuntimeError, ValueError, SafetensorError, EngineError) as error:
        failure = error
    reasons: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(reasons, None if failure is None else _reason(failure))
    reason = next((reason for reason in reasons if reason is not None), None)
    if reason is None:
        return
    if dist.get_rank() == 0:
        shutil.rmtree(partial, ignore_errors=True)
    if isinstance(failure, EngineError):
        raise failure
    raise CheckpointError(
        f"{directory} could not be written: {reason} Nothing was left of it, and an earlier folder of that name is as "
        "it was. Free space on that file system (or check its quota and permissions), then save again."
    ) from failure


def _put_in_place(partial: Path, directory: Path) -> None:
    replaced = directory.with_name(f".{directory.name}.replaced")
    for path in [*partial.rglob("*"), partial]:
        _sync(path)
    shutil.rmtree(replaced, ignore_errors=True)
    earlier = directory.exists()
    if earlier:
        directory.rename(replaced)
    try:
        partial.rename(directory)
    except OSError:
        if earlier:
            replaced.rename(directory)
        raise
    _sync(directory.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _reason(error: BaseException) -> str:
    """One line that ends with a full stop; of a failure inside torch.distributed.checkpoint, its first cause."""
    while isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    text = " ".join(str(error).split()) or type(error).__name__
    return (text if len(text) <= 300 else text[:300] + " ...").rstrip(".") + "."


def save_state(directory: Path, tensors: dict[str, torch.Tensor], steps: int) -> None:
    """Write named tensors (DTensors by shards) and the number of optimiser steps taken. Collective.

    Raises CheckpointError on every rank, and leaves no partial folder, if anything cannot be written.
    """
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
        raise CheckpointError(
            f"The checkpoint {directory} is damaged and cannot be read: {_reason(error)} Go back to an earlier "
            "checkpoint; this engine's parameters may be a mixture now, so build it anew."
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
