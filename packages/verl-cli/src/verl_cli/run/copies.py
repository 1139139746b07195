"""Copies of a run in a place that fsspec opens (`trainer.default_hdfs_dir`): hdfs, s3, gs, a mounted folder, ..."""

import json
from collections.abc import Iterable
from pathlib import Path

import fsspec

from verl_cli.errors import UserError
from verl_cli.run.checkpoints import MARK, PARTIAL, Checkpoint, step_of


class Copies:
    """The folder at a URL that receives a run's checkpoints and records, laid out as the run directory is."""

    def __init__(self, url: str) -> None:
        """Raise UserError if no driver for the URL is installed."""
        try:
            self._files, self._root = fsspec.url_to_fs(str(Path(url).expanduser()) if url.startswith("~") else url)
        except (ImportError, ValueError, OSError) as error:
            raise UserError(
                f"{url} cannot be opened ({error}). Install the file system's driver (s3fs for s3://, gcsfs for gs://, "
                f"pyarrow with Hadoop's libhdfs for hdfs://), or name a mounted folder."
            ) from error
        self.url = url.rstrip("/")

    def steps(self) -> list[int]:
        """The steps of the checkpoints that were completely copied, in order."""
        self._files.invalidate_cache()
        if not self._files.isdir(self._root):
            return []
        folders = [Path(path) for path in self._files.ls(self._root, detail=False)]
        found = [step for folder in folders if (step := step_of(folder)) is not None]
        return sorted(step for step in found if self._files.isfile(self._path(f"global_step_{step}", MARK)))

    def is_taken(self) -> bool:
        """Whether there are copies of a run."""
        return self._files.isfile(self._path("config.yaml")) or bool(self.steps())

    def is_folder(self, folder: Path) -> bool:
        """Whether the copies would go into this folder of the local machine."""
        local = "file" in ([self._files.protocol] if isinstance(self._files.protocol, str) else self._files.protocol)
        return local and Path(self._root).resolve() == folder.resolve()

    def damage(self, step: int) -> str | None:
        """What is wrong with a complete copy's files, if anything."""
        folder = f"global_step_{step}"
        try:
            sizes = dict(json.loads(self.read_text(folder, MARK) or "")["file_bytes"])
        except (ValueError, KeyError, TypeError) as error:
            return f"its {MARK} cannot be read ({type(error).__name__}: {error})"
        for name, size in sizes.items():
            if not self._files.isfile(self._path(folder, name)):
                return f"it lacks {name}"
            if self._files.size(self._path(folder, name)) != size:
                return f"{name} has not its {size} bytes"
        return None

    def put_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Copy a checkpoint, its mark last: one that was cut short is not seen."""
        target = self._path(checkpoint.path.name)
        if self._files.exists(target):
            if self._files.exists(f"{target}/{MARK}"):
                self._files.rm_file(f"{target}/{MARK}")  # first: half of it must not pass for a whole one
            self._files.rm(target, recursive=True)
        files = sorted(path for path in checkpoint.path.rglob("*") if path.is_file() and path.name != MARK)
        for path in (*files, checkpoint.path / MARK):
            self._put(path, f"{target}/{path.relative_to(checkpoint.path).as_posix()}")

    def put_files(self, paths: Iterable[Path]) -> None:
        """Copy files that are there, each replacing an earlier copy."""
        for path in paths:
            if path.is_file():
                self._put(path, self._path(path.name))

    def fetch_checkpoint(self, step: int, folder: Path) -> None:
        """Copy a checkpoint's files into an empty folder."""
        source = self._path(f"global_step_{step}")
        for path in self._files.find(source):
            target = folder / Path(path).relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            self._files.get_file(path, str(target))

    def fetch_file(self, name: str, target: Path) -> None:
        """Copy a record back, if there is a copy of it: whole or not at all."""
        if self._files.isfile(self._path(name)):
            partial = target.with_name(f".{target.name}{PARTIAL}")
            self._files.get_file(self._path(name), str(partial))
            partial.replace(target)

    def read_text(self, *names: str) -> str | None:
        """The text of a file; None if there is none."""
        path = self._path(*names)
        return self._files.cat_file(path).decode("utf-8") if self._files.isfile(path) else None

    def _path(self, *names: str) -> str:
        return "/".join([self._root.rstrip("/"), *names])

    def _put(self, path: Path, target: str) -> None:
        self._files.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
        self._files.put_file(str(path), target)
