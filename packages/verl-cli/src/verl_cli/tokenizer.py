"""Loading the tokenizer of a model; importing this needs neither torch nor transformers."""

from pathlib import Path
from typing import Any

from verl_engine.config import ModelConfig

from verl_cli.errors import UserError
from verl_cli.models import has_tokenizer, locate_model

_ADVICE = (
    "A model folder needs tokenizer.json (or another tokenizer file) and tokenizer_config.json; if the tokenizer lies "
    "elsewhere, set actor_rollout_ref.model.tokenizer_path."
)


def load_tokenizer(model: ModelConfig) -> Any:
    """Load the tokenizer of a model folder (or hub name); UserError where there is none that works."""
    path = locate_tokenizer(model)
    return open_tokenizer(path, trust_remote_code=model.trust_remote_code)


def locate_tokenizer(model: ModelConfig) -> str:
    """The folder (or hub name) of a model's tokenizer; UserError where there is none."""
    key = "tokenizer_path" if model.tokenizer_path else "path"
    path = locate_model(model.tokenizer_path or model.path, f"actor_rollout_ref.model.{key}")
    # transformers makes an empty tokenizer of a folder that has none, and says nothing.
    if Path(path).is_dir() and not has_tokenizer(Path(path)):
        raise UserError(f"There is no tokenizer in {path}. {_ADVICE}")
    return path


def open_tokenizer(path: str, *, trust_remote_code: bool) -> Any:
    """Load the tokenizer at `path`, as `locate_tokenizer` gives it; UserError for a broken one."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError, KeyError, TypeError) as error:  # broken files raise any of these
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"No tokenizer could be loaded from {path} ({said}). {_ADVICE}") from error
