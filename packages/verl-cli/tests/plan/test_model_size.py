"""Numbers of parameters, from configurations and file headers, against transformers' own models."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForTokenClassification,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from verl_cli.errors import UserError
from verl_cli.plan.model_size import Architecture, count_weights, decoder_shapes, stored_shapes, with_value_head

SIZES: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
MODELS: list[tuple[Any, Any]] = [
    (Qwen2ForCausalLM, Qwen2Config(**SIZES, tie_word_embeddings=True)),
    (Qwen2ForCausalLM, Qwen2Config(**SIZES, tie_word_embeddings=False)),
    (LlamaForCausalLM, LlamaConfig(**SIZES, tie_word_embeddings=False)),
    (LlamaForCausalLM, LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True)),
    (MistralForCausalLM, MistralConfig(**SIZES, head_dim=16)),
    (Qwen3ForCausalLM, Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True)),
    (Qwen3ForCausalLM, Qwen3Config(**SIZES, attention_bias=True)),
]


def architecture(config: Any) -> Architecture:
    found = Architecture.of_config(config.to_dict())
    assert found is not None
    return found


@pytest.mark.parametrize(("model", "config"), MODELS)
def test_shapes_are_those_of_the_model(model: Any, config: Any) -> None:
    with torch.device("meta"):
        real = {name: tuple(parameter.shape) for name, parameter in model(config).named_parameters()}
    assert decoder_shapes(architecture(config)) == real


@pytest.mark.parametrize(("model", "config"), MODELS)
def test_a_critic_has_one_number_a_token_for_a_head(model: Any, config: Any) -> None:
    auto: Any = AutoModelForTokenClassification
    config = copy.deepcopy(config)
    config.num_labels = 1
    with torch.device("meta"):
        critic = auto.from_config(config)
    real = {name: tuple(parameter.shape) for name, parameter in critic.named_parameters()}
    assert with_value_head(decoder_shapes(architecture(config)), config.hidden_size) == real


def test_other_architectures_are_not_guessed() -> None:
    assert Architecture.of_config({"model_type": "mixtral"}) is None


def test_counts_by_group() -> None:
    shapes = {
        "model.embed_tokens.weight": (10, 4),
        "model.layers.0.mlp.up_proj.weight": (6, 4),
        "model.layers.10.mlp.up_proj.weight": (7, 4),
        "model.layers.10.mlp.up_proj.bias": (7,),
        "model.norm.weight": (4,),
    }
    weights = count_weights(shapes, "here")
    assert (weights.total, weights.outside_layers, weights.largest_layer, weights.largest_tensor) == (103, 44, 35, 40)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small untied model in two folders: one file, and several."""
    folder = tmp_path_factory.mktemp("saved")
    with torch.random.fork_rng(devices=[]):
        model: Any = Qwen2ForCausalLM(Qwen2Config(**SIZES))
    model.save_pretrained(folder / "one")
    model.save_pretrained(folder / "sharded", max_shard_size="5KB")
    return folder


@pytest.mark.parametrize("kind", ["one", "sharded"])
def test_headers_tell_the_shapes(saved: Path, kind: str) -> None:
    expected = decoder_shapes(architecture(Qwen2Config(**SIZES)))
    assert stored_shapes(saved / kind, tied=False) == expected
    assert len(list((saved / "sharded").glob("*.safetensors"))) > 1


def test_a_stored_copy_of_a_tied_head_does_not_count(saved: Path) -> None:
    shapes = stored_shapes(saved / "one", tied=True)
    assert shapes is not None and "lm_head.weight" not in shapes


def test_no_weights_are_none(tmp_path: Path) -> None:
    assert stored_shapes(tmp_path, tied=False) is None


def test_a_file_that_was_cut_short_is_told(saved: Path, tmp_path: Path) -> None:
    whole = (saved / "one" / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-10])
    with pytest.raises(UserError, match=r"not a whole safetensors file: it has [\d,]+ of [\d,]+ bytes"):
        stored_shapes(tmp_path, tied=False)


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n", b"\x02" + bytes(7) + b"[]"])
def test_what_is_no_safetensors_file_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(UserError, match="not a whole safetensors file"):
        stored_shapes(tmp_path, tied=False)


def test_a_missing_shard_is_told(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UserError, match=r"names model-00001-of-00002\.safetensors, which is not in"):
        stored_shapes(tmp_path, tied=False)


def test_a_broken_index_is_told(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be read"):
        stored_shapes(tmp_path, tied=False)
