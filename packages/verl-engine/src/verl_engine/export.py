"""Writes an engine's model as an ordinary Hugging Face folder."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from verl_engine.checkpoint import whole_directory
from verl_engine.config import ModelConfig
from verl_engine.errors import ModelError
from verl_engine.interface import WeightSource
from verl_engine.loading import MODEL_FAULTS, expand_home, one_line, quiet_transformers

_TOKENIZER_FILES = ("tokenizer_config.json", "tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def export_model(model: Any, weights: WeightSource, config: ModelConfig, directory: Path) -> None:
    """Write config, safetensors (in the storage dtype) and, where the model has one, the tokenizer. Collective.

    Raises CheckpointError if anything cannot be written, and ModelError for a tokenizer that cannot be read.
    """
    writes = dist.get_rank() == 0
    state: dict[str, torch.Tensor] = {}
    for name, weight in weights:
        # Gathering is collective; only the writer keeps the result, one weight at a time on the accelerator.
        full = weight.full_tensor() if isinstance(weight, DTensor) else weight
        if writes:
            state[name] = full.cpu()
    with whole_directory(directory) as partial:
        if writes:
            persistent = set(model.state_dict())
            state.update({name: buffer.cpu() for name, buffer in model.named_buffers() if name in persistent})
            with quiet_transformers():
                model.save_pretrained(partial, state_dict=state)
                _copy_tokenizer(config, partial)


def _copy_tokenizer(config: ModelConfig, directory: Path) -> None:
    from transformers import AutoTokenizer

    source = expand_home(config.tokenizer_path or config.path)
    folder = Path(source)
    if folder.is_dir() and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        return
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=config.trust_remote_code)
    except MODEL_FAULTS as error:
        raise ModelError(
            f"The tokenizer of {source} cannot be loaded, so the model was not exported: {one_line(error)} Set "
            "tokenizer_path to a folder with a whole tokenizer."
        ) from error
    tokenizer.save_pretrained(directory)
