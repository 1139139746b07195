"""What `verl-cli data` does with files, without torch."""

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from verl_data.check import check_file
from verl_data.config import DataConfig
from verl_data.schema import SchemaName
from verl_data.show import TRAINED_MARKS, show_rows

from verl_cli.config.classify import classify, is_default, no_effect
from verl_cli.config.errors import ConfigError
from verl_cli.config.keys import build, live_keys
from verl_cli.config.reasons import Reason
from verl_cli.config.sources import parse_overrides
from verl_cli.config.values import coerce
from verl_cli.errors import UserError
from verl_cli.models import has_tokenizer, locate_model
from verl_cli.tokenizer import open_tokenizer

#: The keys that say what a row means; the others have no effect here.
_KEYS = frozenset(
    f"data.{name}"
    for name in (
        "apply_chat_template_kwargs",
        "filter_overlong_prompts",
        "max_prompt_length",
        "prompt_format",
        "prompt_key",
        "reward_fn_key",
        "truncation",
    )
)
_NO_RUN = Reason("Rows are only looked at here, and nothing is trained.", "Leave it out.")
#: An argument that is a key and its value. Folders may have names with "=" in them (year=2024/a.parquet).
_OVERRIDE = re.compile(r"[+~]*\w+(\.\w+)+=")


def check_files(
    arguments: Sequence[str],
    schema: SchemaName | None,
    tokenizer: str | None,
    *,
    trust_remote_code: bool,
    as_json: bool,
) -> bool:
    """Check files, print the report, and return whether they can be used.

    Args:
        arguments: files and ``key=value``, in any order.
        schema: what the rows are for; None recognises it.
        tokenizer: a folder or hub name; None renders nothing.
        trust_remote_code: whether the tokenizer may run code that comes with it.
        as_json: print one JSON object.

    Raises UserError for a tokenizer, and ConfigError for keys, that cannot be used.
    """
    overrides = [text for text in arguments if _OVERRIDE.match(text) and not Path(text).exists()]
    files = [text for text in arguments if text not in overrides]
    if not files:
        raise UserError("No file was named: give one before the keys, as in `verl-cli data check train.parquet`.")
    config = data_config(overrides)
    opened = None if tokenizer is None else _open_tokenizer(tokenizer, trust_remote_code)
    report = check_file(files, schema=schema, config=config, tokenizer=opened)
    typer.echo(json.dumps(report.to_dict(), indent=2) if as_json else str(report))
    return report.ok


def show_file(
    file: str,
    overrides: Sequence[str],
    schema: SchemaName | None,
    tokenizer: str | None,
    *,
    trust_remote_code: bool,
    first: int,
    count: int,
) -> None:
    """Print `count` rows of a file from number `first` on; see `check_files` for the others."""
    config = data_config(overrides)
    opened = None if tokenizer is None else _open_tokenizer(tokenizer, trust_remote_code)
    rows = show_rows(file, opened, schema=schema, config=config, first=first, count=count)
    typer.echo("\n\n".join(map(str, rows)))
    if any(part.tokens is not None and part.name != "prompt" for row in rows for part in row.parts):
        typer.echo(f"\nBetween {' and '.join(TRAINED_MARKS)} stands what is trained.")


def data_config(overrides: Sequence[str]) -> DataConfig:
    """Make the configuration of rows from ``key=value``; ConfigError, with everything that is wrong."""
    settings, unread = parse_overrides(overrides)
    sorted_keys = classify(settings)
    found = [*unread.values(), *sorted_keys.problems, *sorted_keys.unused.values()]
    values: dict[str, Any] = {}
    for name, setting in sorted_keys.live.items():
        try:
            values[name] = coerce(live_keys()[name], setting.value, setting.source)
        except ConfigError as error:
            found += error.problems
            continue
        if name not in _KEYS and not is_default(name, values[name]):
            found.append(no_effect(name, values[name], _NO_RUN))
    for notice in sorted_keys.renames.values():
        typer.echo(notice, err=True)
    if not found:
        try:
            return build({name: value for name, value in values.items() if name in _KEYS}).data
        except ValueError as error:
            found.append(str(error))
    raise ConfigError(*found)


def _open_tokenizer(name: str, trust_remote_code: bool) -> Any:
    path = locate_model(name, "--tokenizer")
    # transformers makes an empty tokenizer of a folder that has none, and says nothing.
    if Path(path).is_dir() and not has_tokenizer(Path(path)):
        raise UserError(
            f"There is no tokenizer in {path}. Give a folder with tokenizer.json and tokenizer_config.json."
        )
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    if not trust_remote_code:
        # transformers imports torch where it is installed, which takes seconds and which no tokenizer needs. The
        # process ends with the command, so nobody misses it; code from elsewhere may.
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # Python's own way to make an import fail
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # it would tell at once that torch is missing
    return open_tokenizer(path, trust_remote_code=trust_remote_code)
