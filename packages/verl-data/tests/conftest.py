"""Tokenizers, made in memory: one token per character or word, or trained byte pairs; templates as published ones."""

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

# In importlib mode pytest puts no folder on the path: conversations is for tests here only.
sys.path.insert(0, str(Path(__file__).parent))

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


SPECIAL = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"),
    *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    *("<bos>", "<start_of_turn>", "<end_of_turn>", "<|end|>", "<|user|>", "<|assistant|>"),
    *("<|User|>", "<|Assistant|>"),
]
#: Template -> BOS, EOS.
TOKENS = {
    "chatml": (None, "<|im_end|>"),
    "tags": (None, "<|im_end|>"),
    "qwen3": (None, "<|im_end|>"),
    "llama3": ("<|begin_of_text|>", "<|eot_id|>"),
    "mistral": ("<s>", "</s>"),
    "mistral_tools": ("<s>", "</s>"),
    "gemma": ("<bos>", "<end_of_turn>"),
    "phi3": (None, "<|endoftext|>"),
    "deepseek_r1": ("<s>", "</s>"),
    "grouped_tools": (None, "</s>"),
}


@pytest.fixture(scope="session")
def chatml() -> Any:
    """A character tokenizer with the ChatML template and no BOS."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = [chr(i) for i in range(32, 127)] + ["\n", "é", "中"]
    vocabulary = {token: i for i, token in enumerate(["<unk>", "<|im_start|>", "<|im_end|>", *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    fast: Any = PreTrainedTokenizerFast  # its constructor is not typed
    return fast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<|im_end|>", chat_template=CHATML)


@pytest.fixture(scope="session")
def make_bos_tokenizer() -> Callable[[str | None], Any]:
    """Make a word tokenizer that puts BOS (id 1) before every text by itself, with a given template."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    def make(template: str | None) -> Any:
        words = ["<unk>", "<s>", "</s>", "user", "tool", "hi", "there", "a", "b", "c"]
        tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        tokenizer.add_special_tokens(["<s>", "</s>"])
        fast: Any = PreTrainedTokenizerFast
        return fast(
            tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", chat_template=template
        )

    return make


@pytest.fixture
def make_rows() -> Callable[[int], list[dict[str, Any]]]:
    """Make sound RL rows; prompt i asks for i + i."""

    def make(count: int) -> list[dict[str, Any]]:
        return [
            {
                "data_source": "verl/arithmetic",
                "prompt": [{"role": "user", "content": f"{i}+{i}="}],
                "ability": "math",
                "reward_model": {"style": "rule", "ground_truth": str(2 * i)},
                "extra_info": {"split": "train", "index": i},
            }
            for i in range(count)
        ]

    return make


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., Any]:
    """Make a byte-level BPE tokenizer for a template, by name or as text.

    `adds_bos` has it put its BOS before every text by itself; `bos=None` takes its BOS away; `trim_offsets` leaves
    white space out of offsets, as those of Llama 3 do.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from tokenizers.pre_tokenizers import Split
    from transformers import PreTrainedTokenizerFast

    trainer: Any = trainers.BpeTrainer
    text = "hello world the answer is 42 " * 9 + "user assistant system tool name arguments city Paris " * 9

    @cache
    def trained() -> str:
        tokenizer = Tokenizer(models.BPE())
        words = Split(Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated")
        in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, in_bytes])
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        tokenizer.train_from_iterator(
            [text, "a\n\nb\n\n" * 9], trainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
        )
        return str(tokenizer.to_str())

    def make(template: str | None, *, bos: str | None = "", adds_bos: bool = False, trim_offsets: bool = False) -> Any:
        own_bos, eos = TOKENS.get(template or "", ("<s>", "</s>"))
        bos = own_bos if bos == "" else bos
        tokenizer = Tokenizer.from_str(trained())
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
        tokenizer.add_tokens([AddedToken(tag, normalized=False) for tag in ("<think>", "</think>", "<tool_call>")])
        steps: list[Any] = [processors.ByteLevel(trim_offsets=trim_offsets)]
        if adds_bos and bos:
            number = tokenizer.token_to_id(bos)
            steps.append(processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, number)]))
        tokenizer.post_processor = processors.Sequence(steps)
        named = template in TOKENS
        source = (Path(__file__).parent / "templates" / f"{template}.jinja").read_text() if named else template
        fast: Any = PreTrainedTokenizerFast
        return fast(tokenizer_object=tokenizer, bos_token=bos, eos_token=eos, chat_template=source)

    return make


@pytest.fixture(scope="session")
def weather() -> dict[str, Any]:
    """A tool schema, and a conversation that calls the tool twice in one turn, thinks, and goes on."""
    calls = [
        {"type": "function", "function": {"name": "weather", "arguments": {"city": city, "days": 2}}}
        for city in ("Paris", "北京")
    ]
    return {
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "description": "Weather of a city.",
                    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
                },
            }
        ],
        "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "", "reasoning_content": "two cities", "tool_calls": calls},
            {"role": "tool", "content": "sunny"},
            {"role": "tool", "content": json.dumps({"t": 3})},
            {"role": "assistant", "content": "Sun.", "reasoning_content": "done"},
            {"role": "user", "content": "Thanks"},
            {"role": "assistant", "content": "<think>\npolite\n</think>\n\nWelcome!"},
        ],
    }
