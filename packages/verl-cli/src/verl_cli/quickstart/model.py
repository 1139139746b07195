"""A tiny Qwen2 language model with a character tokenizer, as an ordinary Hugging Face folder."""

from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

#: A turn is its bare text: the model sees "27+15=" and answers "42". Characters that the tokenizer does not know are
#: refused, because it would leave them out without a word.
CHAT_TEMPLATE = """
{%- for message in messages -%}
    {%- for character in message['content'] -%}
        {%- if character not in 'ALPHABET' -%}
            {{- raise_exception('this small model knows the characters ALPHABET and not "' ~ character ~ '". Write the '
                ~ 'prompt with those, or train another model (actor_rollout_ref.model.path).') -}}
        {%- endif -%}
    {%- endfor -%}
    {%- if message['role'] == 'assistant' -%}
        {%- generation -%}{{- message['content'] -}}{%- endgeneration -%}
    {%- else -%}
        {{- message['content'] -}}
    {%- endif -%}
{%- endfor -%}
"""


def write_model(folder: Path, *, seed: int, hidden_size: int = 96, layers: int = 2, heads: int = 4) -> None:
    """Write a randomly initialised model and its tokenizer."""
    tokenizer = character_tokenizer("0123456789+=")
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=8 * hidden_size // 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        initializer_range=0.08,  # a network this narrow learns much sooner than with the usual 0.02
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def character_tokenizer(alphabet: str) -> Any:
    """One token per character of `alphabet` (printable ASCII), after <pad> (0) and <eos> (1).

    It is the architecture's own class without a merge: AutoTokenizer makes no other of a Qwen2 folder.
    """
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<eos>", *alphabet])}
    tokenizer_class: Any = Qwen2Tokenizer
    tokenizer = tokenizer_class(vocab=vocabulary, merges=[], pad_token="<pad>", eos_token="<eos>", unk_token="<pad>")
    tokenizer.chat_template = CHAT_TEMPLATE.strip().replace("ALPHABET", alphabet)
    return tokenizer
