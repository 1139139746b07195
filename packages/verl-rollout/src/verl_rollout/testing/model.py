"""A tiny Qwen2 model with a character tokenizer, written as an ordinary Hugging Face folder."""

from pathlib import Path
from typing import Any

import torch

#: How byte-level tokenizers write a space.
_SPACE = "\u0120"


def build_tiny_model(
    folder: Path,
    *,
    seed: int = 0,
    characters: str = "0123456789+-*/=?abcdefghijklmnopqrstuvwxyz ",
    hidden_size: int = 32,
    num_hidden_layers: int = 2,
    max_position_embeddings: int = 64,
    tie_word_embeddings: bool = True,
    weight_std: float = 0.3,
) -> Path:
    """Write config, weights and tokenizer to `folder`, and return it.

    The weights are normal with standard deviation `weight_std`, wide enough that the next-token distributions are far
    from uniform, and come from a generator of their own. Token 0 is the padding ``<pad>``, token 1 the end ``<eos>``;
    the characters, printable ASCII, follow.
    """
    # Imported here because it takes seconds.
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=len(characters) + 2,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_hidden_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_position_embeddings,
        tie_word_embeddings=tie_word_embeddings,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    with torch.random.fork_rng(devices=[]):  # the class fills itself from the global generator
        model = Qwen2ForCausalLM(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            offset = 1.0 if "norm" in name else 0.0
            parameter.copy_(offset + weight_std * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(folder)
    _character_tokenizer(characters).save_pretrained(folder)
    return folder


def _character_tokenizer(characters: str) -> Any:
    """The architecture's own class, because AutoTokenizer takes no other for it: byte-level pairs without any merge."""
    from transformers import Qwen2Tokenizer

    byte_level = [_SPACE if character == " " else character for character in characters]
    vocabulary = {token: index for index, token in enumerate(("<pad>", "<eos>", *byte_level))}
    tokenizer: Any = Qwen2Tokenizer
    return tokenizer(vocab=vocabulary, merges=[], pad_token="<pad>", eos_token="<eos>", unk_token="<pad>")
