"""What every ready-made processor is as a command: the published options, where files go, what is printed."""

import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from verl_data.files import is_url, put
from verl_data.processor import Manifest, manifest_path
from verl_data.processors.splits import OnError

#: What --local_dataset_path holds, unless a processor says otherwise.
LOCAL_COPY = "folder with each split as .jsonl, .json, .csv or .parquet, or as the hub lays them out"


class Prepare(Protocol):
    """A function that writes the Parquet files of a data set to a folder."""

    def __call__(self, save_dir: Path, *, dataset_path: str | None, on_error: OnError) -> Mapping[str, Manifest]:
        """Return what was done, by split."""
        ...


def run(doc: str | None, default_dir: str, prepare: Prepare, argv: Sequence[str] | None) -> int:
    """Be the command of a data set that has no options of its own; the arguments are those of `options`."""
    parser = options(doc, default_dir)
    add_dataset_options(parser)
    arguments = parser.parse_args(argv)
    return execute(
        parser,
        arguments,
        lambda folder: prepare(folder, dataset_path=arguments.local_dataset_path, on_error=arguments.on_error),
    )


def options(doc: str | None, default_dir: str | None) -> ArgumentParser:
    """Return a parser with the options for the output.

    Args:
        doc: the module's docstring, for --help.
        default_dir: the published default of --local_save_dir, also named in its help; None: it depends on an option,
            and is set with ``set_defaults(default_dir=...)``.
    """
    parser = ArgumentParser(description=doc, formatter_class=RawDescriptionHelpFormatter)
    default = f" (default {default_dir})" if default_dir else ""
    parser.add_argument("--local_save_dir", metavar="FOLDER", help=f"folder for the output{default}")
    parser.add_argument("--local_dir", metavar="FOLDER", help="the older name of --local_save_dir")
    parser.add_argument("--hdfs_dir", metavar="URL", help="copy the output there as well: a folder or any fsspec URL")
    parser.set_defaults(default_dir=default_dir)
    return parser


def add_dataset_options(parser: ArgumentParser, local_copy: str = LOCAL_COPY) -> None:
    """Add the options of a processor that reads a data set; `local_copy` says what --local_dataset_path holds."""
    parser.add_argument("--local_dataset_path", metavar="PATH", help=f"{local_copy}; instead of the Hugging Face hub")
    parser.add_argument(
        "--on_error",
        choices=("raise", "skip"),
        default="raise",
        help="what becomes of a row that cannot be used: stop, or leave it out and count it (default raise)",
    )


def execute(parser: ArgumentParser, arguments: Namespace, prepare: Callable[[Path], Mapping[str, Manifest]]) -> int:
    """Prepare, print and copy; return the exit status: 1, with one paragraph, where that is impossible."""
    if arguments.local_dir and arguments.local_save_dir:
        parser.error("--local_dir is the older name of --local_save_dir: give one of them")
    if arguments.local_dir:
        print(f"{parser.prog}: --local_dir is now called --local_save_dir; both work.", file=sys.stderr)
    folder = Path(arguments.local_save_dir or arguments.local_dir or arguments.default_dir).expanduser()
    try:
        manifests = prepare(folder)
        for manifest in manifests.values():
            print(manifest)
        if arguments.hdfs_dir:
            copy_outputs([folder / manifest.output for manifest in manifests.values()], arguments.hdfs_dir)
            print(f"copied to {arguments.hdfs_dir}")
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


def copy_outputs(files: Sequence[Path], target: str) -> None:
    """Copy each file, and its manifest behind it, into `target`: a folder or an fsspec URL."""
    url = (target if is_url(target) else Path(target).expanduser().absolute().as_uri()).rstrip("/")
    for file in files:
        for path in (file, manifest_path(file)):
            put(path, f"{url}/{path.name}")
