"""A model small enough for any test: the Qwen2 architecture with random weights from a seed."""

from pathlib import Path
from typing import Any

import torch

from verl_engine.loading import quiet_transformers


def tiny_model(
    directory: Path,
    *,
    seed: int = 0,
    vocab_size: int = 32,
    hidden_size: int = 32,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    tied: bool = False,
    **config: Any,
) -> Path:
    """Write a Hugging Face folder with a random Qwen2 language model in float32 and return `directory`.

    `config` goes to Qwen2Config as it is. Weights come from a generator of their own, large enough that distributions
    are far from uniform and every weight matters to the output.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    settings: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": None,
    }
    with torch.random.fork_rng(devices=[]):  # the constructor draws weights, which are replaced below
        model = Qwen2ForCausalLM(Qwen2Config(**(settings | config)))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            spread = 0.5 / parameter.shape[-1] ** 0.5 if parameter.ndim > 1 and "embed" not in name else 0.2
            parameter.copy_(float("norm" in name) + spread * noise)
    with quiet_transformers():
        model.save_pretrained(directory)
    return directory
