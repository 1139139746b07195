"""How many parameters a model has and how wide it is, from a few bytes of its folder: no model is built."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_cli.errors import UserError

#: Decoders of the Llama family: their parameters follow from their configuration, and `memory` knows their activations.
DECODERS = ("llama", "mistral", "qwen2", "qwen3")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
#: Longest header of a safetensors file in bytes, as the format's own readers limit it.
_LONGEST_HEADER = 100_000_000


@dataclass(frozen=True)
class Architecture:
    """The sizes of a decoder of the Llama family, in elements."""

    kind: str
    """One of `DECODERS`."""
    layers: int
    hidden: int
    """Elements of a token's hidden state."""
    intermediate: int
    """Elements inside the feed-forward part."""
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    tied: bool
    """Whether the vocabulary head is the embedding."""
    attention_bias: bool = False
    mlp_bias: bool = False

    @property
    def query_width(self) -> int:
        """Elements of a token's queries in one layer."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """Elements of a token's keys (and as many of its values) in one layer."""
        return self.kv_heads * self.head_size

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> "Architecture | None":
        """Read a transformers configuration with all its values; None for an architecture that is not known here."""
        if config.get("model_type") not in DECODERS:
            return None
        heads = config["num_attention_heads"]
        return cls(
            kind=config["model_type"],
            layers=config["num_hidden_layers"],
            hidden=config["hidden_size"],
            intermediate=config["intermediate_size"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_size=config.get("head_dim") or config["hidden_size"] // heads,
            vocabulary=config["vocab_size"],
            tied=bool(config.get("tie_word_embeddings")),
            attention_bias=bool(config.get("attention_bias")),
            mlp_bias=bool(config.get("mlp_bias")),
        )


@dataclass(frozen=True)
class Weights:
    """Numbers of parameters; tied ones count once."""

    total: int
    outside_layers: int
    """Embeddings, final norm and head: what the training engine gathers as one group."""
    largest_layer: int
    largest_tensor: int
    source: str
    """Where the numbers come from."""


def count_weights(shapes: Mapping[str, tuple[int, ...]], source: str) -> Weights:
    """Add up the weights of `shapes` by name."""
    layers: dict[int, int] = {}
    outside = 0
    for name, shape in shapes.items():
        if layer := _LAYER.search(name):
            layers[int(layer[1])] = layers.get(int(layer[1]), 0) + math.prod(shape)
        else:
            outside += math.prod(shape)
    return Weights(
        total=outside + sum(layers.values()),
        outside_layers=outside,
        largest_layer=max(layers.values(), default=0),
        largest_tensor=max(map(math.prod, shapes.values()), default=0),
        source=source,
    )


def decoder_shapes(model: Architecture) -> dict[str, tuple[int, ...]]:
    """The weights of a language model of the Llama family under their Hugging Face names, as its configuration says."""
    hidden, inner, queries, keys = model.hidden, model.intermediate, model.query_width, model.kv_width
    input_bias = model.attention_bias or model.kind == "qwen2"
    output_bias = model.attention_bias and model.kind != "qwen2"
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (model.vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    if not model.tied:
        shapes["lm_head.weight"] = (model.vocabulary, hidden)
    linears = {
        "self_attn.q_proj": (queries, hidden, input_bias),
        "self_attn.k_proj": (keys, hidden, input_bias),
        "self_attn.v_proj": (keys, hidden, input_bias),
        "self_attn.o_proj": (hidden, queries, output_bias),
        "mlp.gate_proj": (inner, hidden, model.mlp_bias),
        "mlp.up_proj": (inner, hidden, model.mlp_bias),
        "mlp.down_proj": (hidden, inner, model.mlp_bias),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    if model.kind == "qwen3":
        norms |= {"self_attn.q_norm": model.head_size, "self_attn.k_norm": model.head_size}
    for layer in range(model.layers):
        prefix = f"model.layers.{layer}"
        for name, (rows, columns, bias) in linears.items():
            shapes[f"{prefix}.{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{prefix}.{name}.bias"] = (rows,)
        shapes |= {f"{prefix}.{name}.weight": (size,) for name, size in norms.items()}
    return shapes


def with_value_head(shapes: Mapping[str, tuple[int, ...]], hidden: int) -> dict[str, tuple[int, ...]]:
    """The weights of the same model as a critic: one number a token in place of the vocabulary head."""
    body = {name: shape for name, shape in shapes.items() if not name.startswith("lm_head.")}
    return {"score.weight": (1, hidden), "score.bias": (1,), **body}


def stored_shapes(folder: Path, *, tied: bool) -> dict[str, tuple[int, ...]] | None:
    """The weights in the safetensors files of a model folder, from their headers; None where there are none.

    A vocabulary head that is stored although it is tied to the embedding is left out. Raises UserError for a file that
    is missing, cut short or no safetensors file.
    """
    files = list(_weight_files(folder))
    if not files:
        return None
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        shapes |= _header_shapes(file)
    return {
        name: shape
        for name, shape in shapes.items()
        if not (tied and name == "lm_head.weight") and not name.endswith("rotary_emb.inv_freq")
    }


def _weight_files(folder: Path) -> Iterator[Path]:
    """The files that transformers loads: the index's, or the one file."""
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if single.is_file() or not index.is_file():
        yield from [single] if single.is_file() else []
        return
    try:
        names = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index} cannot be read ({type(error).__name__}: {error}). Copy the model again.") from error
    for name in names:
        if not (folder / name).is_file():
            raise UserError(f"{index} names {name}, which is not in {folder}. Copy the model again, completely.")
        yield folder / name


def _header_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes in a safetensors file: 8 bytes with the header's length, the header as JSON, then the data."""
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if not 2 <= length <= min(_LONGEST_HEADER, size - 8):
                raise ValueError(f"its first 8 bytes announce a header of {length} bytes")
            header = json.loads(opened.read(length))
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
        end = 8 + length + max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
        if size < end:
            raise ValueError(f"it has {size:,} of {end:,} bytes")
        return {name: tuple(entry["shape"]) for name, entry in tensors.items()}
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{file} is not a whole safetensors file: {error}. Copy the model again.") from error
