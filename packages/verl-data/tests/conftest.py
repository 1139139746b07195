"""Tiny tokenizers, made in memory: one token per character or word."""

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from collections.abc import Callable
from typing import Any

import pytest

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


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
